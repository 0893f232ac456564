"""A meter of steps under a program, which shares nothing with the runtime: at every moment, the bytes that are really held.

It lies below the runtime's own dispatch mode, so that it sees the runtime's allocations too. A storage counts from the
operation that returns it until a weak reference to it dies. The host's memory is there before, so it does not count.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from slackswap_opt.runtime.execute import Execution
from slackswap_opt.runtime.program import Program
from slackswap_opt.schedule import Action


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what was made under it and is still alive.

    Attributes
    ----------
    held
        Bytes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        lifted = function is torch.ops.aten.lift_fresh.default
        self.look((args, kwargs), counts=lifted)
        result = function(*args, **(kwargs or {}))
        self.look(result, counts=True)
        return result

    def look(self, values: Any, *, counts: bool) -> None:
        """Notice the storages in arguments or results."""
        for tensor in _pytree.tree_leaves(values):
            if isinstance(tensor, torch.Tensor):
                for storage in _storages(tensor):
                    if storage not in self._seen:
                        self._seen.add(storage)
                        if counts:
                            self.held += storage.nbytes()
                            weakref.finalize(storage, self._lose, storage.nbytes())

    def _lose(self, size: int) -> None:
        self.held -= size


class Scale(Alive):  # type: ignore[no-untyped-call]
    """Compares, after every instruction and around every operation, what is held with what the judge says.

    Attributes
    ----------
    readings
        How many comparisons were made.
    faults
        Those that differ: what was done, its position in the schedule, the bytes held, and those expected.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.readings = 0
        self.faults: list[tuple[str, int, int, int]] = []
        self._resident = program.timeline.resident
        self._runs: list[int] = []
        for n, (action, target) in enumerate(program.schedule.instructions):
            if action is Action.RUN and target == len(self._runs):
                self._runs.append(n)
        self._operations = 0
        self._execution: Execution | None = None

    @contextmanager
    def weighing(self, execution: Execution) -> Iterator[None]:
        """Return a context for a step that is all in the runtime's scope."""
        self._execution = execution
        with self:
            yield
        self._execution = None

    def instruction(self, number: int) -> None:
        """Compare after an instruction that was carried out."""
        self._compare("instruction", number)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "prim":
            return function(*args, **(kwargs or {}))
        execution = self._execution
        ours = execution is not None and execution.on and not execution._paused
        number = self._runs[self._operations] if ours else -1
        self._operations += ours
        lifted = function is torch.ops.aten.lift_fresh.default
        if ours and not lifted:
            self._compare("before", number - 1)
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if ours:
            self._compare("after", number)
        return result

    def _compare(self, when: str, number: int) -> None:
        self.readings += 1
        expected = self._resident[number] if number >= 0 else 0
        if self.held != expected:
            self.faults.append((when, number, self.held, expected))


def _storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    parts = [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]
    return [part.untyped_storage() for part in parts]
