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
from contextlib import suppress
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from slackswap_opt import baselines
from slackswap_opt.instance import Instance
from slackswap_opt.place import Placement, PlacementError, place_and_judge
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.schedule import Action

Integers = NDArray[np.int64]

CLOSURE_LIMIT = 500
"""Operations in a closure beyond which recomputation is not considered: keeps the method near-linear on long dead chains."""

GRID = 32
"""Cuts that are estimated before the best of them is refined."""
FEWEST_PLACEMENTS, MOST_PLACEMENTS, PLACED_OPERATIONS = 3, 25, 100_000
"""How many cuts are placed and judged: as many as come to `PLACED_OPERATIONS` operations, within the other two."""
MOST_FLIPS, FLIPPED_OPERATIONS = 200, 20_000
"""How many single decisions are changed at the end: as many as come to `FLIPPED_OPERATIONS` operations, within the first."""

KEEP, SWAP, RECOMPUTE = range(3)
DECISIONS = (Decision.KEEP, Decision.SWAP, Decision.RECOMPUTE)


class NoPlanError(Exception):
    """No plan was found that fits: its message says at which operation, and by how much."""


@dataclass(slots=True)
class Draft:
    """Decisions so far: for each candidate, with the operations that are re-run and when.

    Attributes
    ----------
    decisions
        KEEP, SWAP or RECOMPUTE for each candidate.
    reruns
        The operations run again.
    rho
        For each operation the nanoseconds of re-runs just before it.
    pressure
        For each operation bytes beyond what the intervals tell, learnt from placements that did not fit.
    """

    decisions: NDArray[np.int8]
    reruns: set[int]
    rho: Integers
    pressure: Integers

    def copy(self) -> "Draft":
        """Return a draft of its own with the same decisions."""
        return Draft(self.decisions.copy(), set(self.reruns), self.rho.copy(), self.pressure.copy())


@dataclass(frozen=True, slots=True)
class Found:
    """A plan with its placement."""

    plan: Plan
    placement: Placement

    @property
    def makespan(self) -> int:
        """Nanoseconds of the step under the plan."""
        return self.placement.timeline.makespan


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
        found.append(search.best())
    except NoPlanError as error:
        failure = error
    operations = len(instance.operations)
    small = operations * MOST_FLIPS <= FLIPPED_OPERATIONS
    if failure or small or (_stalls(found[0]) and operations * MOST_PLACEMENTS <= PLACED_OPERATIONS):
        found += _others(instance, swap=swap, recompute=recompute)
    if failure and not found:
        raise failure
    return search.polished(min(found, key=lambda other: other.makespan))


def smallest_budget(instance: Instance) -> int | None:
    """Return the smallest budget, in bytes, for which a plan was found; None if the host has no room for any plan.

    Every schedule needs the instance's largest floor: where that much is enough, the answer is exact. Otherwise a bisection
    ends within a thousandth of the unconstrained peak.
    """
    least, most = max(instance.floor, default=0), instance.peak
    if _plannable(instance.with_budget(least)):
        return least
    if not _plannable(instance.with_budget(most)):
        return None
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
            found.append(Found(plan(instance), place_and_judge(instance, plan(instance))))
    if swap and recompute:
        for means in ({"swap": False}, {"recompute": False}):
            with suppress(NoPlanError):
                found.append(SlackSwap(instance, **{"swap": True, "recompute": True, **means}).best())
    return found


