"""From a training step as PyTorch runs it to an instance: `profile` a callable, or put a `Profiler` around training steps."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from slackswap_opt.files import InputError
from slackswap_opt.instance import Instance, Link
from slackswap_opt.runtime.clock import Border
from slackswap_opt.runtime.durations import OnDevice, clocked
from slackswap_opt.runtime.guard import Leave, Restore, same_random_numbers
from slackswap_opt.runtime.lifetimes import Lifetimes, OperationFacts, TensorFacts
from slackswap_opt.runtime.modules import Modules
from slackswap_opt.runtime.trace import Trace
from slackswap_opt.runtime.tracer import Guard, Measure, Tracer

ATTEMPTS = 4
"""How many steps are run at most until two in a row are equal."""

DEFAULT_LINK = Link(25_000_000_000, 25_000_000_000, 10_000)
"""What the link of an instance is until it is measured or chosen: PCIe 4.0 x16 as it is commonly reached."""


class ProfileError(InputError):
    """A step that cannot be profiled: its message names what was found and what would be right."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What one training step does, operation by operation.

    Attributes
    ----------
    instance
        The step, to be planned. Operation `t` is the operation `t` of the clock; everything that the step allocates on the
        device is a tensor of it.
    tensors, operations
        What is known of each beyond the instance, at the same positions.
    device
        Where it ran, such as ``"cpu"`` or ``"cuda:0"``.
    steps
        How many steps were run until two were equal.
    restored
        What the steps had changed and was put back, in words.
    left
        How many storages that the last step made outlive it without being a leaf's gradient, and their bytes.
    """

    instance: Instance
    tensors: tuple[TensorFacts, ...]
    operations: tuple[OperationFacts, ...]
    device: str
    steps: int
    restored: tuple[str, ...]
    left: tuple[int, int]


def profile(step: Callable[[], Any], *, name: str = "step", link: Link | None = None, timed: bool = True) -> Profile:
    """Run a training step a few times and return what it does.

    The step runs with everything that autograd saves swapped to host memory at once, until two runs in a row did the same, so
    that what a first run does once does not count. Gradients, buffers, parameters and random number generators are then put
    back as they were; what the step's Python code changes in its own attributes is not.

    Parameters
    ----------
    step
        Does forward and backward, such as ``lambda: model(batch).loss.backward()``. Without the optimizer.
    name
        Of the instance.
    link
        Of the instance; by default `DEFAULT_LINK`.
    timed
        Whether to measure durations; otherwise they are 0.

    Raises
    ------
    ProfileError
        If the step runs no backward pass, or no two runs in a row are equal: the message names the first difference.
    InputError
        If the model is compiled, sharded or on the meta device.
    """
    measure = OnDevice(timed=timed)
    previous: Trace | None = None
    difference = ""
    for attempt in range(1, ATTEMPTS + 1):
        guard = Restore()
        try:
            trace = _run(step, measure, guard)
            total = _measured(step, trace, guard) if timed and previous is not None and not previous.difference(trace) else 0
        finally:
            restored = guard.put_back()
        if previous is not None and not (difference := previous.difference(trace)):
            return _profile(trace, name, link, attempt, restored, total)
        previous = trace
    raise ProfileError(f"the step differs from run to run: {difference}; profile a step that does the same on every run")


class Profiler:
    """Profiles the steps of a training as they run, without changing their results.

    Backward may run inside of `step`, or after it. Results are those of plain training, bit for bit.

    Parameters
    ----------
    name, link, timed
        As for `profile`.

    Examples
    --------
    >>> profiler = Profiler()  # doctest: +SKIP
    >>> for batch in loader:
    ...     with profiler.step():
    ...         loss = model(batch).loss
    ...     loss.backward()
    ...     optimizer.step()
    >>> profiler.profile().instance.save("step.json")
    """

    def __init__(self, *, name: str = "step", link: Link | None = None, timed: bool = True) -> None:
        self._name, self._link = name, link
        self._measure = OnDevice(timed=timed)
        self._pass: _Pass | None = None
        self._traces: list[Trace] = []
        self._steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context for the forward pass of a step; what ran before belongs to the step before."""
        self._finish()
        self._pass = _Pass(self._measure, Leave())
        self._pass.begin()
        self._steps += 1
        with self._pass.active():
            yield

    def profile(self) -> Profile:
        """End the last step and return its profile.

        Raises
        ------
        ProfileError
            If fewer than two steps ran, or the last two differ.
        """
        self._finish()
        if len(self._traces) < 2:
            raise ProfileError(f"two equal steps make a profile, but only {self._steps} ran; run more of them")
        if difference := self._traces[0].difference(self._traces[1]):
            raise ProfileError(f"the last two steps differ: {difference}; run more steps, or steps on batches of one shape")
        return _profile(self._traces[1], self._name, self._link, self._steps, (), 0)

    def _finish(self) -> None:
        if self._pass is not None:
            self._traces = [*self._traces[-1:], self._pass.end()]
            self._pass = None


class _Pass:
    """One traced step."""

    def __init__(self, measure: Measure, guard: Guard, *, fake: bool = False) -> None:
        self._modules = Modules()
        self.tracer = Tracer(measure, guard, self._modules, fake=fake)
        self._border = Border(self.tracer, self.tracer.pack, self.tracer.unpack)
        self._collects = gc.isenabled()

    def begin(self) -> None:
        # Cycles would die at moments that the collector chooses: they go before the step, or stay through it.
        gc.collect()
        gc.disable()
        self._border.open()

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._modules.followed(), self._border.active():
            yield

    def end(self) -> Trace:
        self._border.close()
        if self._collects:
            gc.enable()
        return self.tracer.end()


def _run(step: Callable[[], Any], measure: Measure, guard: Guard, *, fake: bool = False) -> Trace:
    traced = _Pass(measure, guard, fake=fake)
    traced.begin()
    try:
        with same_random_numbers(), traced.active():
            result = step()
    finally:
        trace = traced.end()
    del result
    trace.left = traced.tracer.left()
    if not any(call.backward for call in trace.calls):
        raise ProfileError(
            "the step ran no backward pass; it should do forward and backward, as model(batch).loss.backward() does"
        )
    return trace


def _measured(step: Callable[[], Any], trace: Trace, guard: Restore) -> int:
    """Return the nanoseconds of a plain step, the shorter of two, or 0 if there is no room for it."""
    device = _device(trace)
    if Lifetimes(trace, device).instance("", DEFAULT_LINK).peak * 5 // 4 > _free(device):
        return 0
    durations = []
    for _ in range(2):
        guard.put_back(keep=True)
        with same_random_numbers():
            durations.append(clocked(step, device)[1])
    return min(durations)


def _profile(trace: Trace, name: str, link: Link | None, steps: int, restored: tuple[str, ...], total: int) -> Profile:
    device = _device(trace)
    lifetimes = Lifetimes(trace, device)
    if total:
        lifetimes.rescale(total)
    return Profile(
        lifetimes.instance(name, link or DEFAULT_LINK),
        lifetimes.tensor_facts(),
        lifetimes.operation_facts(),
        str(device),
        steps,
        restored,
        trace.left,
    )


def _device(trace: Trace) -> torch.device:
    """Return the device that the step is on: the accelerator with most of its bytes, else the CPU."""
    sizes: dict[torch.device, int] = {}
    for storage in trace.storages:
        sizes[storage.device] = sizes.get(storage.device, 0) + storage.size
    accelerators = [device for device in sizes if device.type != "cpu"]
    return max(accelerators, key=lambda device: sizes[device], default=torch.device("cpu"))


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
