"""What is measured beside what was predicted, and what no prediction holds."""

from dataclasses import replace

import pytest

from slackswap_opt.runtime.budget import MemoryBudget
from slackswap_opt.runtime.report import PlanReport, Report, StepRecord
from tests.runtime.loops import Net, ordinary


@pytest.fixture(scope="module")
def plan() -> PlanReport:
    budget = MemoryBudget("70%")
    ordinary(Net(), budget.step)
    (found,) = budget.report().plans
    return found


def steps(plan: PlanReport, *times: int) -> PlanReport:
    """Return the plan with steps that took as long beyond their prediction, and waited for 300 ns in all."""
    makespan = plan.ready.usual.program.timeline
    predicted = makespan.makespan - makespan.offload_stall - makespan.prefetch_stall
    records = (StepRecord("", True, predicted + time + 300, 100, 200, None, 0, 0, 0, ()) for time in times)
    return replace(plan, steps=tuple(records))


def test_what_the_host_takes_is_what_is_left_of_the_median_step(plan: PlanReport) -> None:
    assert steps(plan, 5_000, 70_000, 9_000).beside() == 9_000
    assert steps(plan).beside() is None


def test_steps_that_left_the_plan_do_not_count(plan: PlanReport) -> None:
    few = steps(plan, 5_000, 70_000)
    left = replace(few.steps[1], reason="it did something else")
    assert replace(few, steps=(few.steps[0], left)).beside() == 5_000


def test_the_host_is_told_of_where_it_matters(plan: PlanReport) -> None:
    operations = len(plan.ready.usual.program)
    text = str(Report("", 2, (steps(plan, 4_000_000 * operations),)))
    assert f"which no prediction holds: {4 * operations:.2f} ms of the step, 4.00 ms an operation" in text
    assert "no prediction" not in str(Report("", 2, (steps(plan, 1),)))
