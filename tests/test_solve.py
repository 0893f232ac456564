"""The one door: every method's result is what the judge says of it; options and names that are wrong are refused."""

import logging
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings

from slackswap_opt import InputError, Plan, Schedule, compare, load, place, solve
from slackswap_opt.formulations.certificate import lower_bound
from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.result import Progress, Result, Status
from slackswap_opt.simulate import simulate
from slackswap_opt.solve import HEURISTICS, METHODS
from slackswap_opt.sweep import sweep
from slackswap_opt.testing import instances
from tests.handmade import step
from tests.naive_judge import naive

CHAIN = load("chain", blocks=6)


def test_the_heuristics_are_methods_with_a_line_each() -> None:
    assert HEURISTICS == ("greedy", "keep-all", "recompute-all", "first-blocks", "swap-all", "recompute-only", "swap-only")
    assert all(METHODS.values())


@settings(max_examples=40, deadline=None)
@given(instances(max_tensors=8, max_operations=10, budgets=(0, 100), host_budgets=True))
def test_every_method_passes_both_judges_within_the_budget(instance: Instance) -> None:
    for method in HEURISTICS:
        result = solve(instance, method)
        check(result, instance, method)
        if result.schedule:
            verdict = naive(instance, result.schedule)
            assert (verdict.peak, verdict.makespan) == (result.peak, result.makespan)
            assert instance.budget is None or verdict.peak <= instance.budget
            assert instance.host_budget is None or verdict.host_peak <= instance.host_budget


def check(result: Result, instance: Instance, method: str) -> None:
    """Hold the fields of a result against each other and against the judge."""
    assert (result.method, result.instance, result.ideal) == (method, instance, instance.ideal)
    assert result.runtime > 0
    assert (result.bound, result.gap, result.solver, result.solver_status) == (None, None, None, None)
    if result.schedule is None:
        assert result.status in (Status.INFEASIBLE, Status.UNKNOWN)
        assert (result.plan, result.timeline, result.makespan, result.retained, result.peak) == (None, None, None, None, None)
        assert result.message
        return
    assert result.status is Status.FEASIBLE
    assert result.message == ""
    assert result.smallest_budget is None
    timeline = simulate(instance, result.schedule)
    assert result.timeline == timeline
    assert (result.makespan, result.peak, result.retained) == (timeline.makespan, timeline.peak, timeline.retained)
    assert result.makespan is not None
    assert result.makespan >= instance.ideal


@settings(max_examples=40, deadline=None)
@given(instances(max_tensors=8, max_operations=10))
def test_keep_all_at_the_whole_peak_is_ideal(instance: Instance) -> None:
    result = solve(instance, "keep-all", budget=instance.peak)
    assert (result.makespan, result.peak, result.retained) == (instance.ideal, instance.peak, 1.0)


@settings(max_examples=25, deadline=None)
@given(instances(max_tensors=8, max_operations=10, budgets=(0, 60)))
def test_two_solves_find_the_same(instance: Instance) -> None:
    for method in HEURISTICS:
        first, second = solve(instance, method), solve(replace(instance), method)
        for field in fields(Result):
            if field.name != "runtime":
                assert getattr(first, field.name) == getattr(second, field.name)


@settings(max_examples=40, deadline=None)
@given(instances(max_tensors=8, max_operations=10, budgets=(0, 100)))
def test_a_budget_under_the_floor_is_proven_infeasible_by_every_method(instance: Instance) -> None:
    floor = max(instance.floor)
    if floor == 0:
        return
    for method in HEURISTICS:
        result = solve(instance, method, budget=floor - 1)
        assert result.status is Status.INFEASIBLE
        assert f"no schedule fits in {floor - 1} bytes: while operation '" in result.message
        assert result.smallest_budget is not None
        assert result.smallest_budget >= floor
        assert solve(instance, budget=result.smallest_budget).status is Status.FEASIBLE


def test_where_nothing_fits_the_message_names_operation_tensors_and_bytes() -> None:
    # In k: d 8, a 4 which is not free to leave, workspace 2, and e, f, g of 1 each which k reads.
    instance = step(
        "f! 5: -> a=4!", "g 1: -> e=1 f=1 h=1", "k 20 +2: e f h -> d=8", "a' 1: a ->", budget=10
    )  # fmt: skip
    result = solve(instance)
    assert result.status is Status.INFEASIBLE
    assert result.smallest_budget == 17
    assert result.message == (
        "no schedule fits in 10 bytes: while operation 'k' runs, 17 bytes must be there ('d' 8 B, 'e' 1 B, 'f' 1 B, 1 more "
        "tensors, workspace 2 B, tensors that cannot leave meanwhile 4 B); the smallest budget with a plan is 17 bytes"
    )


