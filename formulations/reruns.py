"""What a re-run asks for: the operands whose life has ended, which must be held, fetched, or rebuilt in their turn.

A tensor's *tail* is the time after its last access. Only re-runs want it there. Operands that are still alive are in an idle
interval or being accessed, and are decided there.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slackswap_opt.formulations.presolve import Interval, Reduced
from slackswap_opt.instance import Instance


class Step(NamedTuple):
    """One of the stretches (after, by] in which the last re-run of a tensor within an interval, or within its tail, may lie.

    `interval` is a place in `Reduced.intervals`, or None for the tail of `tensor`; `number` counts its stretches.
    """

    tensor: int
    interval: int | None
    number: int
    after: int
    by: int


class Demand(NamedTuple):
    """A re-run in `step` or later reads a tensor past its last access: after `after`, and until `by` its result is there."""

    step: Step
    after: int
    by: int


@dataclass(slots=True)
class Tail:
    """The time after the last access of a tensor that re-runs may read.

    Attributes
    ----------
    tensor, start, size
        Its number, its last access, and its units of size.
    swap, recompute
        Whether it may be swapped, and the operations that rebuild it, none if it cannot be.
    cover
        Units of size that stay on the device, as this tensor or as what was rebuilt from it, until the interval ends for whose
        sake it was wanted: its share of what a reader covers, the least over its readers.
    demands
        Which re-runs read it, those of one interval or tail together.
    steps
        The stretches in which it may be rebuilt.
    """

    tensor: int
    start: int
    size: int
    swap: bool
    recompute: tuple[int, ...]
    cover: int
    demands: list[tuple[Demand, ...]] = field(default_factory=list)
    steps: tuple[Step, ...] = ()

    @property
    def deadlines(self) -> list[int]:
        """The positions by which it may be wanted, ascending."""
        return sorted({demand.by for demands in self.demands for demand in demands})


@dataclass(frozen=True, slots=True)
class Reruns:
    """Every re-run that may happen, and what it asks for.

    Attributes
    ----------
    steps
        For each decided interval the stretches in which its tensor may be rebuilt last; empty where it cannot be.
    tails
        By tensor, those that some re-run may read past their last access.
    by_operation
        For each operation that may run again the stretches of what it writes, by interval or tail.
    """

    steps: tuple[tuple[Step, ...], ...]
    tails: dict[int, Tail]
    by_operation: dict[int, list[tuple[Step, ...]]]


def find_reruns(instance: Instance, reduced: Reduced) -> Reruns:
    """Return every re-run that the decisions of `reduced` may call for, directly or through chains of operands."""
    steps = tuple(_interval_steps(g, interval, reduced.checkpoints) for g, interval in enumerate(reduced.intervals))
    of_tensor: dict[int, list[int]] = {}
    for g, interval in enumerate(reduced.intervals):
        if interval.recompute:
            of_tensor.setdefault(interval.tensor, []).append(g)
    tails: dict[int, Tail] = {}
    by_operation: dict[int, list[tuple[Step, ...]]] = {}
    # Readers before their operands: what a re-run reads was last written before it.
    for j in sorted(range(len(instance.tensors)), key=lambda j: -instance.writers[j][-1]):
        chains = []
        for g in of_tensor.get(j, ()):
            _ask(instance, reduced, tails, steps[g], [step.by for step in steps[g]], reduced.sizes[j])
            chains.append((steps[g], reduced.intervals[g].recompute))
        if j in tails and tails[j].recompute:
            tail = tails[j]
            tail.steps, deadlines = _tail_steps(tail, reduced.checkpoints), tail.deadlines
            wanted = [min(step.by, deadlines[bisect_right(deadlines, step.after)]) for step in tail.steps]
            _ask(instance, reduced, tails, tail.steps, wanted, tail.cover)
            chains.append((tail.steps, tail.recompute))
        for chain, writers in chains:
            for o in writers:
                by_operation.setdefault(o, []).append(chain)
    return Reruns(steps, tails, by_operation)


def _interval_steps(g: int, interval: Interval, checkpoints: Sequence[int]) -> tuple[Step, ...]:
    if not interval.recompute:
        return ()
    ends = [q for q in checkpoints if interval.first < q < interval.end]
    return tuple(_steps(interval.tensor, g, interval.first, [*ends, interval.end]))


def _tail_steps(tail: Tail, checkpoints: Sequence[int]) -> tuple[Step, ...]:
    latest = tail.deadlines[-1]
    ends = [q for q in checkpoints if tail.start < q < latest]
    return tuple(_steps(tail.tensor, None, tail.start, [*ends, latest]))


def _steps(tensor: int, interval: int | None, after: int, ends: list[int]) -> Iterator[Step]:
    for number, by in enumerate(ends):
        yield Step(tensor, interval, number, after, by)
        after = by


def _ask(
    instance: Instance, reduced: Reduced, tails: dict[int, Tail], chain: Sequence[Step], wanted: Sequence[int], cover: int
) -> None:
    """Note what the re-runs of one interval or tail read past its last access, and until when their result is wanted."""
    tensor, g = chain[0].tensor, chain[0].interval
    writers = reduced.rebuild[tensor] if g is None else reduced.intervals[g].recompute
    # An operand that was changed in place since has to be in an earlier state; how it gets there is left open.
    operands = {n for o in writers for n in instance.operations[o].reads if n != tensor and instance.writers[n][-1] < o}
    dead = sorted(n for n in operands if instance.accesses[n][-1] < wanted[-1] and reduced.sizes[n])
    for n in dead:
        tail = tails.setdefault(n, _tail(instance, reduced, n))
        tail.cover = min(tail.cover, cover // len(dead))
        steps = zip(chain, wanted, strict=True)
        tail.demands.append(tuple(Demand(step, min(step.after, by - 1), by) for step, by in steps if tail.start < by))


def _tail(instance: Instance, reduced: Reduced, n: int) -> Tail:
    size = reduced.sizes[n]
    return Tail(n, instance.accesses[n][-1], size, instance.tensors[n].swappable, reduced.rebuild[n], size)
