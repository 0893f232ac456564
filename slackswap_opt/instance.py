"""What is to be planned: one training step as operations over tensors, a link to the host, and a budget."""

import copy
import hashlib
import json
import os
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple, Self

from slackswap_opt.checks import check_instance, check_link
from slackswap_opt.files import (
    InputError,
    check_format,
    check_integer,
    check_type,
    parse_json,
    read_json,
    shown,
    shown_path,
    take,
    write_text,
)

Phase = Literal["forward", "backward"]
FORMAT, VERSION = "slackswap-instance", 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """A storage that the step allocates; views of it are not tensors of their own.

    Attributes
    ----------
    name
        Unique in its instance.
    size
        Bytes, 0 or more.
    swappable
        Whether it may be copied to host memory and back.
    kind
        What it is, for tables only, such as ``"norm output"``.
    held
        Stretches (first, last) of operations, in order, through which something outside the plan keeps it alive, such as a
        variable of the training script: from the first run of `first` to that of `last` it cannot leave the device.
    """

    name: str
    size: int
    swappable: bool = True
    kind: str = ""
    held: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the step.

    Attributes
    ----------
    name
        Unique in its instance.
    duration
        Nanoseconds, 0 or more.
    reads, writes
        Numbers of the tensors it reads and writes. One that writes a tensor which another wrote before works in place, and
        reads it too.
    workspace
        Bytes that are alive only while it runs.
    recomputable
        Whether it may run again with the same result.
    phase
        ``"forward"`` or ``"backward"``.
    block
        The layer that it belongs to, or None.
    """

    name: str
    duration: int
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    workspace: int = 0
    recomputable: bool = True
    phase: Phase = "forward"
    block: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """The connection between device and host memory.

    Attributes
    ----------
    offload_bandwidth, prefetch_bandwidth
        Bytes per second to the host and back, 1 or more.
    latency
        Nanoseconds that every copy takes besides its bytes.
    duplex
        Whether both directions work at once; otherwise they share one lane.
    """

    offload_bandwidth: int
    prefetch_bandwidth: int
    latency: int = 0
    duplex: bool = True

    def offload_time(self, size: int) -> int:
        """Nanoseconds to copy `size` bytes to the host: latency + ceil(size / bandwidth)."""
        return self.latency - (-size * 1_000_000_000 // self.offload_bandwidth)

    def prefetch_time(self, size: int) -> int:
        """Nanoseconds to copy `size` bytes back: latency + ceil(size / bandwidth)."""
        return self.latency - (-size * 1_000_000_000 // self.prefetch_bandwidth)


class GroupAccess(NamedTuple):
    """An operation on a tensor that several write: `before` of its writers precede the operation; it is one itself or not."""

    tensor: int
    before: int
    writes: bool


class IdleInterval(NamedTuple):
    """A stretch of a tensor's lifetime without access: after operation `start`, until operation `end`."""

    tensor: int
    start: int
    end: int


