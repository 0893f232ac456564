"""Where greedy and plans lose, on steps from which nothing can be left out; `docs/small-instances.md` explains each of them."""

from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings

from slackswap_opt import solve
from slackswap_opt.formulations.certificate import lower_bound
from slackswap_opt.formulations.exact_schedule import best_schedule
from slackswap_opt.instance import Instance
from tests.brute_force import SearchLimitError
from tests.handmade import step
from tests.small_steps import smaller, spelled, steps
from tests.smallest_losses import KINDS, Makespans, is_one, makespans, summary
from tests.tiny_instances import tiny_instances


class Case(NamedTuple):
    """A step of a kind, with its makespans, that of `auto`, and the bound, in nanoseconds."""

    kind: str
    instance: Instance
    makespans: Makespans
    auto: int
    bound: int


CASES = {
    "tail": Case(
        "tail",
        step("f 1: -> a=1", "g 1: a -> b=2", "h 1 +2: ->", "i 1: b ->", budget=3),
        Makespans(ideal=4, greedy=6, plans=5, all=5),
        auto=5,
        bound=5,
    ),
    "choice, siblings": Case(
        "choice",
        step("f 3: -> a=2 b=1", "g 1 +1: ->", "h 1: a b ->", budget=3),
        Makespans(ideal=5, greedy=8, plans=7, all=7),
        auto=7,
        bound=6,
    ),
    "choice": Case(
        "choice",
        step("f 1 +1: -> a=2", "g 1 +1: -> b=2", "h 1: ->", "i 1 +1: ->", "j 1: a b ->", budget=4),
        Makespans(ideal=5, greedy=9, plans=8, all=8),
        auto=8,
        bound=6,
    ),
    "choice and tail": Case(
        "choice and tail",
        step("f 2: -> a=1", "g 1: a -> b=2", "h 1: ->", "i 1 +2: ->", "j 1: b ->", budget=3),
        Makespans(ideal=6, greedy=9, plans=7, all=7),
        auto=7,
        bound=7,
    ),
    "none found": Case(
        "none found",
        step("f 1: -> a=1 b=1!", "g 1 +1: a ->", "h 1 +1: ->", "i 1: a b ->", budget=2),
        Makespans(ideal=4, greedy=None, plans=5, all=5),
        auto=5,
        bound=5,
    ),
    "placement, re-runs in another order": Case(
        "placement",
        step("f 1: -> a=1", "g 1 +1: -> b=2", "h 1 +2: ->", "i 1: a b ->", budget=3),
        Makespans(ideal=4, greedy=7, plans=6, all=6),
        auto=7,
        bound=5,
    ),
    "placement, a re-run ahead": Case(
        "placement",
        step("f 1: -> a=1", "g 1: -> b=1", "h 1 +4: ->", "i 1: a ->", "j 1: b ->", budget=4),
        Makespans(ideal=5, greedy=7, plans=6, all=6),
        auto=7,
        bound=6,
    ),
    "placement, copies in another order": Case(
        "placement",
        step("f 3 +1: -> a=2", "g 1 +1: -> b=3", "h 1 +1: a ->", "i 1: a b ->", budget=5),
        Makespans(ideal=6, greedy=15, plans=14, all=13),
        auto=15,
        bound=7,
    ),
    "left alone": Case(
        "left alone",
        step("f 1: -> a=1 b=1", "g 1 +1: a ->", "h 1: a b ->", budget=2),
        Makespans(ideal=3, greedy=5, plans=5, all=4),
        auto=5,
        bound=4,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_makespans_and_bound(name: str) -> None:
    case = CASES[name]
    assert makespans(case.instance) == case.makespans
    assert lower_bound(case.instance).bound == case.bound
    assert is_one(case.kind, case.instance)


@pytest.mark.parametrize("name", CASES)
def test_what_auto_finds(name: str) -> None:
    case = CASES[name]
    assert solve(case.instance, "auto").makespan == case.auto


@pytest.mark.parametrize("name", CASES)
def test_nothing_can_be_left_out(name: str) -> None:
    case = CASES[name]
    assert not [spelled(less) for less in smaller(case.instance) if is_one(case.kind, less)]


@pytest.mark.parametrize("name", CASES)
def test_the_interval_model_finds_the_best_schedule(name: str) -> None:
    best = best_schedule(CASES[name].instance)
    assert (best.makespan, best.proven) == (CASES[name].makespans.all, True)


def test_rows_read_as_they_are_spelled() -> None:
    for case in CASES.values():
        assert step(*spelled(case.instance), budget=case.instance.budget) == case.instance
    assert spelled(step("f! 3 +2: -> a=1! b=2", "g 1: b -> b", budget=3)) == ["f! 3 +2: -> a=1! b=2", "g 1: b -> b"]


@settings(max_examples=20, deadline=None)
@given(tiny_instances(tensors=3, operations=6) | steps(2, 4, True))
def test_greedy_is_no_shorter_than_the_best_plan_nor_that_than_the_best_schedule(instance: Instance) -> None:
    try:
        _, greedy, plans, everything = makespans(instance)
    except SearchLimitError:
        assume(False)
    assert greedy is None or (plans is not None and plans <= greedy)
    assert plans is None or (everything is not None and everything <= plans)


def test_what_is_left_out_of_a_step() -> None:
    instance = step("f! 2: -> a=1!", "g 1 +1: a -> b=1", budget=2)
    without = [spelled(less) for less in smaller(instance) if less.budget == 2]
    assert ["f 1 +1: -> a=1"] in without, "without f, which makes a"
    assert ["f! 2: -> a=1!", "g 1 +2: a ->"] in without, "b as workspace"
    assert ["f 2: -> a=1!", "g 1 +1: a -> b=1"] in without
    assert ["f! 2: -> a=1", "g 1 +1: a -> b=1"] in without
    assert ["f! 1: -> a=1!", "g 1 +1: a -> b=1"] in without
    assert ["f! 2: -> a=1!", "g 1: a -> b=1"] in without
    assert ["f! 2: -> a=1!", "g 1 +1: -> b=1"] in without


def test_a_summary_counts_losses_and_plans_not_found() -> None:
    pairs = [(12, 10), (11, 10), (20, 10), (10, 10), (None, 10), (None, None)]
    assert summary(pairs) == "longer in 3 of 5, by 20.0 % in the median and 100.0 % at most; none found in 1"
    assert summary([(1, 1)]) == "longer in 0 of 1; none found in 0"


def test_every_kind_that_was_found_is_here() -> None:
    assert set(KINDS) - {case.kind for case in CASES.values()} == {"chain", "dropped at once", "back once", "several rules"}
