r"""SlackSwap: spend the transfer time that computation hides on what is dear to recompute, recompute the cheap rest.

At the operation that is furthest over budget, the idle intervals that cover it are ordered by what their recomputation costs a
byte, given what is recomputed already. The first `k` of that order are recomputed, of the others as many are swapped, first
produced first, as memory asks for. The cut `k` is chosen by an estimate of the overhead,

$$\sum_{o\ \text{re-run}} p_o + \max_t (m_t + Q_t + P_t - B)^+ / \beta,$$

where $m_t$ are the bytes left on the device at operation $t$, $Q_t$ those that wait for their copy out, $P_t$ those that must
be back early because the link is busy later, $B$ the budget and $\beta$ the bandwidth; then by placing and judging some cuts
near the best estimate. Operations that are still over budget are seen to in the same way, one after the other.
"""

import math
from collections import Counter
from contextlib import suppress

import numpy as np

from slackswap_opt import baselines
from slackswap_opt.drafts import (
    DECISIONS,
    KEEP,
    RECOMPUTE,
    SWAP,
    Draft,
    Found,
    NoPlanError,
    SlackSwap,
)
from slackswap_opt.instance import Instance
from slackswap_opt.place import PlacementError, place_and_judge
from slackswap_opt.schedule import Action

__all__ = ["Found", "NoPlanError", "greedy", "smallest_budget"]

SHARES = (1.0, 0.25, 0.0625)
"""Shares of the room for early returns that are tried, one after the other while cuts turn out crowded."""
GRID = 32
"""Cuts that are estimated before the best of them is refined."""
FEWEST_PLACEMENTS, MOST_PLACEMENTS, PLACED_OPERATIONS = 3, 25, 100_000
"""How many cuts are placed and judged: as many as come to `PLACED_OPERATIONS` operations, within the other two."""
MOST_FLIPS, FLIPPED_OPERATIONS = 200, 20_000
"""How many single decisions are changed at the end: as many as come to `FLIPPED_OPERATIONS` operations, within the first."""


def greedy(instance: Instance, *, swap: bool = True, recompute: bool = True) -> Found:
    """Return SlackSwap's plan for an instance with a budget.

    Parameters
    ----------
    swap, recompute
        Whether the plan may swap, and whether it may recompute.

    Raises
    ------
    NoPlanError
        If no plan was found that fits.
    """
    search = SlackSwap(instance, swap=swap, recompute=recompute)
    found: list[Found] = []
    failure = None
    try:
        found.append(_best(search))
    except NoPlanError as error:
        failure = error
    operations = len(instance.operations)
    small = operations * MOST_FLIPS <= FLIPPED_OPERATIONS
    if failure or small or (_stalls(found[0]) and operations * MOST_PLACEMENTS <= PLACED_OPERATIONS):
        found += _others(instance, swap=swap, recompute=recompute)
    if failure and not found:
        raise failure
    return _polished(search, min(found, key=lambda other: other.makespan))


def smallest_budget(instance: Instance) -> int:
    """Return the smallest budget, in bytes, for which a plan was found.

    Every schedule needs the instance's largest floor: where that much is enough, the answer is exact. Otherwise a bisection
    ends within a thousandth of the unconstrained peak.
    """
    least, most = max(instance.floor, default=0), instance.peak
    if _plannable(instance.with_budget(least)):
        return least
    # At the unconstrained peak everything may be kept.
    while most - least > instance.peak // 1000 + 1:
        middle = (least + most) // 2
        if _plannable(instance.with_budget(middle)):
            most = middle
        else:
            least = middle
    return most


def _plannable(instance: Instance) -> bool:
    """Whether one of the plans that `greedy` falls back on fits: a few placements, where a search would take many."""
    for plan in (baselines.swap_all, baselines.recompute_all):
        with suppress(PlacementError):
            place_and_judge(instance, plan(instance))
            return True
    return _Cuts(SlackSwap(instance, swap=True, recompute=True)).any_fits()


def _stalls(found: Found) -> bool:
    """Whether compute waits for a copy somewhere, or a copy outlasts it."""
    timeline = found.placement.timeline
    return timeline.makespan > timeline.ideal + timeline.recompute_time


