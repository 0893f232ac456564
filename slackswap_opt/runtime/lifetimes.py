"""From what a step did to an instance: whole lifetimes as in plain training, and where something else holds a storage.

In the traced step everything that autograd saves is swapped out at once. A storage then dies when Python, a cache or a
module lets go of it, its natural death, and lives again from the moment autograd asks for it until its backward operations
are done. In plain training it lives from its birth to the last of all of this, or to the moment when autograd lets go of what
it saved. It can be away from the device only between those lives.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.runtime.kinds import kind_of
from slackswap_opt.runtime.signatures import ALLOCATIONS
from slackswap_opt.runtime.trace import Call, Storage, Trace


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is known of a tensor of a profile beyond the instance.

    Attributes
    ----------
    maker, output
        Which result of which operation it is: how the runtime knows it.
    path, layer
        The module whose operation made it, and the layer around that, or None.
    shape, dtype
        Of the tensor that its maker returned.
    lives
        Stretches (first, end) of operations in which something other than autograd's saved tensors holds it; the end is one
        after the last, and the number of operations where the step's own end comes first.
    death
        The operation before which it is gone in plain training; the number of operations if it outlives the step.
    packs, unpacks
        Between which operations autograd saves a tensor on it, and asks for one: the index of the next operation.
    writers
        The operations that write it, in order; more than one works in place.
    late
        Whether it is written after it was saved.
    fixed
        Why it cannot move, or an empty string.
    """

    maker: int
    output: int
    path: str
    layer: str | None
    shape: tuple[int, ...]
    dtype: str
    lives: tuple[tuple[int, int], ...]
    death: int
    packs: tuple[int, ...]
    unpacks: tuple[int, ...]
    writers: tuple[int, ...]
    late: bool
    fixed: str


@dataclass(frozen=True, slots=True)
class OperationFacts:
    """What is known of an operation of a profile beyond the instance.

    Attributes
    ----------
    function
        The operator, as in ``aten.mm.default``.
    path
        The module that ran; in backward, the one whose operation is differentiated.
    random
        Whether it draws random numbers.
    view
        Whether it only looks at storages that exist: it writes nothing and takes no time.
    obstacle
        Why it is never run again, or an empty string.
    """

    function: str
    path: str
    random: bool
    view: bool
    obstacle: str