def test_where_a_host_is_full_nothing_is_proven() -> None:
    instance = step("f! 5: -> a=4", "k 20: -> d=8", "a' 1: a ->", budget=8, host_budget=3)
    result = solve(instance)
    assert result.status is Status.UNKNOWN
    assert "the host's budget of 3 bytes has no room" in result.message
    assert result.smallest_budget == 12


def test_a_baseline_that_does_not_fit_says_where() -> None:
    result = solve(CHAIN, "keep-all", budget="50%")
    assert result.status is Status.UNKNOWN
    assert result.message.startswith(
        "keep-all: operation 'blocks.5.backward' needs 700000000 bytes under this plan, over the budget of"
    )
    assert result.smallest_budget is None


@pytest.mark.parametrize(
    ("budget", "size"), [(None, None), (400_000_000, 400_000_000), ("50%", 350_000_000), ("0.5GB", 500_000_000), ("1KiB", 1024)]
)
def test_budgets_are_bytes_or_texts_with_a_unit(budget: int | str | None, size: int | None) -> None:
    assert solve(CHAIN, "keep-all", budget=budget).instance.budget == size


def test_a_budget_of_the_instance_stands_unless_another_is_given() -> None:
    instance = CHAIN.with_budget(400_000_000)
    assert solve(instance, "greedy").instance.budget == 400_000_000
    assert solve(instance, "greedy", budget="100%").instance.budget == instance.peak


@pytest.mark.parametrize("budget", [0, 1, 2**63 - 1])
def test_the_ends_of_the_range_of_budgets(budget: int) -> None:
    for method in HEURISTICS:
        expected = Status.INFEASIBLE if budget < CHAIN.largest_need else Status.FEASIBLE
        assert solve(CHAIN, method, budget=budget).status is expected


