"""Trains a case under budgets with plans of three kinds, and compares with plain training bit by bit."""

from collections.abc import Callable
from contextlib import nullcontext

from slackswap_opt.greedy import smallest_budget
from slackswap_opt.instance import Instance
from slackswap_opt.runtime import MemoryBudget
from slackswap_opt.schedule import Schedule
from slackswap_opt.solve import solve
from tests.runtime.cases import Case
from tests.runtime.plans import recompute_all, schedule_of, swap_all
from tests.runtime.training import difference, train

PROFILED = 3
"""Steps until a plan: two that were alike, after the first, in which gradients were made."""


def halfway(instance: Instance) -> Schedule:
    """Return what greedy makes of a budget halfway between the smallest and that of keeping everything."""
    least = smallest_budget(instance)
    assert least is not None
    found = solve(instance, budget=(least + instance.peak) // 2).schedule
    assert found is not None
    return Schedule.of(instance, found.instructions)


METHODS: dict[str, Callable[[Instance], Schedule]] = {
    "halfway": halfway,
    "all swapped": lambda instance: schedule_of(instance, swap_all(instance)),
    "all recomputed": lambda instance: schedule_of(instance, recompute_all(instance)),
}


def check(case: Case, *, inside: bool, steps: int = PROFILED + 3) -> None:
    """Assert that training under each plan leaves every bit as plain training does, and that its last steps follow the plan."""
    plain = train(case, nullcontext, steps)
    for name, method in METHODS.items():
        budget = MemoryBudget("1000%", method=method, on_leave="raise")
        assert difference(plain, train(case, budget.step, steps, inside=inside)) == "", name
        budget.close()
        (plan,) = budget.report().plans
        timeline = plan.ready.usual.program.timeline
        assert len(plan.steps) >= 2, name
        for step in plan.steps:
            assert step.complete
            assert step.unexpected == ()
            assert (step.offloaded, step.prefetched) == (timeline.offloaded, timeline.prefetched)
            assert step.reruns == timeline.recomputed
        assert name != "all swapped" or timeline.offloaded > 0
        assert name != "all recomputed" or timeline.recomputed > 0
