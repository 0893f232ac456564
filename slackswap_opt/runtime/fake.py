"""Profiles without a device: tensors have shapes only, and durations come from the roofline of a device."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._subclasses.fake_tensor import FakeTensorMode

from slackswap_opt import hardware as devices
from slackswap_opt.files import InputError, shown
from slackswap_opt.hardware import Hardware
from slackswap_opt.instance import Link
from slackswap_opt.runtime.accelerator import accelerator_kernels, statistics_in_32_bits
from slackswap_opt.runtime.copies import WithoutData
from slackswap_opt.runtime.guard import RestoreGradients
from slackswap_opt.runtime.passes import run_once, until_equal
from slackswap_opt.runtime.profile import Profile, profile_of
from slackswap_opt.runtime.roofline import Roofline
from slackswap_opt.runtime.trace import Trace


def profile_fake(
    build: Callable[[], Callable[[], Any]],
    hardware: str | Hardware = "a100-40gb",
    *,
    name: str = "step",
    link: Link | None = None,
) -> Profile:
    """Return what a training step would do on a device, without the device and without its memory.

    Everything is built and run on the CPU with FakeTensor: shapes without data. Where PyTorch runs other kernels on an
    accelerator, operators are replaced as `slackswap_opt.runtime.accelerator` says. Operations of another device are not
    the same ones, so a plan for such a profile is for study: what executes a plan profiles again where it runs.

    Parameters
    ----------
    build
        Makes the model and the batch, on the CPU, and returns the step. Nothing that it allocates takes memory. A step on a
        model that exists already works too: then its parameters are left as they are.
    hardware
        The device that durations are for, by name or as it is.
    name
        Of the instance.
    link
        Of the instance; by default that of `hardware`.

    Raises
    ------
    ProfileError
        If the step runs no backward pass.
    InputError
        If an operation needs data: the message names it and the line that asked. If there is no such hardware.
    """
    device = devices.get(hardware)
    measure = Roofline(device)

    def run(_: Trace | None) -> Trace:
        guard = RestoreGradients()
        try:
            return run_once(step, measure, guard, WithoutData(mode))
        finally:
            guard.put_back()

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, accelerator_kernels():
        with _without_weak_references(mode), _copyable(mode):
            step = build()
        if not callable(step):
            raise InputError(f"what makes the step must return it, a function without arguments, got {shown(step)}")
        trace, steps = until_equal(run)
    for storage in trace.storages:
        if statistics_in_32_bits(trace.calls[storage.maker].short, storage.output, storage.dtype):
            storage.size *= 2
    return profile_of(trace, name, link or device.link(), steps=steps)


@contextmanager
def _copyable(mode: FakeTensorMode) -> Iterator[None]:
    """Return a context in which modules without data can be copied, as ``nn.TransformerEncoder`` copies its layer.

    A copy of a fake tensor takes its mode along: it must be the same mode, not a copy of it. PyTorch warns that it asks such a
    tensor for its address, which it does not have.
    """
    mode.__deepcopy__ = lambda memo: mode  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor", category=UserWarning)
            yield
    finally:
        del mode.__deepcopy__  # type: ignore[attr-defined]


@contextmanager
def _without_weak_references(mode: FakeTensorMode) -> Iterator[None]:
    """Return a context in which modules without data can be moved and cast, as with ``model.bfloat16()``.

    PyTorch does that by swapping tensors, and refuses it for those that something refers to weakly, as FakeTensorMode does to
    remember what it made of which tensor (pytorch/pytorch issue 170781). A plain dictionary refers to them strongly.
    """
    converter: Any = mode.fake_tensor_converter.meta_converter
    memory, converter.tensor_memo = converter.tensor_memo, {}
    try:
        yield
    finally:
        converter.tensor_memo = memory
