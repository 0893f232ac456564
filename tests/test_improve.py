"""The local search: exchanges that shorten the step, and never a worse plan."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings

from slackswap_opt import load, solve
from slackswap_opt.drafts import RECOMPUTE, Found, NoPlanError, SlackSwap
from slackswap_opt.greedy import greedy
from slackswap_opt.improve import Effort, LocalSearch, improved
from slackswap_opt.instance import Instance
from slackswap_opt.place import place_and_judge
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.simulate import simulate
from slackswap_opt.testing import instances
from tests.brute_force import optimum
from tests.handmade import plan, step
from tests.tiny_instances import tiny_instances

LITTLE = Effort(estimates=300, placements=20)


def searched(instance: Instance) -> SlackSwap:
    return SlackSwap(instance, swap=True, recompute=True)


def planned(instance: Instance) -> Found | None:
    try:
        return greedy(instance)
    except NoPlanError:
        return None


def placed(instance: Instance, chosen: Plan) -> Found:
    return Found(chosen, place_and_judge(instance, chosen))


@settings(max_examples=60, deadline=None)
@given(tiny_instances(tensors=5, operations=8) | instances(max_tensors=6, budgets=(0, 100), host_budgets=True))
def test_a_search_is_never_worse_nor_better_than_possible_and_always_the_same(instance: Instance) -> None:
    if (first := planned(instance)) is None:
        return
    after = improved(instance, first, LITTLE)
    assert after.makespan <= first.makespan
    assert after.placement.timeline == simulate(instance, after.placement.schedule)
    assert improved(instance, first, LITTLE) == after
    least = optimum(instance)
    assert least is not None
    assert least <= after.makespan


STEP = step(
    *("f 30: -> a=4", "g 20: -> b=2", "h 16: -> c=2", "i 40: -> d=4", "i' 40: d ->"),
    *("h' 10: c ->", "g' 10: b ->", "f' 10: a ->"),
    budget=8,
)
"""12 bytes are alive in i and i', 4 too many. To run f again costs 30, g and h together 36; a copy of 4 bytes is hidden."""
NO_LINK = replace(STEP, tensors=tuple(replace(x, swappable=False) for x in STEP.tensors))


def test_a_dear_re_run_is_given_up_for_a_swap() -> None:
    first = placed(STEP, plan(STEP, "a recompute"))
    assert first.makespan == STEP.ideal + 30
    after = improved(STEP, first)
    assert after.makespan == STEP.ideal
    assert Decision.RECOMPUTE not in after.plan.intervals


def test_a_dear_re_run_is_given_up_for_two_cheaper_ones() -> None:
    cheap = replace(NO_LINK, operations=tuple(replace(o, duration=5) if o.name in "gh" else o for o in NO_LINK.operations))
    after = improved(cheap, placed(cheap, plan(cheap, "a recompute")))
    assert after.plan == plan(cheap, "b recompute", "c recompute")
    assert after.makespan == cheap.ideal + 10
    # Where the two together cost more, the dear one stays.
    first = placed(NO_LINK, plan(NO_LINK, "a recompute"))
    assert improved(NO_LINK, first).plan == first.plan


def test_a_swap_that_makes_compute_wait_is_given_up() -> None:
    slow = STEP.with_link(replace(STEP.link, prefetch_bandwidth=2 * 10**7))
    # 4 bytes come back in 200 ns, of which 60 are hidden behind h', g' and what is left of i'.
    first = placed(slow, plan(slow, "a swap"))
    after = improved(slow, first)
    assert first.makespan > after.makespan == slow.ideal + 30
    assert after.plan == plan(slow, "a recompute")


def test_a_swap_becomes_a_re_run_while_another_tensor_is_swapped() -> None:
    # In g both a and b must leave room for workspace. The lane is busy with a until 6 and b comes back in the open, or f runs
    # again, 1, and b is copied out while h runs: 1 ns more than hidden.
    rows = ("f 1 +1: -> a=2", "g 1 +1: -> b=2", "h 1: ->", "i 1 +1: ->", "j 1: a b ->")
    instance = step(*rows, budget=4)
    first = placed(instance, plan(instance, "a swap"))
    after = improved(instance, first)
    assert (first.makespan, after.makespan) == (9, 8)
    assert after.plan == plan(instance, "a recompute", "b swap")


def test_a_search_begins_from_a_re_run_that_a_kept_tail_makes_possible() -> None:
    # To run g again takes a, which f cannot give again: it is kept for that.
    instance = step("f! 1: -> a=1", "g 1: a -> b=2", "h 1 +2: ->", "i 1: b ->", budget=3)
    first = placed(instance, plan(instance, "b recompute", tails="a keep"))
    assert first.makespan == instance.ideal + 1
    assert improved(instance, first) == first
    assert solve(instance, "auto").makespan == first.makespan


def test_what_else_a_plan_decides_stays() -> None:
    tails = plan(STEP, "a recompute", tails="d keep, c keep")
    assert improved(STEP, placed(STEP, tails)).plan.tails == tails.tails


def test_the_search_stops_where_it_is_told_to() -> None:
    instance = load("resnet-50", batch=32)
    instance = instance.with_budget(instance.peak // 2)
    first = greedy(instance)
    for effort in (Effort(estimates=100), Effort(placements=1), Effort(deadline=time.monotonic())):
        search = LocalSearch(searched(instance), first, effort)
        assert search.run().makespan <= first.makespan
        assert search.estimates <= effort.estimates
        assert search.placements <= effort.placements
    assert improved(instance, first, Effort(deadline=time.monotonic())) is first


@pytest.mark.slow
@pytest.mark.parametrize("percent", [50, 60])
def test_exchanges_shorten_greedy_plans_of_resnet(percent: int) -> None:
    instance = load("resnet-50")
    instance = instance.with_budget(instance.peak * percent // 100)
    first = greedy(instance)
    search = LocalSearch(searched(instance), first, Effort.for_size(instance))
    assert search.run().makespan < first.makespan
    assert (search.decisions == RECOMPUTE).any()