@dataclass(frozen=True)
class Instance:
    """One training step, what it allocates, and what it may use.

    Attributes
    ----------
    name
        For messages and tables.
    tensors, operations
        Referred to by their position. Operations run in this order, forward then backward.
    link
        The connection to host memory.
    budget
        Bytes that tensors and workspace may hold at any moment, or None for no limit.
    host_budget
        Bytes that copies on the host may hold at any moment, or None for no limit.

    Raises
    ------
    InputError
        If a field has a wrong type or range, a name stands twice, a tensor is read or held before it is written or never
        written, or an in-place writer does not read what it writes.
    """

    name: str
    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    link: Link
    budget: int | None = None
    host_budget: int | None = None

    def __post_init__(self) -> None:
        check_type(self.link, Link, "'link'", "a Link")
        for field, kind in (("tensors", Tensor), ("operations", Operation)):
            check_type(getattr(self, field), tuple, f"'{field}'", "a tuple")
            for n, member in enumerate(getattr(self, field)):
                check_type(member, kind, f"{field}[{n}]", f"a {kind.__name__}" if kind is Tensor else "an Operation")
        check_instance(self)

    @cached_property
    def writers(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the operations that write it, in order; those after the first write it in place."""
        writers: list[list[int]] = [[] for _ in self.tensors]
        for t, operation in enumerate(self.operations):
            for i in operation.writes:
                writers[i].append(t)
        return tuple(map(tuple, writers))

    @cached_property
    def accesses(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the operations that read or write it or hold it: its lifetime is from the first to the last."""
        accesses: list[list[int]] = [[] for _ in self.tensors]
        for t, operation in enumerate(self.operations):
            for i in {*operation.reads, *operation.writes}:
                accesses[i].append(t)
        for i, tensor in enumerate(self.tensors):
            if tensor.held:
                held = (t for first, last in tensor.held for t in range(first, last + 1))
                accesses[i] = sorted({*accesses[i], *held})
        return tuple(map(tuple, accesses))

    @cached_property
    def group_accesses(self) -> dict[int, tuple[GroupAccess, ...]]:
        """By operation, its accesses to tensors that several operations write; only where there are any."""
        groups: dict[int, list[GroupAccess]] = {}
        for i, writers in enumerate(self.writers):
            if len(writers) > 1:
                for t in self.accesses[i]:
                    groups.setdefault(t, []).append(GroupAccess(i, bisect_left(writers, t), t in writers))
        return {t: tuple(accesses) for t, accesses in groups.items()}

    @cached_property
    def wanted(self) -> tuple[tuple[int, ...], ...]:
        """For each operation what must be on the device at its first run: its reads, then what begins to be held there."""
        wanted = [operation.reads for operation in self.operations]
        for i, tensor in enumerate(self.tensors):
            for first, _ in tensor.held:
                if i not in wanted[first] and i not in self.operations[first].writes:
                    wanted[first] = (*wanted[first], i)
        return tuple(wanted)

    @cached_property
    def idle_intervals(self) -> tuple[IdleInterval, ...]:
        """Every stretch between two accesses that has an operation inside, by tensor and then by start."""
        return tuple(
            IdleInterval(i, start, end)
            for i, accesses in enumerate(self.accesses)
            for start, end in pairwise(accesses)
            if end > start + 1
        )

    @cached_property
    def rebuildable(self) -> tuple[bool, ...]:
        """For each tensor whether running its writers again, in order, gives it back once all of them have run.

        Every writer must be recomputable, must not change another tensor in place, and must read other tensors in the state
        in which their own last writer left them: earlier states are gone by then.
        """
        return tuple(all(self._gives_again(t, i) for t in writers) for i, writers in enumerate(self.writers))

    def _gives_again(self, t: int, tensor: int) -> bool:
        operation = self.operations[t]
        return operation.recomputable and all(self.writers[i][-1] < t for i in operation.reads if i != tensor)

    @cached_property
    def need(self) -> tuple[int, ...]:
        """For each operation the bytes of its reads, writes, workspace and what is held: no schedule can run it in less."""
        need = [operation.workspace for operation in self.operations]
        for tensor, accesses in zip(self.tensors, self.accesses, strict=True):
            for t in accesses:
                need[t] += tensor.size
        return tuple(need)

    @cached_property
    def keep_all_memory(self) -> tuple[int, ...]:
        """For each operation the bytes held while it runs when every tensor is kept through its lifetime."""
        change = [0] * (len(self.operations) + 1)
        for tensor, accesses in zip(self.tensors, self.accesses, strict=True):
            change[accesses[0]] += tensor.size
            change[accesses[-1] + 1] -= tensor.size
        return tuple(live + operation.workspace for live, operation in zip(accumulate(change), self.operations, strict=False))

    @cached_property
    def peak(self) -> int:
        """The unconstrained peak: the most bytes held at once when every tensor is kept through its lifetime."""
        return max(self.keep_all_memory, default=0)

    @cached_property
    def ideal(self) -> int:
        """Nanoseconds of the step with unlimited memory: the sum of all durations."""
        return sum(operation.duration for operation in self.operations)

    @cached_property
    def largest_need(self) -> int:
        """The most bytes that a single operation needs: no schedule fits in less."""
        return max(self.need, default=0)

    @cached_property
    def floor(self) -> tuple[int, ...]:
        """For each operation the bytes that every schedule holds meanwhile: its need, and live tensors that cannot leave.

        A tensor cannot leave if it is not swappable and one of the writers that have run cannot run again. That is less than
        what `can_recompute` asks for: bytes written so far can come back though a later writer cannot run again.
        """
        change = [0] * (len(self.operations) + 1)
        for tensor, start, end in self.idle_intervals:
            lost = any(t <= start and not self.operations[t].recomputable for t in self.writers[tensor])
            if lost and not self.tensors[tensor].swappable:
                change[start + 1] += self.tensors[tensor].size
                change[end] -= self.tensors[tensor].size
        return tuple(fixed + need for fixed, need in zip(accumulate(change), self.need, strict=False))

    def can_recompute(self, interval: IdleInterval) -> bool:
        """Return whether the tensor can be dropped in `interval` and rebuilt: all its writers have run, and can run again."""
        return self.rebuildable[interval.tensor] and self.writers[interval.tensor][-1] <= interval.start

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the structure: operations, reads, writes, workspaces, sizes, flags; no names, durations, link or budget."""
        structure = (
            [(tensor.size, tensor.swappable, *tensor.held) for tensor in self.tensors],
            [(o.reads, o.writes, o.workspace, o.recomputable) for o in self.operations],
        )
        return hashlib.sha256(json.dumps(structure, separators=(",", ":")).encode()).hexdigest()[:32]

    def with_budget(self, budget: int | None) -> Self:
        """Return this instance under another budget, in bytes."""
        if budget is not None:
            check_integer(budget, "'budget'")
        return self._changed("budget", budget)

    def with_link(self, link: Link) -> Self:
        """Return this instance behind another link."""
        check_type(link, Link, "'link'", "a Link")
        check_link(link)
        return self._changed("link", link)

    def _changed(self, field: str, value: object) -> Self:
        # A shallow copy keeps what was derived from operations and tensors: none of it depends on the link or the budget.
        changed = copy.copy(self)
        object.__setattr__(changed, field, value)
        return changed

    def to_json(self) -> str:
        """Return the instance as JSON text: a line each for a tensor and an operation."""
        head = {"format": FORMAT, "version": VERSION, "name": self.name, "budget": self.budget, "host_budget": self.host_budget}
        members = [f'"{key}": {json.dumps(value)}' for key, value in head.items()]
        members.append(f'"link": {json.dumps(_members(self.link))}')
        for key, rows in (("tensors", self.tensors), ("operations", self.operations)):
            lines = ",\n  ".join(json.dumps(_members(row)) for row in rows)
            members.append(f'"{key}": [\n  {lines}]' if rows else f'"{key}": []')
        return "{" + ",\n ".join(members) + "}\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the instance that `text` describes, or raise `InputError`."""
        return cls._from_data(parse_json(text))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the instance to a JSON file; raise `InputError` if it exists and `overwrite` is false."""
        write_text(path, self.to_json(), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the instance in a JSON file, or raise `InputError` naming file, field and value."""
        data = read_json(path)
        try:
            return cls._from_data(data)
        except InputError as error:
            raise InputError(f"{shown_path(path)}: {error}") from None

    @classmethod
    def _from_data(cls, data: Any) -> Self:
        required: dict[str, type] = {
            "format": str,
            "version": int,
            "name": object,
            "link": dict,
            "tensors": list,
            "operations": list,
        }
        members = take(data, "", required, {"budget": None, "host_budget": None})
        check_format(members, FORMAT, VERSION)
        link_keys: dict[str, type] = dict.fromkeys(("offload_bandwidth", "prefetch_bandwidth", "latency", "duplex"), object)
        return cls(
            name=members["name"],
            tensors=tuple(_tensor(row, f"tensors[{i}]") for i, row in enumerate(members["tensors"])),
            operations=tuple(_operation(row, f"operations[{t}]") for t, row in enumerate(members["operations"])),
            link=Link(**take(members["link"], "link", link_keys, {})),
            budget=members["budget"],
            host_budget=members["host_budget"],
        )


def _tensor(row: Any, where: str) -> Tensor:
    members = take(row, where, {"name": object, "size": object}, {"swappable": True, "kind": "", "held": []})
    if not isinstance(members["held"], list):
        raise InputError(f"{where}.held must be a list of pairs, got {shown(members['held'])}")
    members["held"] = tuple(tuple(stretch) if isinstance(stretch, list) else stretch for stretch in members["held"])
    return Tensor(**members)


def _operation(row: Any, where: str) -> Operation:
    defaults = {"workspace": 0, "recomputable": True, "phase": "forward", "block": None}
    members = take(row, where, {"name": object, "duration": object, "reads": list, "writes": list}, defaults)
    members["reads"], members["writes"] = tuple(members["reads"]), tuple(members["writes"])
    return Operation(**members)


def _members(row: Tensor | Operation | Link) -> dict[str, Any]:
    return {field: getattr(row, field) for field in row.__slots__ if field != "held" or getattr(row, field)}