@pytest.mark.parametrize("budget", ["12", "50", "half", "", "-5%", "0%", "nan%", "12 parsecs", 1.5, -1, 2**63, True])
def test_budgets_that_are_refused(budget: Any) -> None:
    with pytest.raises(InputError, match="budget"):
        solve(CHAIN, budget=budget)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "gredy"}, r"unknown method 'gredy'; did you mean 'greedy'\? choose from greedy, keep-all, "),
        ({"method": "zzz"}, "unknown method 'zzz'; choose from greedy, keep-all, "),
        ({"method": ""}, "unknown method ''; choose from greedy"),
        ({"method": None}, "unknown method None; choose from greedy"),
        ({"method": ["greedy"]}, r"unknown method \['greedy'\]; "),
        ({"solver": "CBC"}, "method 'greedy' takes no solver, got 'CBC'"),
        ({"tolerance": -1e-9}, "tolerance must be a number from 0 to below 1, got -1e-09"),
        ({"tolerance": 1}, "tolerance must be a number from 0 to below 1, got 1"),
        ({"tolerance": float("nan")}, "tolerance must be a number from 0 to below 1, got nan"),
        ({"tolerance": "0.1"}, "tolerance must be a number from 0 to below 1, got '0.1'"),
        ({"tolerance": True}, "tolerance must be a number from 0 to below 1, got True"),
        ({"time_limit": -1}, "time_limit must be 0 or more seconds, or None for no limit, got -1"),
        ({"time_limit": float("inf")}, "time_limit must be 0 or more seconds, or None for no limit, got inf"),
        ({"threads": 0}, "threads must be an integer of 1 or more, or None, got 0"),
        ({"threads": 1.0}, r"threads must be an integer of 1 or more, or None, got 1\.0"),
        ({"seed": -1}, "seed must be an integer from 0 to 2147483647, got -1"),
        ({"seed": 2**31}, "seed must be an integer from 0 to 2147483647, got 2147483648"),
        ({"seed": True}, "seed must be an integer from 0 to 2147483647, got True"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve(CHAIN, **options)


def test_options_at_the_ends_of_their_ranges() -> None:
    seen: list[Progress] = []
    result = solve(CHAIN, tolerance=0, time_limit=0, threads=1, seed=2**31 - 1, on_progress=seen.append)
    assert result.status is Status.FEASIBLE


@pytest.mark.parametrize("other", ["gpt2-xl", None, 3])
def test_what_is_no_instance_is_refused(other: Any) -> None:
    with pytest.raises(InputError, match=r"'instance' must be an Instance, such as load\('gpt2-xl'\) returns"):
        solve(other)


def test_compare_keeps_the_order_and_looks_at_names_first() -> None:
    methods = ("swap-only", "greedy", "keep-all")
    results = compare(CHAIN, methods, budget="80%")
    assert tuple(result.method for result in results) == methods
    assert {result.instance.budget for result in results} == {CHAIN.peak * 80 // 100}
    with pytest.raises(InputError, match="unknown method 'nothing'"):
        compare(CHAIN, iter(["greedy", "nothing"]), budget="80%")
    assert compare(CHAIN, ()) == ()


def test_compare_hands_options_on() -> None:
    results = compare(CHAIN, ("greedy", "swap-all"), budget="80%", bound=True, tolerance=0.9)
    assert [result.status for result in results] == [Status.OPTIMAL] * 2
    assert all(result.certificate for result in results)
    with pytest.raises(InputError, match="time_limit must be 0 or more seconds"):
        compare(CHAIN, ("greedy",), time_limit=-1)


def test_a_bound_that_is_the_ideal_step_was_not_given_up() -> None:
    # With three fifths of its memory the relaxation of the chain loses nothing, though no plan was found that does.
    result = solve(load("chain"), budget="60%", bound=True, time_limit=500)
    assert result.bound == result.ideal
    assert result.message == ""


def test_a_bound_that_takes_too_long_is_given_up() -> None:
    result = solve(load("bert-large"), budget="50%", bound=True, time_limit=0)
    assert result.bound == result.ideal
    assert result.message == "no bound above the ideal step was proven within the time limit of 0 s"


def wrong(value: Any) -> dict[str, Callable[[], object]]:
    """Calls with a value of a wrong type, by what must be named."""
    schedule = solve(CHAIN).schedule
    assert schedule is not None
    plan = Plan.keep_all(CHAIN)
    return {
        "'instance'": lambda: simulate(value, schedule),
        "'schedule'": lambda: simulate(CHAIN, value),
        "'plan'": lambda: place(CHAIN, value),
        "'instance' ": lambda: place(value, plan),
        "'instance'  ": lambda: Plan.keep_all(value),
        "'intervals'": lambda: place(CHAIN, Plan(value, plan.tails)),
        "'tails'": lambda: place(CHAIN, Plan(plan.intervals, value)),
        "intervals[0]": lambda: place(CHAIN, Plan((value,) * len(plan.intervals), plan.tails)),
        "'link'": lambda: CHAIN.with_link(value),
        "'link' ": lambda: replace(CHAIN, link=value),
        "tensors[0]": lambda: replace(CHAIN, tensors=(value,)),
        "operations[0]": lambda: replace(CHAIN, operations=(value,)),
        "'instructions'": lambda: Schedule("a", "b", value),
        "instructions[0]": lambda: Schedule("a", "b", (value,)),
        "'methods'": lambda: compare(CHAIN, value),
        "instances[0]": lambda: sweep([value], ["greedy"]),
        "'bound'": lambda: solve(CHAIN, bound=value),
        "on_progress": lambda: solve(CHAIN, on_progress=value),
        "the name of a model": lambda: load(value),
        "the name of a file": lambda: Instance.load(value),
        "the name of a file ": lambda: CHAIN.save(value),
        "'instance'   ": lambda: lower_bound(value),
    }


@pytest.mark.parametrize("value", [5, 1.5])
@pytest.mark.parametrize("where", wrong(None))
def test_wrong_types_are_named(where: str, value: object) -> None:
    with pytest.raises(InputError) as error:
        wrong(value)[where]()
    assert str(error.value).startswith(f"{where.rstrip()} must be")


def test_a_single_name_is_no_list_of_methods() -> None:
    with pytest.raises(InputError, match="'methods' must be a sequence of names, got 'greedy'"):
        compare(CHAIN, "greedy")


def test_each_solve_is_logged_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "slackswap_opt"):
        solve(CHAIN, "greedy", budget="80%")
    assert [record.getMessage() for record in caplog.records] == ["greedy on chain blocks=6: feasible"]


@pytest.mark.parametrize("method", HEURISTICS)
def test_steps_with_next_to_nothing_in_them(method: str) -> None:
    link = Link(1, 1)
    steps = (
        Instance("nothing", (), (), link, 0),
        Instance("one operation", (), (Operation("o", 5),), link, 0),
        Instance("no time", (), (Operation("o", 0),), link, 0),
        Instance(
            "no bytes", (Tensor("t", 0),), (Operation("o", 5, (), (0,)), Operation("p", 5), Operation("q", 5, (0,))), link, 0
        ),
        Instance("workspace", (), (Operation("o", 5, workspace=7),), link, 7),
        Instance("never read", (Tensor("t", 7),), (Operation("o", 5, (), (0,)),), link, 7),
    )
    for instance in steps:
        result = solve(instance, method)
        assert (result.status, result.makespan, result.retained) == (Status.FEASIBLE, instance.ideal, 1.0), instance.name


def test_an_interrupt_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["slackswap_opt.place"], "simulate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve(CHAIN, budget="80%")