def _others(instance: Instance, *, swap: bool, recompute: bool) -> list[Found]:
    """Return what else fits, where the search fails or stalls: all swapped, blocks recomputed, one of the two means alone."""
    found = []
    plans = [baselines.swap_all] if swap else []
    plans += [baselines.first_blocks, baselines.recompute_all] if recompute else []
    for plan in plans:
        with suppress(PlacementError):
            made = plan(instance)
            found.append(Found(made, place_and_judge(instance, made)))
    if swap and recompute:
        for means in ({"swap": False}, {"recompute": False}):
            with suppress(NoPlanError):
                found.append(_best(SlackSwap(instance, **{"swap": True, "recompute": True, **means})))
    return found


def _best(search: SlackSwap) -> Found:
    """Return the best plan over the cuts at the worst operation, less what its placement leaves room to keep.

    If some cut does not fit, or runs an operation again more than once, its re-runs bring more back early than there is room
    for: then again with less of that.
    """
    if not search.numbers:
        return search.placed(search.fresh())
    found: list[Found] = []
    failure = None
    for share in SHARES:
        search.share = share
        cuts = _Cuts(search)
        try:
            found.append(_taken_back(search, cuts.search()))
        except NoPlanError as error:
            failure = failure or error
        if not cuts.crowded:
            break
    if failure and not found:
        raise failure
    return min(found, key=lambda other: other.makespan)


def _taken_back(search: SlackSwap, found: Found) -> Found:
    """Return `found` with re-runs undone where the device has room for their tensors all along, dearest first."""
    room = _Room(search.instance, found)
    draft = search.drafted(found.plan)
    dearest = sorted(search.closures, key=lambda c: (-sum(int(search.durations[t]) for t in search.closures[c]), c))
    kept = 0
    for c in dearest:
        if draft.decisions[c] == RECOMPUTE and room.take(int(search.tensor[c]), int(search.start[c]), int(search.end[c])):
            draft.decisions[c] = KEEP
            kept += 1
    return search.better(found, search.plan(draft)) if kept else found


