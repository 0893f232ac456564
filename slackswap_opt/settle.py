"""From what a relaxation or a solver suggests to schedules.

A solver's choice between keeping and swapping is one of many that its model holds for equal. So only what is recomputed is
taken from it, and swaps are chosen again: first produced first, as greedy does. What does not fit is mended, where a few
decisions do that.
"""

import math
from collections.abc import Collection, Iterator
from itertools import islice

import numpy as np

from slackswap_opt.drafts import DECISIONS, KEEP, RECOMPUTE, SWAP, Draft, Found, NoPlanError, SlackSwap
from slackswap_opt.estimate import Estimate
from slackswap_opt.instance import Instance
from slackswap_opt.place import PlacementError, place_and_judge
from slackswap_opt.plan import Decision, Plan

LONGEST_CHAIN = 4
"""Re-runs that one re-run may set off: relaxations are blind to what is missing then, and placing such a plan takes long."""
MOST_MORE = 24
"""How many candidates more than asked for a completion may recompute."""
FEWEST_MENDS, MOST_MENDS, MENDED_OPERATIONS = 10, 100, 100_000
"""How many placements a plan is mended by: as many as come to `MENDED_OPERATIONS` operations, within the other two."""


def completed(search: SlackSwap, recompute: Collection[int]) -> Found | None:
    """Return the plan that recomputes these candidates and swaps what else must leave, first produced first.

    Where copies are whole there may be no time for all of these swaps: then a few more candidates are recomputed, the cheapest
    a byte first, as many as the estimate is least for.

    Parameters
    ----------
    search
        The candidates of the instance.
    recompute
        Numbers of candidates. Those that cannot be recomputed, or not without a long chain of others, are left out.

    Returns
    -------
    Found or None
        None if the plan does not fit.
    """
    draft, estimate = search.fresh(), Estimate(search)
    for c in sorted(without_chains(search, recompute)):
        search.recompute(draft, c)
    worst = int(np.argmax(search.left(draft)))
    order = [c for c, _ in search.recompute_order(draft, search.covering(draft, worst))]
    best, least = None, math.inf
    for more in range(min(len(order), MOST_MORE) + 1):
        swapped = _swapped(search, draft)
        if swapped and (overhead := estimate.overhead(swapped.decisions)) < least:
            best, least = swapped, overhead
        if more < len(order):
            search.recompute(draft, order[more])
    try:
        return search.placed(best) if best else None
    except NoPlanError:
        return None


def _swapped(search: SlackSwap, draft: Draft) -> Draft | None:
    """Return a draft with swaps, or re-runs where nothing can be swapped, until it fits, or None if it cannot."""
    while True:
        left = search.left(draft)
        worst = int(np.argmax(left))
        excess = int(left[worst]) - search.budget
        if excess <= 0:
            return draft.copy()
        relieved = search.relieved(draft, search.covering(draft, worst), excess, swap_first=True)
        if relieved is None:
            return None
        draft = relieved


def settled(instance: Instance, plan: Plan) -> tuple[Found | None, str]:
    """Return the shorter of two placements of a plan, as it is and with its swaps chosen again, and why the first is none.

    Either may be missing: a solver's plan need not fit, or it fits only if more is recomputed.
    """
    search = SlackSwap(instance, swap=True, recompute=True)
    recompute = {c for c, g in enumerate(search.numbers) if plan.intervals[g] is Decision.RECOMPUTE}
    fault, candidates = "", [completed(search, recompute)]
    if without_chains(search, recompute) == recompute & search.closures.keys():
        try:
            candidates.append(Found(plan, place_and_judge(instance, plan)))
        except PlacementError as error:
            fault = str(error)
    else:
        fault = f"one of its re-runs sets off a chain of more than {LONGEST_CHAIN} others"
    best = min((found for found in candidates if found), key=lambda found: found.makespan, default=None)
    return best or mended(search, plan), fault


def mended(search: SlackSwap, plan: Plan) -> Found | None:
    """Return a plan that fits, reached from one that does not by single decisions, or None if none is found.

    Each is about a tensor whose idle interval covers the operation where bytes are missing or ends there, since re-runs may
    bring it back too early. The shortest plan that fits is taken; while there is none, the one with the fewest bytes missing.
    """
    tries = max(FEWEST_MENDS, min(MOST_MENDS, MENDED_OPERATIONS // max(1, len(search.durations))))
    outcome = _placed_or_fault(search, plan)
    while isinstance(outcome, PlacementError) and outcome.excess > 0:
        others = list(islice(_around(search, plan, outcome.operation), tries))
        tries -= len(others)
        tried = [(other, _placed_or_fault(search, other)) for other in others]
        found = [result for _, result in tried if isinstance(result, Found)]
        if found:
            return min(found, key=lambda result: result.makespan)
        faults = [(other, result) for other, result in tried if isinstance(result, PlacementError) and result.excess > 0]
        plan, best = min(faults, key=lambda fault: fault[1].excess, default=(plan, outcome))
        if best.excess >= outcome.excess:
            return None
        outcome = best
    return outcome if isinstance(outcome, Found) else None


def _around(search: SlackSwap, plan: Plan, t: int) -> Iterator[Plan]:
    """Yield the plans with another decision for one of the candidates whose interval covers operation `t` or ends there."""
    for c in np.flatnonzero((search.start < t) & (t <= search.end)).tolist():
        for decision in (KEEP, SWAP, RECOMPUTE):
            other = plan.with_intervals({search.numbers[c]: DECISIONS[decision]})
            if search.may(c, decision) and other != plan:
                yield other


def _placed_or_fault(search: SlackSwap, plan: Plan) -> Found | PlacementError:
    try:
        return Found(plan, place_and_judge(search.instance, plan))
    except PlacementError as error:
        return error


def without_chains(search: SlackSwap, recompute: Collection[int]) -> set[int]:
    """Return some candidates without those whose re-run would set off a chain of more than LONGEST_CHAIN re-runs.

    A chain is one candidate whose re-run reads another one while that is gone, and so on.
    """
    operations = search.instance.operations
    depth: dict[int, int] = {}
    of_tensor: dict[int, list[int]] = {}
    for c in sorted(set(recompute) & search.closures.keys(), key=lambda c: (search.produced[c], c)):
        operands = {i for t in search.closures[c] for i in operations[t].reads} - {int(search.tensor[c])}
        read = (g for i in operands for g in of_tensor.get(i, ()) if search.start[g] < search.end[c] < search.end[g])
        links = 1 + max((depth[g] for g in read), default=0)
        if links <= LONGEST_CHAIN:
            depth[c] = links
            of_tensor.setdefault(int(search.tensor[c]), []).append(c)
    return set(depth)
