"""Plans of every kind for a step, and schedules that carry them out in the plainest way, or with copies at random places."""

from random import Random

from slackswap_opt.instance import Instance
from slackswap_opt.lanes import swaps_of
from slackswap_opt.place import _instructions
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.runlist import run_list
from slackswap_opt.schedule import Schedule


def swap_all(instance: Instance) -> Plan:
    """Swap whatever can be."""
    return _plan(instance, [Decision.SWAP] * len(instance.idle_intervals))


def recompute_all(instance: Instance) -> Plan:
    """Rebuild whatever can be."""
    return _plan(instance, [Decision.RECOMPUTE] * len(instance.idle_intervals))


def random_plan(instance: Instance, random: Random) -> Plan:
    """Decide at random, with as much of each as chance will have it."""
    swaps, re_runs = random.random(), random.random()
    wished = random.choices([Decision.SWAP, Decision.RECOMPUTE, Decision.KEEP], [swaps, re_runs, 0.5], k=10_000)
    return _plan(instance, wished)


def _plan(instance: Instance, wished: list[Decision]) -> Plan:
    intervals = []
    for interval, decision in zip(instance.idle_intervals, wished, strict=False):
        swaps = decision is Decision.SWAP and instance.tensors[interval.tensor].swappable
        re_runs = decision is Decision.RECOMPUTE and instance.can_recompute(interval)
        intervals.append(decision if swaps or re_runs else Decision.KEEP)
    # What cannot be made again stays for the re-runs that read it.
    tails = (Decision.DISCARD if rebuildable else Decision.KEEP for rebuildable in instance.rebuildable)
    return Plan(tuple(intervals), tuple(tails))


def schedule_of(instance: Instance, plan: Plan, random: Random | None = None) -> Schedule:
    """Return a schedule that copies at the last moment and waits for it, or at any moment that the plan allows."""
    runs = run_list(instance, plan)
    swaps = swaps_of(instance, runs)
    for swap in swaps:
        earliest = swap.out.last + 1
        swap.issue, swap.evict, swap.fetch = earliest, earliest, swap.back.first
        if random is not None:
            swap.evict = random.randint(earliest, swap.gone_by) if swap.copies else earliest
            swap.issue = random.randint(swap.out.written + 1, swap.evict)
            swap.fetch = random.randint(max(swap.evict, swap.back_after), swap.back.first)
    return Schedule.of(instance, _instructions(runs, swaps))