def _polished(search: SlackSwap, found: Found) -> Found:
    """Return `found` with single decisions changed while that shortens the step: in full for small instances only."""
    tries = min(MOST_FLIPS, FLIPPED_OPERATIONS // max(1, len(search.durations)))
    improved = True
    while improved:
        improved = False
        for c in range(len(search.numbers)):
            for decision in (KEEP, SWAP, RECOMPUTE):
                now = DECISIONS.index(found.plan.intervals[search.numbers[c]])
                if tries <= 0 or found.makespan == search.instance.ideal:
                    return found
                if decision == now or not search.may(c, decision):
                    continue
                tries -= 1
                plan = found.plan.with_intervals({search.numbers[c]: DECISIONS[decision]})
                better = search.better(found, plan)
                improved |= better is not found
                found = better
    return found


def _runs_thrice(found: Found) -> bool:
    """Whether an operation runs again more than once."""
    runs = Counter(target for action, target in found.placement.schedule.instructions if action is Action.RUN)
    return max(runs.values(), default=0) > 2


class _Cuts:
    """Where to cut the order of recomputation at the worst operation: before it recompute, after it swap.

    Attributes
    ----------
    order, added
        Candidates by nanoseconds a byte, and the nanoseconds that each adds to those before it.
    """

    def __init__(self, search: SlackSwap) -> None:
        self.of = search
        worst = int(np.argmax(search.memory))
        self.excess = int(search.memory[worst]) - search.budget
        self.covering = search.covering(search.fresh(), worst)
        order = list(search.recompute_order(search.fresh(), self.covering))
        self.order = np.array([c for c, _ in order], dtype=np.int64)
        self.added = np.array([nanoseconds for _, nanoseconds in order], dtype=np.int64)
        self.judged: dict[int, Found | None] = {}
        self.failure: NoPlanError | None = None

    def draft(self, k: int) -> Draft:
        """Return the draft that recomputes the first `k` of the order and swaps others until the excess is gone."""
        of, draft = self.of, self.of.fresh()
        chosen = self.order[:k]
        draft.decisions[chosen] = RECOMPUTE
        np.add.at(draft.rho, of.end[chosen], self.added[:k])
        draft.reruns = set().union(*(of.closures[c] for c in chosen.tolist()))
        rest = self.covering[(draft.decisions[self.covering] == KEEP) & of.can_swap[self.covering]]
        missing = self.excess - int(of.size[chosen].sum())
        before = np.cumsum(of.size[rest]) - of.size[rest]
        draft.decisions[rest[before < missing]] = SWAP
        return draft

    def guess(self) -> int:
        """Return the cut with the least estimate, on a grid that is refined around the best point by halving."""
        most = len(self.order)
        step = max(1, most // GRID)
        estimates: dict[int, float] = {k: self.of.estimate(self.draft(k)) for k in {*range(0, most, step), most}}
        while True:
            best = min(estimates, key=lambda k: (estimates[k], k))
            if step == 1:
                return best
            step = max(1, step // 2)
            for k in (best - step, best + step):
                if 0 <= k <= most and k not in estimates:
                    estimates[k] = self.of.estimate(self.draft(k))

    def makespan(self, k: int) -> float:
        """Return the judged makespan of cut `k`, infinity if it does not fit."""
        if k not in self.judged:
            try:
                self.judged[k] = self.of.placed(self.draft(k))
            except NoPlanError as error:
                self.judged[k], self.failure = None, error
        found = self.judged[k]
        return found.makespan if found else math.inf

    def search(self) -> Found:
        """Place and judge cuts around the guess: towards more re-runs where compute stalls, towards fewer where it does not."""
        best, step = self.guess(), max(1, len(self.order) // 16)
        tries = min(MOST_PLACEMENTS, max(FEWEST_PLACEMENTS, PLACED_OPERATIONS // len(self.of.durations)))
        self.makespan(best)
        while step and len(self.judged) < tries:
            found = self.judged[best]
            stalls = found is None or _stalls(found)
            for k in (best + step, best - step) if stalls else (best - step, best + step):
                if 0 <= k <= len(self.order) and len(self.judged) < tries and self.makespan(k) < self.makespan(best):
                    best = k
                    break
            else:
                step //= 2
        found = self.judged[best]
        if found is None and self.any_fits():
            found = min(filter(None, self.judged.values()), key=lambda other: other.makespan)
        if found is None:
            raise self.failure or NoPlanError("nothing can leave the device")
        return found

    @property
    def crowded(self) -> bool:
        """Whether a cut that was judged did not fit, or runs an operation again more than once."""
        return any(found is None or _runs_thrice(found) for found in self.judged.values())

    def any_fits(self) -> bool:
        """Whether a cut at one of the ends or in the middle fits."""
        most = len(self.order)
        return any(self.makespan(k) < math.inf for k in (most, most // 2, 0))


class _Room:
    """The bytes that a placement leaves free, event by event."""

    def __init__(self, instance: Instance, found: Found) -> None:
        self.instance = instance
        schedule, timeline = found.placement
        budget = instance.budget if instance.budget is not None else timeline.peak
        self.first = [0] * len(instance.operations)
        self.runs: list[list[int]] = [[] for _ in instance.operations]
        held: list[int] = []
        for (action, target), memory in zip(schedule.instructions, timeline.memory, strict=True):
            if action is Action.RUN:
                self.runs[target].append(len(held))
                held.append(memory)
        self.free = budget - np.array(held, dtype=np.int64)

    def take(self, tensor: int, start: int, end: int) -> bool:
        """Fill the gap of a tensor after operation `start` until it is back, if there is room; return whether there was."""
        last = self.instance.writers[tensor][-1]
        gone = self.runs[start][0] + 1
        back = next((e for e in self.runs[last] if e >= gone), self.runs[end][0])
        gap = self.free[gone : min(back, self.runs[end][0])]
        size = self.instance.tensors[tensor].size
        if gap.size and int(gap.min()) < size:
            return False
        gap -= size
        return True
