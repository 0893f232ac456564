"""From suggestions to schedules: swaps chosen again, chains cut, and mended what does not fit."""

from dataclasses import replace

from hypothesis import given, settings

from slackswap_opt.drafts import SlackSwap
from slackswap_opt.instance import Instance
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.settle import LONGEST_CHAIN, completed, mended, settled, without_chains
from slackswap_opt.simulate import simulate
from slackswap_opt.testing import instances
from tests.handmade import plan, planned, step
from tests.test_improve import NO_LINK, STEP, placed, searched
from tests.tiny_instances import tiny_instances


def named(search: SlackSwap, *names: str) -> list[int]:
    """The numbers of the candidates that are intervals of tensors with these names."""
    return [c for c, i in enumerate(search.tensor.tolist()) if search.instance.tensors[i].name in names]


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


@settings(max_examples=60, deadline=None)
@given(planned(host_budgets=True))
def test_what_is_mended_fits(case: tuple[Instance, Plan]) -> None:
    instance, chosen = case
    found = mended(searched(instance), chosen)
    if found:
        assert found.placement.timeline == simulate(instance, found.placement.schedule)


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


def test_what_a_re_run_brings_back_too_early_is_made_to_leave() -> None:
    # To run f again gives a back too: it must not be there in h, nor when f runs again.
    instance = step("f 1: -> a=1 b=1!", "g 1 +1: a ->", "h 1 +1: ->", "i 1: a b ->", budget=2)
    found, fault = settled(instance, plan(instance, "a keep", "b recompute"))
    assert fault == "operation 'f' needs 3 bytes under this plan, over the budget of 2"
    assert found == placed(instance, plan(instance, "a recompute", "b recompute"))


def test_what_no_decision_helps_is_not_mended() -> None:
    instance = step("f! 1: -> a=1!", "g 1: -> b=2", "i 1: a b ->", budget=2)
    assert settled(instance, Plan.keep_all(instance))[0] is None
