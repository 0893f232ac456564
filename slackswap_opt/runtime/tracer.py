"""Follows one step: every storage from birth to death, while everything that autograd saves is swapped out at once."""

import weakref
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch._C import _autograd

from slackswap_opt.runtime.clock import Clock, backward_running
from slackswap_opt.runtime.copies import Copies
from slackswap_opt.runtime.modules import NOWHERE, Modules, Place
from slackswap_opt.runtime.refusals import refuse_tensor
from slackswap_opt.runtime.saved import kept, overwritten, unkept
from slackswap_opt.runtime.signatures import (
    NAMESPACE,
    Signature,
    inside_custom_function,
    obstacle,
    signature,
)
from slackswap_opt.runtime.storage import OUTSIDE, Geometry, Storages, is_plain, storages_of, tensors_in
from slackswap_opt.runtime.trace import Call, Storage, Trace


class Measure(Protocol):
    """How an operation is run and measured."""

    def run(self, call: Signature, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int, int]:
        """Return the operation's result, its duration in nanoseconds, and the most bytes that it held beyond those before."""


class Guard(Protocol):
    """Who is told before something outside of the step changes, so that it can be put back."""

    def before_write(self, storage: torch.UntypedStorage) -> None:
        """Note a storage that is about to be written."""

    def before_gradient(self, leaf: torch.Tensor) -> None:
        """Note a leaf whose gradient is about to change."""


class Handle:
    """What stands in the place of a saved tensor: which storage, and the tensor's geometry."""

    __slots__ = ("__weakref__", "geometry", "requires", "storage", "version", "versions")

    def __init__(self, storage: Storage, tensor: torch.Tensor, versions: torch.Tensor | None) -> None:
        self.storage, self.geometry = storage, Geometry.of(tensor)
        self.versions, self.version = versions, tensor._version if versions is not None else 0


