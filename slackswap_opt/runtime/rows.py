"""Where the memory of a step goes: its tensors by module and kind, with what it would cost to be without them."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from slackswap_opt.instance import Instance
from slackswap_opt.runtime.lifetimes import OperationFacts, TensorFacts


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Tensors of one kind from the modules of one path.

    Attributes
    ----------
    path
        Of the modules, with a star for every part that is a number: ``layers.*.attention``.
    kind
        As of the instance's tensors.
    tensors
        How many they are.
    size
        Bytes of all of them.
    at_peak
        Bytes of those that are alive at the step's unconstrained peak.
    recompute_time
        Nanoseconds of the operations that write them, each once; what those read is taken to be there.
    idle_time
        Nanoseconds of their longest stretches without access, on average by bytes.
    movable, rebuildable
        Bytes of those that may be copied to the host, and of those whose operations can run again.
    reason
        The commonest reason why one of them can do neither, or an empty string.
    """

    path: str
    kind: str
    tensors: int
    size: int
    at_peak: int
    recompute_time: int
    idle_time: int
    movable: int
    rebuildable: int
    reason: str


def memory_rows(
    instance: Instance, tensors: Sequence[TensorFacts], operations: Sequence[OperationFacts]
) -> tuple[MemoryRow, ...]:
    """Return the tensors of a step by module and kind, those that weigh most at the peak first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, (tensor, facts) in enumerate(zip(instance.tensors, tensors, strict=True)):
        groups.setdefault((re.sub(r"(?<![^.])\d+(?![^.])", "*", facts.path), tensor.kind), []).append(i)
    clock = [0, *accumulate(operation.duration for operation in instance.operations)]
    longest = [_longest_stretch(accesses, clock) for accesses in instance.accesses]
    memory = instance.keep_all_memory
    peak = max(range(len(memory)), key=memory.__getitem__, default=0)
    rows = [_row(instance, tensors, operations, key, members, peak, longest) for key, members in groups.items()]
    return tuple(sorted(rows, key=lambda row: (-row.at_peak, -row.size, row.path, row.kind)))


def _row(
    instance: Instance,
    tensors: Sequence[TensorFacts],
    operations: Sequence[OperationFacts],
    key: tuple[str, str],
    members: list[int],
    peak: int,
    longest: list[int],
) -> MemoryRow:
    sizes = {i: instance.tensors[i].size for i in members}
    size = sum(sizes.values())
    writers = {t for i in members for t in instance.writers[i]}
    alive = [i for i in members if instance.accesses[i][0] <= peak <= instance.accesses[i][-1]]
    reasons: Counter[str] = Counter()
    for i in members:
        if not instance.tensors[i].swappable and not instance.rebuildable[i]:
            why = tensors[i].fixed or next((operations[t].obstacle for t in instance.writers[i] if operations[t].obstacle), "")
            reasons[why] += sizes[i]
    return MemoryRow(
        path=key[0],
        kind=key[1],
        tensors=len(members),
        size=size,
        at_peak=sum(sizes[i] for i in alive),
        recompute_time=sum(instance.operations[t].duration for t in writers),
        idle_time=sum(sizes[i] * longest[i] for i in members) // size if size else 0,
        movable=sum(sizes[i] for i in members if instance.tensors[i].swappable),
        rebuildable=sum(sizes[i] for i in members if instance.rebuildable[i]),
        reason=max(reasons, key=lambda why: (reasons[why], why), default=""),
    )


def _longest_stretch(accesses: tuple[int, ...], clock: list[int]) -> int:
    """Return the nanoseconds of the longest time between two accesses, by the clock at the start of each operation."""
    ends = [clock[t + 1] for t in accesses]
    return max((clock[accesses[k + 1]] - ends[k] for k in range(len(accesses) - 1)), default=0)
