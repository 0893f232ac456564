"""The exact optimum of tiny instances by exhaustive search, the measure that methods and bounds are held against.

Nothing here calls a method, a formulation or the placement. The schedule that is returned goes through the judge, which must
give the same makespan.
"""

import heapq
from itertools import chain
from typing import Literal

from slackswap_opt.instance import Instance
from slackswap_opt.schedule import Instruction, Schedule
from slackswap_opt.simulate import simulate
from tests.plan_space import PlanRules
from tests.schedule_space import Cell, Node, Rules

MOST_TENSORS, MOST_OPERATIONS = 8, 14


class SearchLimitError(RuntimeError):
    """The instance is too large for exhaustive search; nothing is known of its optimum."""


def best_schedule(
    instance: Instance, *, space: Literal["plan", "all"] = "plan", W: int | None = None, limit: int = 400_000
) -> tuple[int, Schedule] | None:
    """Return the least makespan in nanoseconds and a schedule that has it, or None if no schedule fits.

    The search is A* over the states that instructions lead to. Of two ways to the same state, one with every clock as early
    makes the other needless, because starts are maxima of clocks. That ends all cycles too, so re-runs need no limit.

    Schedules of the plan space obey these rules besides those of every schedule.

    - An idle interval is *open* if some operation inside it would be over budget were everything kept. From its first access to
      its last, outside open intervals, a tensor stays on the device.
    - For an open interval one of three is chosen right after the access that begins it. KEEP: the tensor stays. SWAP: it
      leaves, at once by `drop` if the host has its present state, else by an offload, issued at any time since it was written,
      and an `evict` at any later time. RECOMPUTE: it is dropped at once, if all of its writers have run and can give it again.
      What leaves serves no re-run until it is back. It comes back once, by a `prefetch` at any time or by a re-run, before the
      interval ends, and stays until then.
    - After its last access one of four is chosen. KEEP, SWAP and RECOMPUTE are as above, but the stay ends with the last re-run
      that reads the tensor. DISCARD: it is dropped at once, rebuilt where re-runs just before one operation read it (several
      times if it pays), and dropped before that operation runs.
    - Re-runs just before operation `d` rebuild a tensor, or read one that is back, only where its interval ends at `d + W` or
      sooner. There is no such limit after a last access, nor for what is kept.
    - A re-run is of a writer of an absent tensor that may come back by it. Its other outputs that were absent come back too, if
      they may, or are dropped at once. The writers of one tensor run in order before one operation, and what they write serves
      nobody else until the last has run.

    Parameters
    ----------
    space
        ``"all"`` for every valid schedule, ``"plan"`` for those of the plan space.
    W
        In the plan space, how many operations before the end of its interval a tensor may be wanted; None for no limit.
    limit
        How many states may be looked at.

    Raises
    ------
    SearchLimitError
        If the instance has more than 8 tensors or 14 operations, or the search takes more than `limit` states.
    """
    if len(instance.tensors) > MOST_TENSORS or len(instance.operations) > MOST_OPERATIONS:
        raise SearchLimitError(f"'{instance.name}' is too large: at most {MOST_TENSORS} tensors, {MOST_OPERATIONS} operations")
    if space == "all" and W is not None:
        raise ValueError("W is a limit of the plan space; space 'all' has none")
    rules = Rules(instance) if space == "all" else PlanRules(instance, W)
    best = search(rules, limit)
    if best is None:
        return None
    schedule = Schedule.of(instance, instructions(best))
    judged = simulate(instance, schedule).makespan
    assert judged == rules.makespan(best), f"the judge says {judged}, the search {rules.makespan(best)}"
    return judged, schedule


def optimum(instance: Instance) -> int | None:
    """Return the least makespan of all schedules, or None if none fits; see `best_schedule`."""
    found = best_schedule(instance, space="all")
    return found and found[0]


def plan_optimum(instance: Instance, W: int | None = None) -> int | None:
    """Return the least makespan of the plan space, or None if nothing in it fits; see `best_schedule`."""
    found = best_schedule(instance, W=W)
    return found and found[0]


def search(rules: Rules, limit: int) -> Node | None:
    """Return the end of a shortest schedule under `rules`, or None if there is none."""
    start, last = rules.root(), len(rules.instance.operations)
    fronts: dict[tuple[int, tuple[Cell, ...]], list[Node]] = {(start.next, start.cells): [start]}
    queue, seen = [(rules.bound(start) or 0, 0, 0, start)], 0
    while queue:
        node = heapq.heappop(queue)[-1]
        if node.next == last:
            return node
        if not any(node is other for other in fronts[node.next, node.cells]):
            continue
        for after in rules.moves(node):
            seen += 1
            if seen > limit:
                raise SearchLimitError(f"'{rules.instance.name}' takes more than {limit} states")
            front = fronts.setdefault((after.next, after.cells), [])
            if (least := rules.bound(after)) is None or any(other.dominates(after) for other in front):
                continue
            front[:] = [other for other in front if not after.dominates(other)]
            front.append(after)
            heapq.heappush(queue, (least, -after.next, seen, after))
    return None


def instructions(node: Node) -> tuple[Instruction, ...]:
    """Return the instructions that led to `node`."""
    groups = []
    at: Node | None = node
    while at:
        groups.append(at.issued)
        at = at.parent
    return tuple(chain.from_iterable(reversed(groups)))