class Tracer(Clock):  # type: ignore[no-untyped-call]
    """A clock that writes down what it sees.

    Parameters
    ----------
    measure
        Runs operations.
    guard
        Is told of what changes outside.
    modules
        Says which module runs.
    copies
        Keeps what autograd saves.
    """

    def __init__(self, measure: Measure, guard: Guard, modules: Modules, copies: Copies) -> None:
        super().__init__()
        self.trace = Trace()
        self._measure, self._guard, self._modules, self._copies = measure, guard, modules, copies
        self._storages: Storages[Storage] = Storages(self._died)
        self._handles: dict[weakref.ref[Handle], Storage] = {}
        self._counts: dict[Storage, int] = {}
        self._places: dict[int, Place] = {}
        self._last = NOWHERE
        self._outside = 0
        self._sequence = _autograd._get_sequence_nr()
        self._ended = False

    def operate(self, index: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run operation `index` and write it down."""
        args, kwargs = self._copies.admitted((args, kwargs))
        known = signature(function)
        call = Call(known.name, known.short, self._place(), backward_running(), torch.is_grad_enabled())
        call.graph |= not call.backward
        call.random, call.obstacle = known.random, obstacle(known, args, kwargs)
        call.custom = function.namespace != NAMESPACE and inside_custom_function()
        if not call.obstacle and call.custom:
            call.obstacle = "it runs inside a custom autograd Function"
        self.trace.calls.append(call)
        # Only records from here on, never a storage: whatever this frame held would die late.
        lifted = self._births(index, args) if known.short == "lift_fresh" else []
        reads = [record for record in self._found((args, kwargs)) if record not in lifted]
        changes = list(self._found(list(known.changes(args, kwargs))))
        leaf_gradient = self._warn(call, changes)
        result, call.duration, peak = self._measure.run(known, function, args, kwargs)
        if not call.obstacle and lifted:
            call.obstacle = "it lets in a tensor that Python code made"
        elif not call.obstacle and any(record.borrowed for record in reads):
            call.obstacle = "it reads memory that is not PyTorch's, where writes are not counted"
        elif not call.obstacle and not all(map(is_plain, tensors_in((args, kwargs, result)))):
            call.obstacle = "it takes or makes a tensor that is more than a storage and a shape"
        born = [*lifted, *self._births(index, result)]
        for record in changes:
            self._changed(record)
        for record in [*born, *reads] if leaf_gradient and known.short == "detach" else born if leaf_gradient else ():
            record.parameter_gradient = True
        call.workspace = max(0, peak - sum(record.size for record in born))
        call.reads, call.outside_reads = _numbers(reads)
        call.writes, call.outside_writes = _numbers([*born, *changes])
        return result

    def pack(self, tensor: torch.Tensor) -> Any:
        """Swap out what autograd saves: return a handle in its place, or what keeps it if it is none of the step's own."""
        with self.paused():
            storages = [self._storages.find(s) for s in storages_of(tensor)]
            own = [s for s in storages if s is not None and s.maker != OUTSIDE]
            for storage in own:
                storage.packs.append(self.index)
            if not is_plain(tensor):
                for storage in own:
                    storage.obstacle = f"it is saved as a {type(tensor).__name__} of layout {tensor.layout}"
            self.trace.nested |= backward_running()
            if not own or not is_plain(tensor):
                return kept(tensor)
            handle = Handle(own[0], tensor, self._copies.versions(tensor))
            self._handles[weakref.ref(handle, self._let_go)] = own[0]
            self._counts[own[0]] = self._counts.get(own[0], 0) + 1
            if own[0] not in self._copies:
                self._copies.save(own[0])
            return handle

    def unpack(self, saved: Any) -> torch.Tensor:
        """Return the saved tensor, brought back if its storage is gone."""
        if not self._ended:
            self.trace.asked.append((self.index, saved.storage.number if isinstance(saved, Handle) else OUTSIDE))
        if not isinstance(saved, Handle):
            return unkept(saved)
        with self.paused():
            record = saved.storage
            if saved.versions is not None and saved.versions._version != saved.version:
                what = f"{record.dtype} {list(record.shape)}, output {record.output} of operation {record.maker}"
                raise overwritten(what, saved.versions._version, saved.version)
            storage = record.storage
            if storage is None:
                storage = self._copies.restored(record)
                self._storages.attach(record, storage)
                if not self._ended:
                    record.lives.append((self.index, None))
            if not self._ended:
                record.unpacks.append(self.index)
            return self._copies.view(saved.geometry, storage)

    def end(self) -> Trace:
        """Close the step: what is alive now outlives it."""
        self._ended = True
        self._finish_custom_functions()
        for storage in self.trace.storages:
            # Whether something lives until the step ends or until the next one begins makes no difference to either.
            if storage in self._counts or (storage.packs and storage.released == self.index):
                storage.released = None
            if storage.lives[-1][1] == self.index:
                storage.lives[-1] = (storage.lives[-1][0], None)
        return self.trace

    def _finish_custom_functions(self) -> None:
        """Let the last operation inside of a custom Function write what those before it there made.

        A kernel that no operator stands for may write until then: no copy is to be made before.
        """
        made: list[int] = []
        for call, following in pairwise([*self.trace.calls, None]):
            assert call is not None
            if call.custom and not call.backward:
                if following is not None and following.custom and not following.backward:
                    made += [n for n in call.writes if n not in made and n not in following.writes]
                    continue
                call.writes = (*call.writes, *(n for n in made if n not in call.writes))
            made = []

    def left(self) -> tuple[int, int]:
        """Return how many of the step's storages are still alive that are no leaf's gradient, and their bytes."""
        alive = [s for s in self.trace.storages if s.storage is not None and not s.parameter_gradient]
        return len(alive), sum(s.size for s in alive)

    def _found(self, value: Any) -> Iterator[Storage]:
        for tensor in tensors_in(value):
            refuse_tensor(tensor)
            for storage in storages_of(tensor):
                yield self._storages.find(storage) or self._add(OUTSIDE, 0, tensor, storage)

    def _births(self, index: int, result: Any) -> list[Storage]:
        born, output = [], 0
        for tensor in tensors_in(result):
            for storage in storages_of(tensor):
                if self._storages.find(storage) is None:
                    born.append(self._add(index, output, tensor, storage))
                output += 1
        return born

    def _add(self, maker: int, output: int, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Storage:
        if maker == OUTSIDE:
            self._outside -= 1
        record = Storage(maker, output, self._outside if maker == OUTSIDE else len(self.trace.storages), tensor)
        self._storages.attach(record, storage)
        record.borrowed = maker == OUTSIDE and not isinstance(tensor, torch.nn.Parameter) and not storage.resizable()
        if maker != OUTSIDE:
            self.trace.storages.append(record)
            record.lives.append((maker, None))
        return record

    def _died(self, storage: Storage) -> None:
        if not self._ended and storage.lives:
            storage.lives[-1] = (storage.lives[-1][0], self.index)

    def _let_go(self, reference: weakref.ref[Handle]) -> None:
        storage = self._handles.pop(reference)
        self._counts[storage] -= 1
        if not self._counts[storage]:
            del self._counts[storage]
            self._copies.forget(storage)
            if not self._ended:
                storage.released = self.index

    def _warn(self, call: Call, changes: list[Storage]) -> bool:
        """Tell the guard what is about to change outside; return whether a leaf's gradient is."""
        for record in changes:
            if record.maker == OUTSIDE and record.storage is not None:
                self._guard.before_write(record.storage)
        node = torch._C._current_autograd_node() if call.backward else None
        if node is None or node.name() != "torch::autograd::AccumulateGrad":
            return False
        leaf = node.variable  # type: ignore[attr-defined]
        if all(record is None or record.maker == OUTSIDE for record in map(self._storages.find, storages_of(leaf))):
            self._guard.before_gradient(leaf)
        return True

    def _changed(self, record: Storage) -> None:
        storage = record.storage
        if storage is None or record.maker == OUTSIDE:
            return
        record.size = max(record.size, storage.nbytes())
        if record in self._counts:
            record.late = True
            self._copies.save(record)

    def _place(self) -> Place:
        """Return where the model is: by autograd's number of the forward operation while its engine runs."""
        number = _autograd._get_sequence_nr()
        node = torch._C._current_autograd_node() if backward_running() else None
        if node is not None:
            self._last = self._places.get(node._sequence_nr(), self._last)
        elif not backward_running():
            self._last = self._modules.place
        for new in range(self._sequence, number):
            self._places[new] = self._last
        self._sequence = number
        return self._last


def _numbers(records: Iterable[Storage]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the numbers of the step's own storages and of those outside, each once."""
    numbers = dict.fromkeys(record.number for record in records)
    return tuple(n for n in numbers if n >= 0), tuple(n for n in numbers if n < 0)