class Lifetimes:
    """Builds an instance from a trace.

    Parameters
    ----------
    trace
        What the step did.
    device
        The storages that count are those on it.
    """

    def __init__(self, trace: Trace, device: torch.device) -> None:
        self.calls = trace.calls
        self.storages = [storage for storage in trace.storages if storage.device == device]
        self.numbers = {storage.number: i for i, storage in enumerate(self.storages)}
        self.makers = [storage.maker for storage in trace.storages]
        self.end = len(trace.calls)
        self.reads = [self._mine(call.reads) for call in trace.calls]
        self.writes = [self._mine(call.writes) for call in trace.calls]
        self.writers: list[list[int]] = [[] for _ in self.storages]
        self.accesses: list[set[int]] = [set() for _ in self.storages]
        for t, (read, written) in enumerate(zip(self.reads, self.writes, strict=True)):
            for i in written:
                self.writers[i].append(t)
            for i in (*read, *written):
                self.accesses[i].add(t)
        self.obstacles = self._obstacles()
        self.fixed = [self._fixed(storage) for storage in self.storages]
        self.numbered = any(call.place.numbered for call in trace.calls)

    def rescale(self, total: int) -> None:
        """Scale the durations so that they add up to `total` nanoseconds, less than one each for rounding."""
        measured = [t for t in range(self.end) if not self.is_view(t)]
        whole = sum(self.calls[t].duration for t in measured)
        for t in measured if whole else ():
            self.calls[t].duration = self.calls[t].duration * total // whole

    def instance(self, name: str, link: Link) -> Instance:
        """Return the step as an instance."""
        names = _unique(self._label(call) for call in self.calls)
        siblings = Counter(storage.maker for storage in self.storages)
        tensors = []
        for i, storage in enumerate(self.storages):
            suffix = f".{storage.output}" if siblings[storage.maker] > 1 else ""
            kind = kind_of(storage, self.calls, tuple(self.writers[i]))
            tensors.append(Tensor(f"{names[storage.maker]}{suffix}", storage.size, not self.fixed[i], kind, self._held(i)))
        operations = []
        for t, call in enumerate(self.calls):
            reads = dict.fromkeys((*self.reads[t], *(i for i in self.writes[t] if self.writers[i][0] != t)))
            operations.append(
                Operation(
                    names[t],
                    0 if self.is_view(t) else call.duration,
                    tuple(reads),
                    self.writes[t],
                    call.workspace,
                    not self.obstacles[t],
                    "backward" if call.backward else "forward",
                    self.layer(call),
                )
            )
        return Instance(name, tuple(tensors), tuple(operations), link)

    def tensor_facts(self) -> tuple[TensorFacts, ...]:
        """Return what is known of each tensor beyond the instance."""
        return tuple(
            TensorFacts(
                storage.maker,
                storage.output,
                self.calls[storage.maker].place.path,
                self.layer(self.calls[storage.maker]),
                storage.shape,
                storage.dtype,
                tuple(self._lives(storage)),
                self._death(storage),
                tuple(storage.packs),
                tuple(storage.unpacks),
                tuple(self.writers[i]),
                storage.late,
                self.fixed[i],
            )
            for i, storage in enumerate(self.storages)
        )

    def operation_facts(self) -> tuple[OperationFacts, ...]:
        """Return what is known of each operation beyond the instance."""
        return tuple(
            OperationFacts(call.function, call.place.path, call.random, self.is_view(t), self.obstacles[t])
            for t, call in enumerate(self.calls)
        )

    def is_view(self, t: int) -> bool:
        """Return whether operation `t` only looks at what exists."""
        call = self.calls[t]
        return not (call.writes or call.outside_writes or call.obstacle)

    def layer(self, call: Call) -> str | None:
        """Return the layer of an operation: one of a numbered series if the model has any, else a part of the whole model."""
        return call.place.layer if call.place.numbered or not self.numbered else None

    def _mine(self, numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.numbers[n] for n in numbers if n in self.numbers)

    def _label(self, call: Call) -> str:
        label = f"{call.place.path}.{call.short}" if call.place.path else call.short
        return f"{label}.backward" if call.backward else label

    def _lives(self, storage: Storage) -> list[tuple[int, int]]:
        return [(start, self.end if end is None else end) for start, end in storage.lives]

    def _death(self, storage: Storage) -> int:
        released = self.end if storage.released is None else storage.released
        return max(released, *(end for _, end in self._lives(storage)))

    def _held(self, i: int) -> tuple[tuple[int, int], ...]:
        """Return where something holds the tensor: its lives, as far as it could be away meanwhile, and before its death."""
        death = self._death(self.storages[i])
        held: list[tuple[int, int]] = []
        if not self.fixed[i] or not any(self.obstacles[t] for t in self.writers[i]):
            for start, end in self._lives(self.storages[i]):
                # A tensor that autograd asked for and let go before any other operation began was there at that moment.
                first, last = (start, end - 1) if end > start else (min(start, death - 1),) * 2
                idle = any(t not in self.accesses[i] for t in range(first, last + 1))
                if idle and (not held or first > held[-1][1]):
                    held.append((first, last))
        last_access = max(*self.accesses[i], *(last for _, last in held)) if held else max(self.accesses[i])
        if death - 1 > last_access:
            held.append((death - 1, death - 1))
        return tuple(held)

    def _fixed(self, storage: Storage) -> str:
        maker = self.calls[storage.maker]
        if storage.obstacle:
            return storage.obstacle
        if not maker.graph and not storage.packs:
            return "it belongs to the backward pass"
        if self._lives(storage)[0][1] == self.end:
            return "something holds it until the step ends"
        return ""

    def _obstacles(self) -> list[str]:
        """Return for each operation why it is never run again: what the call said, or what the rest of the step adds."""
        foreign_reads, foreign_writes = zip(*map(self._foreign, range(self.end)), strict=True)
        last_write = {n: t for t, numbers in enumerate(foreign_writes) for n in numbers}
        obstacles = []
        for t, call in enumerate(self.calls):
            reason = call.obstacle
            if not reason and not call.graph:
                reason = "it belongs to the backward pass"
            elif not reason and foreign_writes[t]:
                reason = "it changes a tensor from outside of the step"
            elif not reason and any(last_write.get(n, -1) > t for n in foreign_reads[t]):
                reason = "it reads a tensor from outside of the step that is written later"
            elif not reason and call.short in ALLOCATIONS and any(map(self._filled_out_of_sight, self.writes[t])):
                reason = "what it allocates is filled out of sight"
            obstacles.append(reason)
        return obstacles

    def _foreign(self, t: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what operation `t` reads and changes outside: before the step, or on another device."""
        call = self.calls[t]
        elsewhere = [n for n in call.writes if n not in self.numbers and self.makers[n] != t]
        return (*call.outside_reads, *(n for n in call.reads if n not in self.numbers)), (*call.outside_writes, *elsewhere)

    def _filled_out_of_sight(self, i: int) -> bool:
        """Return whether the first to touch an allocation only reads it: contents came from where no operator was seen."""
        first, *later = sorted(self.accesses[i])
        return bool(later and self.storages[i].size and later[0] not in self.writers[i]) and first == self.writers[i][0]


def _unique(labels: Iterable[str]) -> list[str]:
    """Return the labels, from the second of its kind on with its count."""
    seen: Counter[str] = Counter()
    names = []
    for label in labels:
        seen[label] += 1
        names.append(label if seen[label] == 1 else f"{label}#{seen[label]}")
    return names
