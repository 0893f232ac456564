"""Steps at the edge of what a model of swaps and re-runs is for, through every method that plans by choice."""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from slackswap_opt import solve
from slackswap_opt.exact import Run
from slackswap_opt.formulations import cp_sat, milp
from slackswap_opt.formulations.certificate import lower_bound, verify
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.formulations.solved import Limits, Outcome, Solved
from slackswap_opt.greedy import greedy
from slackswap_opt.instance import Instance, Link
from slackswap_opt.plan import Decision
from slackswap_opt.result import Options, Status
from tests.brute_force import optimum
from tests.handmade import step

METHODS = ("greedy", "auto", "cbc", "highs", "cp-sat")
FASTEST = 2**63 - 1

# b and c fill the budget of 8 in h and h', so a must leave after g, and there is no room for it before g'.
REST = ("g 10: a -> b=4", "h 30: b -> c=4", "h' 10: c ->", "g' 10: b ->", "f' 10: a ->")
RERUNS = step("f 10: -> a=4", *REST, budget=8)
NO_RERUNS = step("f! 10: -> a=4", *REST, budget=8)
NO_SWAPS = step("f 10: -> a=4!", "g 10: a -> b=4!", "h 30: b -> c=4!", *REST[2:], budget=8)


SLOW = Link(10**8, 10**9)
"""40 ns to copy 4 bytes out, 4 ns to copy them back."""

CASES = {
    # a is written at 10 and must have left at 20: 40 ns are 30 too many, and f may run again or not.
    "recomputation": (RERUNS.with_link(SLOW), 90),
    "no recomputation": (NO_RERUNS.with_link(SLOW), 110),
    # 4 bytes take 4 seconds, or do not go at all.
    "next to no link": (RERUNS.with_link(Link(1, 1)), 90),
    "next to no link and no recomputation": (NO_RERUNS.with_link(Link(1, 1)), 8 * 10**9 + 60),
    "no link": (NO_SWAPS, 90),
    # A copy takes 1 ns, and 1 ns more than its latency: g and g' have 10 ns for one each.
    "infinite link": (RERUNS.with_link(Link(FASTEST, FASTEST)), 80),
    "latency hidden": (RERUNS.with_link(Link(FASTEST, FASTEST, 9)), 80),
    "latency paid": (RERUNS.with_link(Link(FASTEST, FASTEST, 12)), 86),
    "latency too long": (RERUNS.with_link(Link(FASTEST, FASTEST, 15)), 90),
    # During g', a comes back and b goes out, 4 ns each: h fills the budget with b and workspace, f' with a and d.
    "duplex": (
        step(
            *("f! 1: -> a=4", "p 4: ->", "h! 10 +4: -> b=4", "g' 4: ->", "f'! 10: a -> d=4", "q' 4: ->", "h'! 10: b ->"),
            budget=8,
        ),
        43,
    ),
    "half duplex": (
        step(
            *("f! 1: -> a=4", "p 4: ->", "h! 10 +4: -> b=4", "g' 4: ->", "f'! 10: a -> d=4", "q' 4: ->", "h'! 10: b ->"),
            budget=8,
            link=Link(10**9, 10**9, duplex=False),
        ),
        47,
    ),
    "one operation": (step("f 10 +3: -> a=4", budget=7), 10),
    "no time": (step("f 0: -> a=4", "g 0: -> b=4", "h 0: -> c=4", "h' 0: c ->", "g' 0: b ->", "f' 0: a ->", budget=4), 0),
    # The link hides one copy of 10 ns at a time: of the four that are alike, one is kept, and nothing is lost on the others.
    "equal tensors": (
        step(
            *(f"f{i} 10: -> x{i}=10" for i in range(4)),
            "top 10:",
            *(f"f{i}' 10: x{i} ->" for i in reversed(range(4))),
            budget=20,
        ),
        90,
    ),
}


