"""Two meters of plain training, which share nothing with the profiler: each says how many bytes every operation finds.

`living` counts storages, from the operation that returns them until a weak reference to them dies. `allocated` adds up what the
CPU's allocator gave and took back, as `torch.profiler` reports it, and so sees inside of operations too.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Reading(NamedTuple):
    """An operator, and the bytes while it ran."""

    function: str
    size: int


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Living(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reads after every operation what all storages hold that operations returned and that are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.readings: list[Reading] = []
        self.total = 0
        self.seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "prim":
            return function(*args, **(kwargs or {}))
        self.look((args, kwargs), counts=function is torch.ops.aten.lift_fresh.default)
        result = function(*args, **(kwargs or {}))
        self.look(result, counts=True)
        self.readings.append(Reading(str(function), self.total))
        return result

    def look(self, values: Any, *, counts: bool) -> None:
        for tensor in _pytree.tree_leaves(values):
            if isinstance(tensor, torch.Tensor):
                for storage in map(torch.Tensor.untyped_storage, _dense(tensor)):
                    if storage not in self.seen:
                        self.seen.add(storage)
                        if counts:
                            self.total += storage.nbytes()
                            weakref.finalize(storage, self.lose, storage.nbytes())

    def lose(self, size: int) -> None:
        self.total -= size


def _dense(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]


def living(step: Callable[[], object]) -> list[Reading]:
    """Return for each operation of `step` the bytes of the storages that it finds or makes."""
    meter = Living()
    with without_collector(), meter:
        step()
    return meter.readings


class _Marks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.functions: list[str] = []
        self.lifted: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "prim":
            return function(*args, **(kwargs or {}))
        if function is torch.ops.aten.lift_fresh.default:
            self.lifted[len(self.functions)] = args[0].data_ptr()
        self.functions.append(str(function))
        with record_function(f"operation {len(self.functions) - 1}"):
            return function(*args, **(kwargs or {}))


def allocated(step: Callable[[], object]) -> list[Reading]:
    """Return for each operation of `step` the most bytes that were allocated while it ran.

    What is allocated between operations does not count: the numbers that Python code passes to operators, as tensors of 8
    bytes, and states of random number generators. They lie on the host also where the step does not. What `torch.tensor` makes
    does count, from the operation that lets it in.
    """
    marks = _Marks()
    with without_collector(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, marks:
        step()
    return [Reading(*pair) for pair in zip(marks.functions, _peaks(_events(profiler), marks), strict=True)]


def untouched_peak(step: Callable[[], object]) -> int:
    """Return the most bytes that `step` holds where no dispatch mode is active at all."""
    with without_collector(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    held = peak = 0
    for event in _events(profiler):
        held += event.size
        peak = max(peak, held)
    return peak


class _Event(NamedTuple):
    """The begin or end of an operation, by its number, or an allocation or release of bytes, by their address."""

    time: int
    kind: str
    number: int
    size: int = 0


def _events(profiler: profile) -> list[_Event]:
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    return sorted(_under(profiler.profiler.kineto_results.experimental_event_tree()), key=lambda event: event.time)


def _under(nodes: Any) -> Iterator[_Event]:
    for node in nodes:
        number = int(node.name.removeprefix("operation ")) if node.name.startswith("operation ") else -1
        if number >= 0:
            yield _Event(node.start_time_ns, "begin", number)
        if str(node.tag).endswith("Allocation"):
            yield _Event(node.start_time_ns, "memory", node.extra_fields.ptr, node.extra_fields.alloc_size)
        yield from _under(node.children)
        if number >= 0:
            yield _Event(node.end_time_ns, "end", number)


def _peaks(events: list[_Event], marks: _Marks) -> list[int]:
    counted: dict[int, int] = {}
    apart: dict[int, int] = {}
    peaks = [0] * len(marks.functions)
    held, current = 0, -1
    for _, kind, number, size in events:
        if kind == "begin":
            current = number
            lifted = marks.lifted.get(number)
            if lifted in apart:
                counted[lifted] = apart.pop(lifted)
                held += counted[lifted]
        elif kind == "end":
            current = -1
        elif size > 0:
            (counted if current >= 0 else apart)[number] = size
            held += size if current >= 0 else 0
        elif number in counted:
            held -= counted.pop(number)
        else:
            apart.pop(number, None)
        if current >= 0:
            peaks[current] = max(peaks[current], held)
    return peaks
