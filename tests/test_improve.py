"""From suggestions to schedules: swaps chosen again, exchanges that shorten the step, and never a worse plan."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings

from slackswap_opt import load
from slackswap_opt.drafts import RECOMPUTE, Found, NoPlanError, SlackSwap
from slackswap_opt.greedy import greedy
from slackswap_opt.improve import LONGEST_CHAIN, Effort, LocalSearch, completed, improved, settled, without_chains
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


def named(search: SlackSwap, *names: str) -> list[int]:
    """The numbers of the candidates that are intervals of tensors with these names."""
    return [c for c, i in enumerate(search.tensor.tolist()) if search.instance.tensors[i].name in names]


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


@settings(max_examples=60, deadline=None)
@given(tiny_instances(tensors=5, operations=8) | instances(max_tensors=6, budgets=(0, 100)))
def test_completions_recompute_what_is_asked_for_and_fit(instance: Instance) -> None:
    search = searched(instance)
    everything = list(range(len(search.numbers)))
    for asked in ([], everything):
        found = completed(search, asked)
        if found:
            assert found.placement.timeline == simulate(instance, found.placement.schedule)
            again = {c for c in everything if found.plan.intervals[search.numbers[c]] is Decision.RECOMPUTE}
            assert again >= without_chains(search, asked)


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


def test_swaps_are_chosen_again_first_produced_first() -> None:
    search = searched(STEP)
    found = completed(search, named(search, "b"))
    assert found is not None
    # With b recomputed 2 bytes are missing: a is produced before c.
    assert found.plan == plan(STEP, "a swap", "b recompute")
    assert completed(search, []) == placed(STEP, plan(STEP, "a swap"))


def test_more_is_recomputed_where_there_is_no_time_for_the_swaps() -> None:
    # Nothing is hidden: a copy of 4 bytes out takes 400 ns.
    slow = STEP.with_link(replace(STEP.link, offload_bandwidth=10**7))
    found = completed(searched(slow), [])
    assert found is not None
    assert found.plan == plan(slow, "a recompute")


def test_a_plan_that_does_not_fit_is_settled_by_choosing_swaps() -> None:
    found, fault = settled(STEP, Plan.keep_all(STEP))
    assert found is not None
    assert found.makespan == STEP.ideal
    assert fault == "operation 'i' needs 12 bytes under this plan, over the budget of 8"
    found, fault = settled(STEP, plan(STEP, "b swap", "c swap"))
    assert (found is not None, fault) == (True, "")
    assert settled(NO_LINK, plan(NO_LINK, "a recompute")) == (placed(NO_LINK, plan(NO_LINK, "a recompute")), "")


def test_long_chains_of_re_runs_are_cut() -> None:
    # Each x is made of the one before and read last in backward, first made last: to give x7 back all of them run again.
    forward = ["f0 10: -> x0=4", *(f"f{j} 10: x{j - 1} -> x{j}=4" for j in range(1, 8))]
    instance = step(*forward, "p 10: -> y=24", "p' 10: y ->", *(f"f{j}' 10: x{j} ->" for j in reversed(range(8))), budget=32)
    search = searched(instance)
    cut = without_chains(search, named(search, *(f"x{j}" for j in range(8))))
    names = [instance.tensors[search.tensor[c]].name for c in sorted(cut)]
    assert names == [f"x{j}" for j in range(8) if j != LONGEST_CHAIN]
    every = instance.with_budget(32)
    chosen = Plan.keep_all(every).with_intervals({search.numbers[c]: Decision.RECOMPUTE for c in named(search, *names, "x4")})
    _, fault = settled(every, chosen)
    assert fault == f"one of its re-runs sets off a chain of more than {LONGEST_CHAIN} others"


@pytest.mark.slow
@pytest.mark.parametrize("percent", [50, 60])
def test_exchanges_shorten_greedy_plans_of_resnet(percent: int) -> None:
    instance = load("resnet-50")
    instance = instance.with_budget(instance.peak * percent // 100)
    first = greedy(instance)
    search = LocalSearch(searched(instance), first, Effort.for_size(instance))
    assert search.run().makespan < first.makespan
    assert (search.decisions == RECOMPUTE).any()