@pytest.mark.parametrize("method", [pytest.param(m, marks=pytest.mark.slow if m != "greedy" else ()) for m in METHODS])
@pytest.mark.parametrize("case", CASES)
def test_every_method_finds_what_was_worked_out_by_hand(case: str, method: str) -> None:
    instance, makespan = CASES[case]
    result = solve(instance, method)
    assert (result.makespan, result.message) == (makespan, "")


@pytest.mark.parametrize("case", CASES)
def test_the_bound_of_each_case_holds_and_verifies(case: str) -> None:
    instance, makespan = CASES[case]
    certificate = lower_bound(instance)
    verify(instance, certificate)
    assert certificate.bound is not None
    assert instance.ideal <= certificate.bound <= makespan == optimum(instance)


def test_without_recomputation_and_without_swaps_decisions_are_as_they_must_be() -> None:
    plan = solve(CASES["no recomputation"][0]).plan
    assert plan is not None
    assert Decision.RECOMPUTE not in plan.intervals
    plan = solve(NO_SWAPS).plan
    assert plan is not None
    assert Decision.SWAP not in plan.intervals


@pytest.mark.parametrize("method", METHODS)
def test_with_neither_it_is_proven_that_nothing_fits(method: str) -> None:
    instance = step("f! 10: -> a=4!", *REST, budget=11)
    result = solve(instance, method)
    assert (result.status, result.smallest_budget) == (Status.INFEASIBLE, 12)
    assert solve(instance.with_budget(12), method).makespan == 80


@pytest.mark.parametrize("method", METHODS)
def test_one_operation_that_needs_more_than_there_is(method: str) -> None:
    result = solve(step("f 10 +3: -> a=4", budget=6), method)
    assert (result.status, result.smallest_budget) == (Status.INFEASIBLE, 7)
    assert "while operation 'f' runs, 7 bytes must be there" in result.message


@pytest.mark.parametrize(("method", "line"), [("cbc", "pulp"), ("highs", "pulp"), ("milp", "pulp"), ("cp-sat", "ortools")])
def test_a_solver_that_is_missing_is_named_with_what_installs_it(
    method: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cp_sat if method == "cp-sat" else milp, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=f"^pip install '{line}"):
        solve(CASES["recomputation"][0], method)


def test_without_highs_there_is_no_relaxation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    for solving in ({"method": "auto"}, {"method": "greedy", "bound": True}):
        with pytest.raises(ImportError, match=r"^pip install 'highspy"):
            solve(NO_RERUNS.with_link(SLOW), **solving)


def test_a_plan_that_is_one_byte_over_is_not_returned() -> None:
    # Nothing can be swapped, and f cannot run again: to keep both a and b takes 8 bytes at the top.
    instance = step("f 9: -> a=4", "g 9: -> b=4", "top 9:", "g' 9: b ->", "f' 9: a ->", budget=7)
    instance = replace(instance, tensors=tuple(replace(tensor, swappable=False) for tensor in instance.tensors))

    def keep_all(model: SlackModel, limits: Limits, start: tuple[int, ...] | None) -> Solved:
        return Solved(Outcome.OPTIMAL, (0.0,) * len(model.program.variables), words="optimal")

    answer = Run(instance, Options(), "fake", milp.model_for).answer(keep_all)
    first = greedy(instance)
    assert (answer.plan, answer.schedule) == (first.plan, first.placement.schedule)
    assert first.placement.timeline.peak <= 7


def waiting(duration: int) -> Instance:
    """The case of a slow link with another duration of f: to run it again takes that, to wait for the copy takes 30 ns."""
    return step(f"f {duration}: -> a=4", *REST, budget=8, link=SLOW)


@pytest.mark.slow
def test_twelve_solves_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    durations = range(3, 63, 5)
    with ThreadPoolExecutor(12) as pool:
        results = list(pool.map(lambda n, d: solve(waiting(d), METHODS[n % 5]), range(12), durations))
    for duration, result in zip(durations, results, strict=True):
        assert result.makespan == 70 + duration + min(duration, 30), result.method
        assert result.instance == waiting(duration)
        assert result.message == ""
    assert not list(tmp_path.iterdir())
