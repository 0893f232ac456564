"""Method `auto`: each stage only if the ones before it left something to gain, with a certified bound, and nothing hidden."""

import time

import pytest
from hypothesis import given, settings

from slackswap_opt import load, portfolio, solve
from slackswap_opt.drafts import Found, NoPlanError
from slackswap_opt.formulations import milp
from slackswap_opt.formulations.linear import LinearProgram
from slackswap_opt.formulations.relaxation import Relaxation, RelaxationError
from slackswap_opt.formulations.solved import Limits, Outcome, Solved
from slackswap_opt.greedy import greedy
from slackswap_opt.instance import Instance
from slackswap_opt.result import Progress, Status
from tests.brute_force import optimum
from tests.handmade import step
from tests.tiny_instances import tiny_instances

SLOW_LINK = step(
    *("f 10: -> a=4", "g 10: a -> b=4", "h 30: b -> c=4", "h' 10: c ->", "g' 10: b ->", "f' 10: a ->"),
    budget=8,
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Limits]:
    """The limits of every call of the exact solver, which finds nothing."""
    calls: list[Limits] = []

    def nothing(program: LinearProgram, solver: str, limits: Limits, start: tuple[int, ...] | None) -> Solved:
        calls.append(limits)
        return Solved(Outcome.STOPPED, words="nothing")

    monkeypatch.setattr(milp, "solve_program", nothing)
    return calls


@settings(max_examples=30, deadline=None)
@given(tiny_instances(tensors=5, operations=8))
def test_its_bound_holds_and_its_plan_is_possible(instance: Instance) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(milp, "solve_program", lambda *_: Solved(Outcome.STOPPED))
        result = solve(instance, "auto", tolerance=0)
    least = optimum(instance)
    if result.makespan is None:
        assert (result.status is Status.INFEASIBLE) <= (least is None)
        return
    assert least is not None
    assert result.bound is not None
    assert instance.ideal <= result.bound <= result.makespan
    assert least <= result.makespan
    assert (result.status is Status.OPTIMAL) == (result.bound == result.makespan)


def test_it_stops_once_within_the_tolerance(asked: list[Limits]) -> None:
    result = solve(SLOW_LINK, "auto")
    assert (result.status, result.bound, result.makespan) == (Status.OPTIMAL, 80, 80)
    assert (asked, result.solver, result.message) == ([], None, "")
    chain = load("chain")
    loose = solve(chain, "auto", budget="50%", tolerance=0.5)
    assert loose.status is Status.OPTIMAL
    assert asked == []
    strict = solve(chain, "auto", budget="50%", tolerance=0.0)
    assert strict.status is Status.FEASIBLE
    assert (len(asked), strict.solver, strict.solver_status) == (1, "HiGHS", "nothing")
    assert strict.message == ""
    assert strict.bound is not None
    assert chain.ideal < strict.bound < (strict.makespan or 0)


def test_stages_share_the_time_and_each_begins_from_the_best_plan(asked: list[Limits]) -> None:
    states: list[Progress] = []
    result = solve(load("chain"), "auto", budget="50%", tolerance=0, time_limit=100, on_progress=states.append)
    bounds, makespans = [state.bound or 0 for state in states], [state.makespan or 0 for state in states]
    assert bounds == sorted(bounds)
    assert makespans == sorted(makespans, reverse=True)
    assert (bounds[-1], makespans[-1]) == (result.bound, result.makespan)
    (limits,) = asked
    assert limits.deadline is not None
    assert limits.deadline < time.monotonic() + 100
    solve(load("chain"), "auto", budget="50%", tolerance=0)
    assert asked[1].deadline is not None, "without a time limit the solver has one of its own"
    assert solve(load("chain"), "auto", budget="50%", time_limit=0).plan == greedy(_halved(load("chain"))).plan
    assert len(asked) == 2


def _halved(instance: Instance) -> Instance:
    return instance.with_budget(instance.peak // 2)


def test_a_relaxation_that_fails_is_told(asked: list[Limits], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(program: LinearProgram, *, time_limit: float | None) -> Relaxation:
        raise RelaxationError("HiGHS ended the linear relaxation with status 'Unknown'")

    monkeypatch.setattr(portfolio, "relax", fail)
    instance = _halved(load("chain"))
    result = solve(instance, "auto")
    assert result.status is Status.FEASIBLE
    assert result.bound == instance.ideal
    assert "linear relaxation with status 'Unknown'" in result.message


def test_a_solver_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milp, "solve_program", lambda *_: Solved(Outcome.FAILED, words="killed by signal 9"))
    result = solve(_halved(load("chain")), "auto")
    assert (result.status, result.message) == (Status.FEASIBLE, "HiGHS failed: killed by signal 9")


def test_a_plan_is_found_where_greedy_finds_none(asked: list[Limits], monkeypatch: pytest.MonkeyPatch) -> None:
    def none(instance: Instance) -> Found:
        raise NoPlanError("no plan")

    monkeypatch.setattr(portfolio, "greedy", none)
    result = solve(_halved(load("chain")), "auto", tolerance=0.5)
    assert result.plan is not None
    assert result.message == ""


@pytest.mark.slow
@pytest.mark.parametrize(("model", "points"), [("bert-large", 0.2), ("gpt2-xl", 0.1), ("llama-7b", 0.05), ("resnet-50", 0.3)])
def test_gaps_of_the_models_at_half_of_their_peak(model: str, points: float) -> None:
    result = solve(load(model), "auto", budget="50%", time_limit=20)
    assert result.gap is not None
    assert 100 * result.gap <= points
