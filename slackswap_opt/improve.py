"""A local search on the judge's makespan.

It exchanges a few decisions at a time. An estimate picks the exchanges that are worth placing; the judge has the last word.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from slackswap_opt.drafts import DECISIONS, KEEP, RECOMPUTE, SWAP, Found, SlackSwap
from slackswap_opt.estimate import Decisions, Estimate
from slackswap_opt.instance import Instance
from slackswap_opt.place import PlacementError, place_and_judge
from slackswap_opt.plan import Plan

Move = tuple[tuple[int, int], ...]
"""Candidates and what is decided for them instead."""

FEW, MANY = 3, 9
"""How many of the candidates that are alike are looked at, first and when that finds nothing more."""
NEIGHBOURHOODS = ((1, FEW), (1, MANY), (2, FEW), (2, MANY))
"""How many decisions are taken in exchange for one that is given up, and how many of alike candidates are looked at."""
TRIES = 40
"""How many of the exchanges around some decisions are placed, the most promising ones."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Where the local search stops at the latest.

    Attributes
    ----------
    estimates, placements
        How many exchanges are estimated, and how many placed and judged.
    deadline
        A time on the clock of `time.monotonic`, in seconds, or None. Up to there, equal calls give equal plans.
    """

    estimates: int = 20_000
    placements: int = 300
    deadline: float | None = None

    @classmethod
    def for_size(cls, instance: Instance, deadline: float | None = None) -> "Effort":
        """Return what takes some ten seconds on one core, whatever the size of the instance."""
        operations = max(1, len(instance.operations))
        return cls(max(1_000, min(20_000, 16_000_000 // operations)), max(20, min(300, 300_000 // operations)), deadline)

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline


def improved(instance: Instance, found: Found, effort: Effort | None = None) -> Found:
    """Return a plan that is no worse than `found`, after a local search around it.

    Parameters
    ----------
    instance
        The step, with its budget.
    found
        Where the search begins.
    effort
        Where it stops at the latest.
    """
    search = SlackSwap(instance, swap=True, recompute=True)
    return LocalSearch(search, found, effort or Effort.for_size(instance)).run()


class LocalSearch:
    """Exchanges a few decisions at a time while that shortens the step.

    Re-runs are given up for others that cost less, or for swaps; where compute waits for copies, also swaps for something else.

    Parameters
    ----------
    search
        The candidates of the instance.
    found
        Where the search begins; what it decides besides the candidates stays.
    effort
        Where it stops.
    """

    def __init__(self, search: SlackSwap, found: Found, effort: Effort) -> None:
        self.of, self.found, self.effort = search, found, effort
        self.estimate = Estimate(search)
        # A plan that keeps tails may recompute what drafts cannot, since these rebuild all that has died.
        chosen = [DECISIONS.index(found.plan.intervals[g]) for g in search.numbers]
        self.decisions: Decisions = np.array(chosen, dtype=np.int8)
        self.estimates = self.placements = 0
        self.placed: set[bytes] = set()

    def run(self) -> Found:
        """Search until nothing is found any more, or the effort is spent, and return the best plan."""
        while self.found.makespan > self.of.instance.ideal:
            if not any(self._step(others, alike) for others, alike in NEIGHBOURHOODS):
                break
        return self.found

    @property
    def spent(self) -> bool:
        """Whether the effort is spent."""
        return self.estimates >= self.effort.estimates or self.placements >= self.effort.placements or self.effort.over

    def _step(self, others: int, alike: int) -> bool:
        """Make one exchange that shortens the step; return False if there is none, or the effort is spent."""
        if self.spent:
            return False
        overhead = self.found.makespan - self.of.instance.ideal
        goal = max(overhead, self._estimated(()))
        promising = []
        for move in _Neighbours(self, alike).moves(others):
            if self.spent:
                break
            if (estimated := self._estimated(move)) < goal:
                promising.append((estimated, move))
        return any(self._made(move) for _, move in sorted(promising)[:TRIES])

    def _changed(self, move: Move) -> Decisions:
        decisions = self.decisions.copy()
        for c, decision in move:
            decisions[c] = decision
        return decisions

    def _estimated(self, move: Move) -> float:
        self.estimates += 1
        return self.estimate.overhead(self._changed(move))

    def _made(self, move: Move) -> bool:
        """Place and judge an exchange, and keep it if the step is shorter."""
        decisions = self._changed(move)
        if self.spent or decisions.tobytes() in self.placed:
            return False
        self.placed.add(decisions.tobytes())
        self.placements += 1
        plan = self.plan(decisions)
        try:
            found = Found(plan, place_and_judge(self.of.instance, plan))
        except PlacementError:
            return False
        if found.makespan >= self.found.makespan:
            return False
        self.found, self.decisions = found, decisions
        return True

    def plan(self, decisions: Decisions) -> Plan:
        """Return the plan so far with other decisions for the candidates."""
        chosen = (DECISIONS[decision] for decision in decisions.tolist())
        return self.found.plan.with_intervals(dict(zip(self.of.numbers, chosen, strict=True)))


class _Neighbours:
    """The exchanges around the decisions of a local search.

    Of candidates that are decided alike, are of one size and cost the same to run again, only some stand for all: the first
    and the last produced, and some between them.
    """

    def __init__(self, search: LocalSearch, alike: int) -> None:
        self.of, self.decisions = search.of, search.decisions
        self.users = search.estimate.users(self.decisions)
        self.free = search.estimate.free(self.decisions)
        self.waits = search.found.makespan > search.of.instance.ideal + search.found.placement.timeline.recompute_time
        chosen = self._representatives(alike)
        self.again = sorted((c for c in chosen if self.decisions[c] == RECOMPUTE), key=lambda c: (-self._freed(c), c))
        self.swapped = [c for c in chosen if self.decisions[c] == SWAP]
        kept = [c for c in chosen if self.decisions[c] == KEEP]
        self.may_swap = [c for c in kept if self.of.can_swap[c]]
        self.may_rerun = sorted((self._added(c), c) for c in kept if c in self.of.closures)
        self.may_rerun_swapped = sorted((self._added(c), c) for c in self.swapped if c in self.of.closures)

    def _representatives(self, alike: int) -> list[int]:
        classes: dict[tuple[int, int, int], list[int]] = {}
        for c in np.argsort(self.of.produced, kind="stable").tolist():
            cost = self._cost(c) if c in self.of.closures else -1
            classes.setdefault((int(self.decisions[c]), int(self.of.size[c]), cost), []).append(c)
        chosen = set[int]()
        for members in classes.values():
            last, shares = len(members) - 1, max(1, alike - 1)
            chosen.update(members[last * n // shares] for n in range(shares + 1))
        return sorted(chosen)

    def _cost(self, c: int) -> int:
        return sum(int(self.of.durations[t]) for t in self.of.closures[c])

    def _freed(self, c: int) -> int:
        return sum(int(self.of.durations[t]) for t in self.of.closures.get(c, ()) if self.users[t] == 1)

    def _added(self, c: int) -> int:
        return sum(int(self.of.durations[t]) for t in self.of.closures[c] if self.users[t] == 0)

    def moves(self, others: int) -> Iterator[Move]:
        """Yield the exchanges that give up one decision for at most so many others, the dearest re-runs first."""
        for a in self.again:
            yield from self._instead_of_rerun(a) if others == 1 else self._two_instead_of_rerun(a)
        if self.waits and others == 1:
            for a in self.swapped:
                yield from self._instead_of_swap(a)
            yield from (((c, SWAP),) for c in self.may_swap)
            yield from (((c, RECOMPUTE),) for _, c in self.may_rerun)
        if self.waits and others == 2:
            for a in self.swapped:
                if a in self.of.closures:
                    yield from (((a, RECOMPUTE), (b, SWAP)) for b in self.may_swap)

    def _missing(self, a: int) -> tuple[int, int]:
        """Return the operation with the least room for `a` while it is away, and the bytes that must go there to keep it.

        Less by what a copy moves in the time that is won: compute may wait that long.
        """
        inside = self.free[self.of.start[a] + 1 : self.of.end[a]]
        t = int(np.argmin(inside))
        moved = self._freed(a) * self.of.instance.link.offload_bandwidth // 1_000_000_000
        return int(self.of.start[a]) + 1 + t, int(self.of.size[a]) - int(inside[t]) - moved

    def _covers(self, b: int, t: int) -> bool:
        return bool(self.of.start[b] < t < self.of.end[b])

    def _instead_of_rerun(self, a: int) -> Iterator[Move]:
        """Keep or swap `a`, and let another one go for it."""
        most, (t, missing) = self._freed(a), self._missing(a)
        if missing <= 0:
            yield ((a, KEEP),)
        cheaper = [c for added, c in (*self.may_rerun, *self.may_rerun_swapped) if added < most]
        enough = [b for b in cheaper if self.of.size[b] >= missing and self._covers(b, t)]
        yield from (((a, KEEP), (b, RECOMPUTE)) for b in enough)
        enough = [b for b in self.may_swap if self.of.size[b] >= missing and self._covers(b, t)]
        yield from (((a, KEEP), (b, SWAP)) for b in enough)
        if self.of.can_swap[a]:
            yield ((a, SWAP),)
            yield from (((a, SWAP), (b, RECOMPUTE)) for b in cheaper)
            yield from (((a, SWAP), (b, KEEP)) for b in self.swapped)

    def _two_instead_of_rerun(self, a: int) -> Iterator[Move]:
        """Keep `a`, and let two others go for it."""
        most, (t, missing) = self._freed(a), self._missing(a)
        size = self.of.size
        reruns = [(added, b) for added, b in self.may_rerun if added < most and self._covers(b, t)]
        for (more, b), (less, c) in combinations(reruns, 2):
            if more + less < most and size[b] + size[c] >= missing:
                yield ((a, KEEP), (b, RECOMPUTE), (c, RECOMPUTE))
        swaps = [b for b in self.may_swap if size[b] < missing and self._covers(b, t)]
        for b, c in combinations(swaps, 2):
            if size[b] + size[c] >= missing:
                yield ((a, KEEP), (b, SWAP), (c, SWAP))

    def _instead_of_swap(self, a: int) -> Iterator[Move]:
        """Keep `a` or run it again, and let another one go for it."""
        yield ((a, KEEP),)
        if a in self.of.closures:
            yield ((a, RECOMPUTE),)
        yield from (((a, KEEP), (b, SWAP)) for b in self.may_swap)
        yield from (((a, KEEP), (b, RECOMPUTE)) for _, b in self.may_rerun)
