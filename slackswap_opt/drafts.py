"""Drafts of plans: what some decisions cost and leave over budget, and what else must be decided until they fit."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.candidates import Candidates, Integers, RecomputeCosts
from slackswap_opt.instance import Instance
from slackswap_opt.place import Placement, PlacementError, place_and_judge
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.returns import Companions, EarlyReturns

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
    returns
        What the re-runs bring back early; None until that is asked for.
    """

    decisions: NDArray[np.int8]
    reruns: set[int]
    rho: Integers
    pressure: Integers
    returns: EarlyReturns | None = None

    def copy(self) -> "Draft":
        """Return a draft of its own with the same decisions."""
        returns = self.returns.copy() if self.returns else None
        return Draft(self.decisions.copy(), set(self.reruns), self.rho.copy(), self.pressure.copy(), returns)


@dataclass(frozen=True, slots=True)
class Found:
    """A plan with its placement."""

    plan: Plan
    placement: Placement

    @property
    def makespan(self) -> int:
        """Nanoseconds of the step under the plan."""
        return self.placement.timeline.makespan


class SlackSwap(Candidates):
    """Drafts that swap and recompute the candidates of an instance."""

    def __init__(self, instance: Instance, *, swap: bool, recompute: bool) -> None:
        super().__init__(instance, swap=swap, recompute=recompute)
        self.companions = Companions(self)
        self.share = 1.0
        """The share of the room there is that recomputed tensors may fill before their intervals end."""

    def fresh(self) -> Draft:
        """Return the draft that keeps everything."""
        operations = len(self.durations)
        zeros = np.zeros(operations, dtype=np.int64)
        return Draft(np.zeros(len(self.numbers), dtype=np.int8), set(), zeros, zeros.copy())

    def covering(self, draft: Draft, t: int) -> Integers:
        """Return the kept candidates through whose idle interval operation `t` runs, first produced first, small ones last."""
        inside = np.flatnonzero((self.start < t) & (t < self.end) & (draft.decisions == KEEP))
        return inside[np.lexsort((self.tensor[inside], self.produced[inside], self.small[inside]))]

    def recompute_order(self, draft: Draft, among: Integers) -> Iterator[tuple[int, int]]:
        """Yield (candidate, nanoseconds it adds) by nanoseconds a byte, each given that those before it are recomputed.

        Last come, in the same order, those whose re-runs would bring more back early than there is room for.
        """
        costs, returns = RecomputeCosts(self, draft.reruns, among), self.returns_of(draft).copy()
        while (c := costs.cheapest()) is not None:
            if returns.take(c):
                yield c, costs.take(c)
            else:
                costs.put_off(c)
        costs.bring_up()
        while (c := costs.cheapest()) is not None:
            yield c, costs.take(c)

    def returns_of(self, draft: Draft) -> EarlyReturns:
        """Return what the re-runs of a draft bring back early."""
        if draft.returns is None:
            draft.returns = EarlyReturns(self, self.companions, self.share)
            for c in np.flatnonzero(draft.decisions == RECOMPUTE).tolist():
                draft.returns.add(c)
        return draft.returns

    def recompute(self, draft: Draft, c: int) -> None:
        """Decide RECOMPUTE for candidate `c`."""
        draft.decisions[c] = RECOMPUTE
        if draft.returns:
            draft.returns.add(c)
        new = self.closures[c] - draft.reruns
        draft.reruns |= new
        draft.rho[self.end[c]] += sum(int(self.durations[t]) for t in new)

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
            draft.decisions, draft.reruns, draft.rho, draft.returns = best.decisions, best.reruns, best.rho, best.returns

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
                    self.recompute(option, c)
                    excess -= int(self.size[c])
                    if excess <= 0:
                        break
        return option if excess <= 0 else None

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


def _binned(positions: Integers, work: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """Return the sum of `work` at each position below `length`."""
    return np.bincount(positions, weights=work, minlength=length)[:length].astype(np.float64)


def _backlog(arriving: NDArray[np.float64], time: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a single server's backlog just after the arrivals at each of the rising times `time`, in units of time."""
    free = np.cumsum(arriving) - time
    return free - np.minimum.accumulate(free - arriving)
