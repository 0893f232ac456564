"""What cannot bind, or hardly matters, goes before any solver sees it: each reduction is a switch, and says what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from slackswap_opt.files import InputError, check_integer
from slackswap_opt.formulations.rounding import Rounding, Scale
from slackswap_opt.instance import Instance


@dataclass(frozen=True, slots=True)
class Reductions:
    """The switches. Each loosens the model; all but `merge` and `checkpoints` are for outer rounding only.

    Attributes
    ----------
    negligible
        Tensors of fewer bytes than this count as 0 bytes; the bound falls by at most their bytes times the price of memory.
    rows
        At most how many operations get a memory row: the most over-budget one of each of so many equal shares of those over
        budget. Time steps begin at these, and at about as many others. None for a row each, and every step.
    merge
        Time steps begin only at operations that a row speaks of, not where tensors are written and intervals open. Within a
        step a copy may then use link time from before its tensor was written.
    checkpoints
        How many operations a re-run cannot be moved across for free: the most over-budget one of each of so many equal shares
        of those over budget. More make the bound tighter and the model larger; with 0 re-runs lend link time to the whole step.
    """

    negligible: int = 0
    rows: int | None = None
    merge: bool = True
    checkpoints: int = 1

    def __post_init__(self) -> None:
        check_integer(self.negligible, "'negligible' of the reductions")
        check_integer(self.checkpoints, "'checkpoints' of the reductions")
        if self.rows is not None:
            check_integer(self.rows, "'rows' of the reductions", least=1)

    @classmethod
    def for_bound(cls, instance: Instance) -> "Reductions":
        """Return those that a bound can afford: on every model tried they changed it by less than 0.002 percent."""
        return cls(negligible=instance.peak >> 16, rows=256, merge=False)


FOR_PLANS = Reductions(merge=False)
"""Those that a model for plans can afford: merged steps lend a copy link time from before its tensor was written."""


class Interval(NamedTuple):
    """An idle interval that is decided: one that covers an operation over budget and is not empty.

    `number` is its place in `Instance.idle_intervals`, `size` is in units of the model, `first` is the first operation inside
    that is over budget, `recompute` are the operations that rebuild the tensor, none if it cannot be.
    """

    number: int
    tensor: int
    start: int
    end: int
    size: int
    first: int
    swap: bool
    recompute: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """What is left of an instance for the model.

    Attributes
    ----------
    sizes
        For each tensor its units of size.
    excess
        For each operation the units by which keeping everything exceeds the budget; negative where it fits.
    critical
        The operations that get a memory row.
    checkpoints
        Those of them that re-runs are told apart at.
    intervals
        What is decided.
    rebuild
        For each tensor the operations that rebuild it after its last access, none if it cannot be.
    """

    sizes: tuple[int, ...]
    excess: tuple[int, ...]
    critical: tuple[int, ...]
    checkpoints: tuple[int, ...]
    intervals: tuple[Interval, ...]
    rebuild: tuple[tuple[int, ...], ...]


def reduce(instance: Instance, scale: Scale, reductions: Reductions) -> Reduced:
    """Return what the model must hold of `instance`."""
    if not scale.outer and (reductions.negligible or reductions.rows is not None):
        raise InputError(f"'negligible' and 'rows' loosen a model; with {Rounding.INNER} rounding they must be off")
    budget = instance.peak if instance.budget is None else instance.budget
    over = [t for t, memory in enumerate(instance.keep_all_memory) if memory > budget]
    sizes = tuple(scale.size(t.size) if t.size >= reductions.negligible else 0 for t in instance.tensors)
    excess = _excess(instance, scale, sizes, scale.budget(budget))
    critical = tuple(over) if reductions.rows is None else _worst_of_shares(over, excess, reductions.rows)
    checkpoints = _worst_of_shares(critical, excess, reductions.checkpoints)
    rebuild = tuple(_rebuilding(instance, scale, i, len(instance.operations)) for i in range(len(instance.tensors)))
    return Reduced(sizes, excess, critical, checkpoints, _intervals(instance, scale, over, sizes), rebuild)


def _rebuilding(instance: Instance, scale: Scale, tensor: int, t: int) -> tuple[int, ...]:
    """Return the operations that rebuild a tensor as it is after operation `t`, none if it cannot be.

    Plans rebuild only what `Instance.rebuildable` says; a bound allows for schedules that go back to an earlier state of a
    tensor written in place, and from there on.
    """
    writers = tuple(writer for writer in instance.writers[tensor] if writer <= t)
    if scale.outer:
        return writers if all(instance.operations[writer].recomputable for writer in writers) else ()
    return writers if instance.rebuildable[tensor] and writers == instance.writers[tensor] else ()


def _excess(instance: Instance, scale: Scale, sizes: Sequence[int], budget: int) -> tuple[int, ...]:
    change = [0] * (len(instance.operations) + 1)
    for size, accesses in zip(sizes, instance.accesses, strict=True):
        change[accesses[0]] += size
        change[accesses[-1] + 1] -= size
    live = zip(accumulate(change), instance.operations, strict=False)
    return tuple(held + scale.size(operation.workspace) - budget for held, operation in live)


def _worst_of_shares(operations: Sequence[int], excess: Sequence[int], shares: int) -> tuple[int, ...]:
    """Return the most over-budget operation of each of `shares` equal parts, the first of equals."""
    shares = min(shares, len(operations))
    bounds = [len(operations) * n // shares for n in range(shares + 1)] if shares else []
    return tuple(max(operations[low:high], key=lambda t: (excess[t], -t)) for low, high in pairwise(bounds))


def _intervals(instance: Instance, scale: Scale, over: list[int], sizes: Sequence[int]) -> tuple[Interval, ...]:
    following: list[int] = [len(instance.operations)] * (len(instance.operations) + 1)
    for t in over:
        following[t] = t
    for t in range(len(instance.operations) - 1, -1, -1):
        following[t] = min(following[t], following[t + 1])
    decided = []
    for number, interval in enumerate(instance.idle_intervals):
        i, start, end = interval
        first = following[start + 1]
        swap, recompute = instance.tensors[i].swappable, _rebuilding(instance, scale, i, start)
        if first < end and sizes[i] and (swap or recompute):
            decided.append(Interval(number, i, start, end, sizes[i], first, swap, recompute))
    return tuple(decided)
