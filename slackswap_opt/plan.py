"""What was decided: keep, swap or recompute, an idle interval at a time. Data only."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from slackswap_opt.files import InputError, check_type
from slackswap_opt.instance import Instance


class Decision(StrEnum):
    """What happens to a tensor through an idle interval, or after its last access.

    KEEP leaves it on the device, SWAP copies it to the host and back, RECOMPUTE drops it and runs its writers again. DISCARD
    is for tails only: the tensor is dropped, and where a re-run reads it, it is rebuilt for that moment.
    """

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"
    DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision for every idle interval and every tail of an instance.

    Attributes
    ----------
    intervals
        One of KEEP, SWAP, RECOMPUTE for each of `Instance.idle_intervals`, in their order.
    tails
        For each tensor, what happens after its last access, until the last re-run that reads it. RECOMPUTE there means that
        it is rebuilt once and then held, where DISCARD rebuilds it whenever it is wanted.
    """

    intervals: tuple[Decision, ...]
    tails: tuple[Decision, ...]

    @classmethod
    def keep_all(cls, instance: Instance) -> Self:
        """Return the plan that keeps everything through its lifetime."""
        check_type(instance, Instance, "'instance'", "an Instance")
        return cls((Decision.KEEP,) * len(instance.idle_intervals), (Decision.DISCARD,) * len(instance.tensors))

    def check_for(self, instance: Instance) -> None:
        """Raise `InputError` unless there is a decision for each idle interval and each tensor of `instance`."""
        check_type(instance, Instance, "'instance'", "an Instance")
        for name, decisions, count, what in (
            ("intervals", self.intervals, len(instance.idle_intervals), "idle intervals"),
            ("tails", self.tails, len(instance.tensors), "tensors"),
        ):
            check_type(decisions, tuple, f"'{name}'", "a tuple of decisions")
            if len(decisions) != count:
                raise InputError(f"'{name}' must have a decision for each of {count} {what}, got {len(decisions)}")
            for n, decision in enumerate(decisions):
                check_type(decision, Decision, f"{name}[{n}]", "a Decision")
        if Decision.DISCARD in self.intervals:
            g = self.intervals.index(Decision.DISCARD)
            raise InputError(f"intervals[{g}] must be keep, swap or recompute, got discard, which is for tails")

    def with_intervals(self, changes: dict[int, Decision]) -> Self:
        """Return this plan with other decisions for the idle intervals numbered in `changes`."""
        return type(self)(tuple(changes.get(g, decision) for g, decision in enumerate(self.intervals)), self.tails)
