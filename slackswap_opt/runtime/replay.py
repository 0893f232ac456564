"""Running recorded operations again, as they ran the first time: below autograd and autocast, with the same random numbers."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from slackswap_opt.runtime.saved import overwritten
from slackswap_opt.runtime.storage import storages_of, tensors_in
from slackswap_opt.runtime.tape import Activation, Entry, Reference

Storage = torch.UntypedStorage

unseen = torch._C._DisableTorchDispatch
"""A context in which no dispatch mode sees what runs: for views, which change nothing and which a mode would slow down."""


class ChangedArgumentError(RuntimeError):
    """An argument from outside of the step that is not any more what it was when the operation ran first."""


class quiet:  # noqa: N801
    """A context below autograd and autocast, where recorded operations were when they ran first.

    Parameters
    ----------
    below
        The dispatch modes under which they ran: no others see them run again.
    """

    __slots__ = ("_autocast", "_below", "_enabled", "_modes")

    def __init__(self, below: list[TorchDispatchMode]) -> None:
        self._below = below

    def __enter__(self) -> None:
        self._modes = exchange_modes(self._below)
        self._enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        self._autocast = torch._C._DisableAutocast()
        self._autocast.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: object) -> None:
        self._autocast.__exit__(*exception)
        torch._C._set_grad_enabled(self._enabled)
        exchange_modes(self._modes)


def exchange_modes(modes: list[TorchDispatchMode]) -> list[TorchDispatchMode]:
    """Let `modes` be the active ones, and return those that were."""
    active = _get_current_dispatch_mode_stack()
    if active != modes:
        for _ in active:
            _pop_mode()
        for mode in modes:
            _push_mode(mode)
    return active


def generator_state(device: torch.device) -> bytes:
    """Return the state of a device's default random number generator, in memory that is no tensor's."""
    state = torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def set_generator_state(device: torch.device, state: bytes) -> None:
    """Set the state of a device's default random number generator."""
    tensor = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    if device.type == "cpu":
        torch.set_rng_state(tensor)
    else:
        torch.cuda.set_rng_state(tensor, device)


def run_again(entry: Entry, storage_of: Callable[[Activation], Storage], device: torch.device) -> list[Storage]:
    """Run a recorded operation again and return the storages of its results, in order.

    Parameters
    ----------
    entry
        The operation.
    storage_of
        Returns where a storage that it reads or changes is now, ready to be used.
    device
        Of the random number generator.

    Raises
    ------
    ChangedArgumentError
        If a tensor from outside of the step was written since.
    """
    changed = entry.changed_argument()
    if changed is not None:
        tensor, version = changed
        error = overwritten(f"{tensor.dtype} {list(tensor.shape)}", tensor._version, version)
        raise ChangedArgumentError(
            f"{error}; operation {entry.operation} ({entry.function}) has to run again on it: write it after backward, or "
            "leave the module that reads it where it is by exclude="
        )
    args = [_restored(value, storage_of) for value in entry.args]
    kwargs = {key: _restored(value, storage_of) for key, value in entry.kwargs.items()}
    with _as_then(entry, device):
        return storages_in(entry.function(*args, **kwargs))


@contextmanager
def _as_then(entry: Entry, device: torch.device) -> Iterator[None]:
    """Return a context with the random numbers and the default type that an operation had when it ran first."""
    generator = None if entry.generator is None else generator_state(device)
    dtype = torch.get_default_dtype()
    if entry.generator is not None:
        set_generator_state(device, entry.generator)
    if dtype != entry.dtype:
        torch.set_default_dtype(entry.dtype)
    try:
        yield
    finally:
        if generator is not None:
            set_generator_state(device, generator)
        if dtype != entry.dtype:
            torch.set_default_dtype(dtype)


def _restored(value: Any, storage_of: Callable[[Activation], Storage]) -> Any:
    if isinstance(value, Reference):
        record = value.find()
        assert record is not None, "what an operation changes is there while it runs again"
        storage = storage_of(record)
        with unseen():
            return value.geometry.on(storage)
    return [_restored(item, storage_of) for item in value] if type(value) is list else value


def storages_in(result: Any) -> list[Storage]:
    """Return the storages of an operation's results, in order."""
    if type(result) is torch.Tensor and result.layout is torch.strided:
        return [result.untyped_storage()]
    return [storage for tensor in tensors_in(result) for storage in storages_of(tensor)]


def rebuild_order(record: Activation) -> list[Activation]:
    """Return what must be brought back, parents first, to have `record`, which is the last."""
    order: list[Activation] = []
    seen: set[Activation] = set()
    stack = [(record, False)]
    while stack:
        one, parents_done = stack.pop()
        if parents_done:
            order.append(one)
        elif one not in seen:
            seen.add(one)
            stack.append((one, True))
            if one.ready is None and not one.on_host:
                stack += [(parent, False) for entry in one.entries for parent in entry.parents]
    return order