class SlackSwap:
    """The candidates of an instance, as arrays, and the search over cuts."""

    def __init__(self, instance: Instance, *, swap: bool, recompute: bool) -> None:
        self.instance = instance
        self.budget = instance.budget if instance.budget is not None else instance.peak
        self.memory = np.array(instance.keep_all_memory, dtype=np.int64)
        self.durations = np.array([operation.duration for operation in instance.operations], dtype=np.int64)
        over = np.concatenate(([0], np.cumsum(self.memory > self.budget)))
        self.numbers = [
            g
            for g, (tensor, start, end) in enumerate(instance.idle_intervals)
            if over[end] > over[start + 1] and instance.tensors[tensor].size > 0
        ]
        chosen = [instance.idle_intervals[g] for g in self.numbers]
        self.tensor = np.array([interval.tensor for interval in chosen], dtype=np.int64)
        self.start = np.array([interval.start for interval in chosen], dtype=np.int64)
        self.end = np.array([interval.end for interval in chosen], dtype=np.int64)
        self.size = np.array([instance.tensors[interval.tensor].size for interval in chosen], dtype=np.int64)
        self.produced = np.array([instance.writers[interval.tensor][0] for interval in chosen], dtype=np.int64)
        self.can_swap = np.array([swap and instance.tensors[interval.tensor].swappable for interval in chosen], dtype=bool)
        self.closures: dict[int, frozenset[int]] = {}
        """For each candidate that can be recomputed, the operations to run again."""
        for c, interval in enumerate(chosen):
            if recompute and instance.can_recompute(interval):
                closure = _closure(instance, interval.tensor, interval.end)
                if closure is not None:
                    self.closures[c] = closure
        self.out_work = np.array([instance.link.offload_time(int(m)) for m in self.size], dtype=np.float64)
        self.in_work = np.array([instance.link.prefetch_time(int(m)) for m in self.size], dtype=np.float64)
        self.small = self.out_work <= 2.0 * instance.link.latency
        """Whether a copy takes longer to start than to move: such tensors are swapped last."""
        self.using: dict[int, list[int]] = {}
        for c, closure in self.closures.items():
            for t in closure:
                self.using.setdefault(t, []).append(c)

    def best(self) -> Found:
        """Return the best plan over the cuts at the worst operation, less what its placement leaves room to keep."""
        if not self.numbers:
            return self.placed(self.fresh())
        return self.taken_back(_Cuts(self).search())

    def fresh(self) -> Draft:
        """Return the draft that keeps everything."""
        operations = len(self.durations)
        zeros = np.zeros(operations, dtype=np.int64)
        return Draft(np.zeros(len(self.numbers), dtype=np.int8), set(), zeros, zeros.copy())

    def covering(self, draft: Draft, t: int) -> Integers:
        """Return the kept candidates through whose idle interval operation `t` runs, first produced first, small ones last."""
        inside = np.flatnonzero((self.start < t) & (t < self.end) & (draft.decisions == KEEP))
        return inside[np.lexsort((self.tensor[inside], self.produced[inside], self.small[inside]))]

    def recompute_order(self, draft: Draft, among: Integers) -> list[tuple[int, int]]:
        """Return (candidate, nanoseconds it adds) by nanoseconds a byte, each given that those before it are recomputed.

        The cost of a closure falls when a candidate that shares operations with it is taken: a heap with stale entries.
        """
        durations = self.durations
        cost = {
            c: sum(int(durations[t]) for t in self.closures[c] if t not in draft.reruns)
            for c in among.tolist()
            if c in self.closures
        }
        heap = [self._key(c, nanoseconds) for c, nanoseconds in cost.items()]
        heapify(heap)
        rerun, order = set(draft.reruns), []
        while heap:
            *_, c, nanoseconds = heappop(heap)
            if cost.get(c) != nanoseconds:
                continue
            order.append((c, nanoseconds))
            del cost[c]
            for t in self.closures[c]:
                if t not in rerun:
                    rerun.add(t)
                    for other in self.using[t]:
                        if other in cost:
                            cost[other] -= int(durations[t])
                            heappush(heap, self._key(other, cost[other]))
        return order

    def _key(self, c: int, nanoseconds: int) -> tuple[float, int, int, int]:
        return nanoseconds / int(self.size[c]), -int(self.produced[c]), c, nanoseconds

    def recompute(self, draft: Draft, c: int) -> None:
        """Decide RECOMPUTE for candidate `c`."""
        draft.decisions[c] = RECOMPUTE
        new = self.closures[c] - draft.reruns
        draft.reruns |= new
        draft.rho[self.end[c]] += sum(int(self.durations[t]) for t in new)

    def taken_back(self, found: Found) -> Found:
        """Return `found` with re-runs undone where the device has room for their tensors all along, dearest first."""
        room = _Room(self.instance, found)
        draft = self.drafted(found.plan)
        dearest = sorted(self.closures, key=lambda c: (-sum(int(self.durations[t]) for t in self.closures[c]), c))
        kept = 0
        for c in dearest:
            if draft.decisions[c] == RECOMPUTE and room.take(int(self.tensor[c]), int(self.start[c]), int(self.end[c])):
                draft.decisions[c] = KEEP
                kept += 1
        return self.better(found, self.plan(draft)) if kept else found

    def left(self, draft: Draft) -> Integers:
        """Return for each operation the bytes on the device, copies under way left out."""
        change = np.zeros(len(self.durations) + 1, dtype=np.int64)
        gone = draft.decisions != KEEP
        np.add.at(change, self.start[gone] + 1, -self.size[gone])
        np.add.at(change, self.end[gone], self.size[gone])
        return self.memory + draft.pressure + np.cumsum(change[:-1])

    def estimate(self, draft: Draft) -> float:
        """Return the estimated overhead in nanoseconds: re-runs, and the stall that the fullest moment asks for."""
        swapped = np.flatnonzero(draft.decisions == SWAP)
        held = self.left(draft).astype(np.float64)
        if swapped.size:
            held += self.queued(draft, swapped) + self.early(draft, swapped)
        link = self.instance.link
        return float(draft.rho.sum()) + max(0.0, float(held.max()) - self.budget) * 1e9 / min(
            link.offload_bandwidth, link.prefetch_bandwidth
        )

    def queued(self, draft: Draft, swapped: Integers) -> NDArray[np.float64]:
        """Return for each operation the bytes past their last use that wait for the offload lane, first in, first out."""
        time = np.cumsum(self.durations + draft.rho) - self.durations
        arriving = _binned(self.produced[swapped] + 1, self.out_work[swapped], len(time))
        backlog = _backlog(arriving, time.astype(np.float64))
        served = np.cumsum(arriving) - backlog
        opened = np.cumsum(_binned(self.start[swapped] + 1, self.out_work[swapped], len(time)))
        share = float(self.size[swapped].sum()) / float(self.out_work[swapped].sum())
        return np.maximum(0.0, opened - served) * share

    def early(self, draft: Draft, swapped: Integers) -> NDArray[np.float64]:
        """Return for each operation the bytes that must be back by its end for later ones, earliest deadline first."""
        ends = np.cumsum(self.durations + draft.rho)
        wanted = _binned(self.end[swapped], self.in_work[swapped], len(ends))[::-1]
        from_end = (float(ends[-1]) - (ends - self.durations)).astype(np.float64)[::-1]
        backlog = _backlog(wanted, from_end)[::-1]
        share = float(self.size[swapped].sum()) / float(self.in_work[swapped].sum())
        return np.append(backlog[1:], 0.0) * share

    def complete(self, draft: Draft) -> None:
        """See to every operation that is still over budget, the worst first, by swaps or by re-runs as estimated.

        Raises
        ------
        NoPlanError
            If an operation stays over budget with nothing left to decide.
        """
        while True:
            left = self.left(draft)
            excess = int(left.max(initial=0)) - self.budget
            if excess <= 0:
                return
            worst = int(np.argmax(left))
            among = self.covering(draft, worst)
            options = [self.relieved(draft, among, excess, swap_first) for swap_first in (True, False)]
            best = min((option for option in options if option is not None), key=self.estimate, default=None)
            if best is None:
                name = self.instance.operations[worst].name
                raise NoPlanError(
                    f"operation '{name}' is {excess} bytes over the budget of {self.budget}, and nothing more can leave"
                )
            draft.decisions, draft.reruns, draft.rho = best.decisions, best.reruns, best.rho

    def relieved(self, draft: Draft, among: Integers, excess: int, swap_first: bool) -> Draft | None:
        """Return `draft` with `excess` more bytes gone from what `among` holds, or None if that is not possible."""
        option = draft.copy()
        for swap in (swap_first, not swap_first):
            if excess <= 0:
                break
            if swap:
                for c in among[self.can_swap[among]].tolist():
                    if excess > 0 and option.decisions[c] == KEEP:
                        option.decisions[c] = SWAP
                        excess -= int(self.size[c])
            else:
                kept = among[option.decisions[among] == KEEP]
                for c, _ in self.recompute_order(option, kept):
                    if excess > 0:
                        self.recompute(option, c)
                        excess -= int(self.size[c])
        return option if excess <= 0 else None

    def polished(self, found: Found) -> Found:
        """Return `found` with single decisions changed while that shortens the step: in full for small instances only."""
        tries = min(MOST_FLIPS, FLIPPED_OPERATIONS // max(1, len(self.durations)))
        improved = True
        while improved:
            improved = False
            for c in range(len(self.numbers)):
                for decision in (KEEP, SWAP, RECOMPUTE):
                    now = DECISIONS.index(found.plan.intervals[self.numbers[c]])
                    if tries <= 0 or found.makespan == self.instance.ideal:
                        return found
                    if decision == now or not self.may(c, decision):
                        continue
                    tries -= 1
                    plan = found.plan.with_intervals({self.numbers[c]: DECISIONS[decision]})
                    better = self.better(found, plan)
                    improved |= better is not found
                    found = better
        return found

    def may(self, c: int, decision: int) -> bool:
        """Whether candidate `c` may be decided so."""
        return bool(self.can_swap[c]) if decision == SWAP else c in self.closures or decision == KEEP

    def drafted(self, plan: Plan) -> Draft:
        """Return the draft that a plan stands for."""
        draft = self.fresh()
        for c, g in enumerate(self.numbers):
            if plan.intervals[g] is Decision.SWAP:
                draft.decisions[c] = SWAP
            elif plan.intervals[g] is Decision.RECOMPUTE:
                self.recompute(draft, c)
        return draft

    def better(self, found: Found, plan: Plan) -> Found:
        """Return the shorter of `found` and the placement of `plan`, if that fits."""
        try:
            return min(found, Found(plan, place_and_judge(self.instance, plan)), key=lambda candidate: candidate.makespan)
        except PlacementError:
            return found

    def plan(self, draft: Draft) -> Plan:
        """Return the plan that a draft stands for."""
        decisions = [DECISIONS[decision] for decision in draft.decisions.tolist()]
        return Plan.keep_all(self.instance).with_intervals(dict(zip(self.numbers, decisions, strict=True)))

    def placed(self, draft: Draft) -> Found:
        """Place a draft; where re-runs need more than the budget has, decide more around them and try again.

        Raises
        ------
        NoPlanError
            If nothing more can leave there, or the host has no room.
        """
        while True:
            self.complete(draft)
            plan = self.plan(draft)
            try:
                return Found(plan, place_and_judge(self.instance, plan))
            except PlacementError as error:
                if error.excess <= 0:
                    raise NoPlanError(str(error)) from None
                draft.pressure[error.operation] += error.excess


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
        order = search.recompute_order(search.fresh(), self.covering)
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


def _binned(positions: Integers, work: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Return the sum of `work` at each position below `length`."""
    return np.bincount(positions, weights=work, minlength=length)[:length].astype(np.float64)


def _backlog(arriving: NDArray[np.float64], time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a single server's backlog just after the arrivals at each of the rising times `time`, in units of time."""
    free = np.cumsum(arriving) - time
    return free - np.minimum.accumulate(free - arriving)


def _closure(instance: Instance, tensor: int, end: int) -> frozenset[int] | None:
    """Return the operations to run again for `tensor` just before operation `end`, if what is alive there is on the device.

    Operands whose life has ended by then are rebuilt too. None if one of them cannot be, or there are more than CLOSURE_LIMIT.
    """
    accesses, operations, writers, rebuildable = instance.accesses, instance.operations, instance.writers, instance.rebuildable
    closure: set[int] = set()
    wanted = [tensor]
    while wanted:
        i = wanted.pop()
        if not rebuildable[i] or len(closure) > CLOSURE_LIMIT:
            return None
        for t in writers[i]:
            if t not in closure:
                closure.add(t)
                for j in operations[t].reads:
                    if accesses[j][-1] < end and j != i:
                        wanted.append(j)
    return frozenset(closure)
