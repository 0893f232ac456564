"""The clock of a step: one index over the ATen operations that it runs, forward and backward alike.

Operations of the ``prim`` namespace are questions about tensors, asked more often under some modes than under others: they do
not count, and neither does what runs while the clock is paused, such as the copies of a hook.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Clock(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of a step and hands each to `operate`.

    Attributes
    ----------
    index
        How many operations have begun: between two operations, the index of the next one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.index = 0
        self._paused = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context in which operations run without being seen."""
        # A plain attribute, not a thread's own: backward may run on another thread, but only one runs at any time.
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._paused or function.namespace == "prim":
            return function(*args, **(kwargs or {}))
        index = self.index
        self.index += 1
        return self.operate(index, function, args, kwargs or {})

    def operate(self, index: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run operation `index` and return its result."""
        return function(*args, **kwargs)


class BackwardCall(NamedTuple):
    """A call of autograd's engine: its entry, and what it is called with."""

    engine: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Border:
    """Where a step begins and ends: clock and hooks are active inside, and in backward passes wherever they run.

    Parameters
    ----------
    clock
        Active inside of `active`, and in every backward pass from `open` to `close`, or to the end of this object.
    pack, unpack
        The hooks for tensors that autograd saves meanwhile.
    """

    def __init__(self, clock: Clock, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]) -> None:
        self._clock, self._pack, self._unpack = clock, pack, unpack
        self._active = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Return a context in which the clock runs and saved tensors pass the hooks."""
        if self._active:
            yield
            return
        self._active = True
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack), self._clock:
                yield
        finally:
            self._active = False

    def backward(self, call: BackwardCall) -> AbstractContextManager[None]:
        """Return a context for one backward pass."""
        return self.active()

    def open(self) -> None:
        """Catch the backward passes that begin from now on."""
        if not _open:
            _catch_backward()
        _open.append(weakref.ref(self, _forget))

    def close(self) -> None:
        """Catch no more backward passes."""
        for reference in [reference for reference in _open if reference() is self]:
            _forget(reference)


# torch.autograd.backward and grad look the engine's entry up in their own module at each call; there is no public place
# between a call of backward and the engine. `torch.compiler` replaces the same two names.
_open: list[weakref.ref[Border]] = []
_engine: list[Callable[..., Any]] = []


def _run_backward(*args: Any, **kwargs: Any) -> Any:
    call = BackwardCall(_engine[0], args, kwargs)
    with ExitStack() as stack:
        for border in [reference() for reference in _open]:
            if border is not None:
                stack.enter_context(border.backward(call))
        return call.engine(*args, **kwargs)


def _catch_backward() -> None:
    _engine.append(torch.autograd.graph._engine_run_backward)
    _set_engine(_run_backward)


def _forget(reference: weakref.ref[Border]) -> None:
    if reference in _open:
        _open.remove(reference)
        if not _open:
            _set_engine(_engine.pop())


def _set_engine(run: Callable[..., Any]) -> None:
    torch.autograd.graph._engine_run_backward = run
    torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]


def backward_running() -> bool:
    """Return whether autograd's engine is running on this thread."""
    return torch._C._current_graph_task_id() != -1
