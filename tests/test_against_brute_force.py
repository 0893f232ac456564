"""No method does better than exhaustive search, of all schedules or of its plan space, nor calls infeasible what has one."""

import pytest
from hypothesis import assume, given, settings

from slackswap_opt.instance import Instance
from slackswap_opt.result import Status
from slackswap_opt.solve import METHODS, solve
from slackswap_opt.testing import instances
from tests.brute_force import SearchLimitError, best_schedule, optimum
from tests.tiny_instances import tiny_instances

SOLVERS = ("auto", "cbc", "highs", "milp", "cp-sat")
"""Methods that ask an exact solver, which takes its time to start."""


every_method = pytest.mark.parametrize(
    "method", [pytest.param(m, marks=pytest.mark.slow if m in SOLVERS else ()) for m in METHODS]
)


@every_method
@settings(max_examples=40, deadline=None)
@given(instance=tiny_instances(tensors=5, operations=8) | instances(max_tensors=4, budgets=(0, 100), host_budgets=True))
def test_a_method_never_beats_the_optimum(method: str, instance: Instance) -> None:
    result, least = solve(instance, method), optimum(instance)
    if result.makespan is not None:
        assert least is not None
        assert least <= result.makespan
    if result.status is Status.INFEASIBLE:
        assert least is None
    if result.smallest_budget is not None:
        assert instance.budget is not None
        assert result.smallest_budget > instance.budget
        assert optimum(instance.with_budget(result.smallest_budget)) is not None


@every_method
@settings(max_examples=15, deadline=None)
@given(instance=tiny_instances(tensors=4, operations=7))
def test_a_method_never_beats_the_plan_space(method: str, instance: Instance) -> None:
    result = solve(instance, method)
    if result.makespan is None:
        return
    try:
        best = best_schedule(instance, limit=20_000)
    except SearchLimitError:
        assume(False)
    assert best is not None
    assert best[0] <= result.makespan
