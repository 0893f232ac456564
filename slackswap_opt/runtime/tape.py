"""What the runtime knows of the storages that it holds, and of the operations that can make them again.

References lead from saved tensors to storages, to the operations that made them, to the storages that those read; the other way
they are weak. So what can still be asked for stays reachable without any table, and goes with the last that can ask.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from slackswap_opt.runtime.storage import Geometry, Record, is_plain, storages_of, tensors_in
from slackswap_opt.runtime.transfers import Copy


class Activation(Record):
    """A storage of the step that the runtime holds.

    Attributes
    ----------
    number
        Of its tensor in the instance.
    held
        The storage, from its birth until it is evicted or dropped, else None.
    copy
        What the host has of it, or None.
    leaves_host
        Whether the copy is given up once it has arrived.
    writes, state
        How many operations have written it, and how many of them have run on the bytes that are on the device now.
    entries
        Those operations, if `complete`.
    complete
        Whether running `entries` in order makes it again.
    readers
        Recorded operations that read it, weakly.
    handles
        How many saved tensors stand for it.
    """

    __slots__ = (
        "__weakref__",
        "complete",
        "copy",
        "entries",
        "handles",
        "held",
        "leaves_host",
        "number",
        "readers",
        "state",
        "writes",
    )

    def __init__(self, maker: int, output: int, device: torch.device, number: int) -> None:
        super().__init__(maker, output, device)
        self.number = number
        self.held: torch.UntypedStorage | None = None
        self.copy: Copy | None = None
        self.leaves_host = False
        self.writes = self.state = self.handles = 0
        self.entries: list[Entry] = []
        self.complete = True
        self.readers: list[weakref.ref[Entry]] = []

    @property
    def ready(self) -> torch.UntypedStorage | None:
        """The storage, if it is on the device and all writers have run on it, else None."""
        return self.storage if self.state == self.writes else None

    @property
    def on_host(self) -> bool:
        """Whether the host has its bytes as the last writer left them."""
        return self.copy is not None and self.copy.state == self.writes

    def written(self, entry: "Entry | None") -> None:
        """Note another writer, recorded or not."""
        self.writes += 1
        self.state = self.writes
        if entry is None:
            self.complete = False
        else:
            self.entries.append(entry)


class Entry:
    """A recorded operation: everything that is needed to run it again.

    Attributes
    ----------
    operation
        Its index.
    function, args, kwargs
        The call, with storages of the step replaced by references.
    outside
        The tensors among its arguments that are none of the runtime's, with their versions and their storages' identities.
    parents
        The storages that it reads, its own results left out.
    births, targets
        Weak references to the storages that it makes, each with its place among the results, and to those that it changes.
    generator
        The state of the random number generator before it, if it draws from one.
    dtype
        The default type of floating-point numbers when it ran.
    """

    __slots__ = (
        "__weakref__",
        "args",
        "births",
        "dtype",
        "function",
        "generator",
        "kwargs",
        "operation",
        "outside",
        "parents",
        "targets",
    )

    def __init__(self, operation: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.operation, self.function, self.args, self.kwargs = operation, function, args, kwargs
        self.outside: list[tuple[torch.Tensor, int, int]] = []
        self.parents: list[Activation] = []
        self.births: list[tuple[int, weakref.ref[Activation]]] = []
        self.targets: list[weakref.ref[Activation]] = []
        self.generator: bytes | None = None
        self.dtype = torch.get_default_dtype()

    def changed_argument(self) -> tuple[torch.Tensor, int] | None:
        """Return an argument from outside of the step that was written or replaced since, with its version before, or None."""
        for tensor, version, storage in self.outside:
            if tensor._version != version or tensor.untyped_storage()._cdata != storage:
                return tensor, version
        return None

    def changes(self) -> Iterator[Activation]:
        """Yield what it changes in place and is still known."""
        return filter(None, (reference() for reference in self.targets))

    def results(self) -> Iterator[Activation]:
        """Yield what it makes or changes and is still known."""
        return filter(None, (*(reference() for _, reference in self.births), *self.changes()))


class Reference:
    """Stands for a tensor on a storage of the runtime's among the arguments of a recorded operation."""

    __slots__ = ("find", "geometry")

    def __init__(self, find: Callable[[], Activation | None], geometry: Geometry) -> None:
        self.find, self.geometry = find, geometry


class UnservedArgumentError(Exception):
    """An argument that cannot be recorded."""


Find = Callable[[torch.UntypedStorage], Activation | None]


def record_call(entry: Entry, find: Find, targets: tuple[Activation, ...]) -> None:
    """Replace the tensors in the arguments of `entry` by references, and note what it reads.

    Parameters
    ----------
    entry
        Made with the arguments as they were passed.
    find
        Returns what the runtime knows of a storage.
    targets
        What the operation changes in place: referred to weakly, since they will refer to the entry.

    Raises
    ------
    UnservedArgumentError
        If storages of the runtime's are parts of a tensor that is more than a storage and a geometry.
    """

    entry.args = tuple(_replaced(value, entry, find, targets) for value in entry.args)
    entry.kwargs = {key: _replaced(value, entry, find, targets) for key, value in entry.kwargs.items()}
    entry.targets = [weakref.ref(record) for record in targets]


def _replaced(value: Any, entry: Entry, find: Find, targets: tuple[Activation, ...]) -> Any:
    if isinstance(value, torch.Tensor):
        return _reference(value, entry, find, targets)
    if isinstance(value, (tuple, list)) and any(True for _ in tensors_in(value)):
        return [_replaced(item, entry, find, targets) for item in value]
    return value


def _reference(tensor: torch.Tensor, entry: Entry, find: Find, targets: tuple[Activation, ...]) -> Any:
    if not is_plain(tensor):
        if any(find(storage) is not None for storage in storages_of(tensor)):
            raise UnservedArgumentError(f"an argument is a {type(tensor).__name__} of layout {tensor.layout}")
        return tensor
    record = find(tensor.untyped_storage())
    if record is None:
        if not tensor.is_inference():
            entry.outside.append((tensor, tensor._version, tensor.untyped_storage()._cdata))
        return tensor
    if record in targets:
        return Reference(weakref.ref(record), Geometry.of(tensor))
    if record not in entry.parents:
        entry.parents.append(record)
        record.readers.append(weakref.ref(entry))
    return Reference(lambda: record, Geometry.of(tensor))


def is_needed(record: Activation) -> bool:
    """Return whether a saved tensor stands for the storage, or for one that is gone and can only be made again from it."""
    waiting, seen = [record], {record}
    while waiting:
        one = waiting.pop()
        if one.handles:
            return True
        for entry in filter(None, (reference() for reference in one.readers)):
            for result in entry.results():
                if result not in seen and result.held is None and not result.on_host:
                    seen.add(result)
                    waiting.append(result)
    return False


def is_obtainable(record: Activation) -> bool:
    """Return whether the bytes could be brought back if the device lost them."""
    waiting, seen = [record], {record}
    while waiting:
        one = waiting.pop()
        if one.on_host or (one is not record and one.held is not None and one.state == one.writes):
            continue
        if not one.complete:
            return False
        for parent in (parent for entry in one.entries for parent in entry.parents):
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return True
