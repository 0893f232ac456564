"""From a plan to a schedule: re-runs just in time, copies out as early and copies back as late as the lanes allow.

The run list fixes what each event needs. Copies under way add to it: a tensor lingers until its offload has ended, and is
allocated when its prefetch is issued. Both are moved when the budget has no room; compute waits only where nothing else fits.
"""

from collections import defaultdict
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from slackswap_opt.files import check_type
from slackswap_opt.instance import Instance
from slackswap_opt.lanes import OffloadLane, Swap, fetch_in_time, swaps_of
from slackswap_opt.plan import Plan
from slackswap_opt.runlist import PlacementError, RunList, run_list
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import simulate
from slackswap_opt.timeline import Timeline

__all__ = ["Placement", "PlacementError", "place", "place_and_judge"]


class Placement(NamedTuple):
    """A schedule, and what the judge says of it."""

    schedule: Schedule
    timeline: Timeline


def place(instance: Instance, plan: Plan) -> Schedule:
    """Return a schedule that carries out `plan` within the budget, as short as was found.

    Raises
    ------
    PlacementError
        If the plan does not fit, or drops what cannot come back.
    InputError
        If the plan is not one for this instance.
    """
    check_type(plan, Plan, "'plan'", "a Plan")
    plan.check_for(instance)
    return place_and_judge(instance, plan).schedule


def place_and_judge(instance: Instance, plan: Plan) -> Placement:
    """Like `place`, with the timeline of the schedule.

    Copies are placed on the time axis of the bare durations first; if compute then stalls, once more on the axis that the judge
    found, stalls included, and the shorter schedule is returned.
    """
    runs = run_list(instance, plan)
    durations = (instance.operations[t].duration for t in runs.events)
    placement = _on_axis(instance, runs, list(accumulate(durations, initial=0)))
    if placement.timeline.offload_stall + placement.timeline.prefetch_stall == 0:
        return placement
    starts = zip(placement.schedule.instructions, placement.timeline.start, strict=True)
    again = _on_axis(
        instance, runs, [*(start for (action, _), start in starts if action is Action.RUN), placement.timeline.makespan]
    )
    return min(placement, again, key=lambda candidate: candidate.timeline.makespan)


def _on_axis(instance: Instance, runs: RunList, axis: list[int]) -> Placement:
    """Place the copies for events that start at the times in `axis` (ns), and judge the schedule."""
    swaps = swaps_of(instance, runs)
    memory = np.asarray(runs.memory(instance), dtype=np.int64)
    lane = OffloadLane(instance, runs, swaps, memory, axis)
    lane.sweep()
    fetch_in_time(instance, swaps, memory, lane.starts)
    schedule = Schedule.of(instance, _instructions(runs, swaps))
    return Placement(schedule, simulate(instance, schedule))


def _instructions(runs: RunList, swaps: list[Swap]) -> list[Instruction]:
    """Write down events and copies; at a position: drops, offloads, evictions, then prefetches."""
    before: dict[int, list[tuple[int, int, Instruction]]] = defaultdict(list)
    drops: dict[int, list[Instruction]] = defaultdict(list)
    travelling = {id(swap.out) for swap in swaps if swap.kept or swap.copies}
    for stays in runs.stays:
        for stay in stays:
            if id(stay) not in travelling:
                drops[stay.last + 1].append(Instruction(Action.DROP, stay.tensor))
    for n, swap in enumerate(swaps):
        if swap.kept:
            continue
        if swap.copies:
            before[swap.issue].append((0, n, Instruction(Action.OFFLOAD, swap.tensor)))
            before[swap.evict].append((1, n, Instruction(Action.EVICT, swap.tensor)))
        before[swap.fetch].append((2, swap.back.first, Instruction(Action.PREFETCH, swap.tensor)))
    instructions: list[Instruction] = []
    for e, t in enumerate(runs.events):
        if e in drops:
            instructions += drops[e]
        if e in before:
            instructions += [instruction for *_, instruction in sorted(before[e])]
        instructions.append(Instruction(Action.RUN, t))
    return instructions + drops[len(runs.events)]
