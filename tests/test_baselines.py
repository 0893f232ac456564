"""What people do today: laws of the plans, then blocks worked out by hand."""

from collections import Counter

import pytest
from hypothesis import given, settings

from slackswap_opt import baselines
from slackswap_opt.instance import Instance
from slackswap_opt.instances import load
from slackswap_opt.place import PlacementError, place_and_judge
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.schedule import Action
from slackswap_opt.testing import instances
from tests.handmade import spelled, step

PLANS = (baselines.keep_all, baselines.swap_all, baselines.recompute_all, baselines.first_blocks)


@settings(max_examples=100, deadline=None)
@given(instances(max_tensors=8, max_operations=10, budgets=(0, 100)))
def test_plans_ask_for_nothing_impossible(instance: Instance) -> None:
    for plan in (baseline(instance) for baseline in PLANS):
        for interval, decision in zip(instance.idle_intervals, plan.intervals, strict=True):
            assert decision is not Decision.SWAP or instance.tensors[interval.tensor].swappable
            assert decision is not Decision.RECOMPUTE or instance.can_recompute(interval)
        for tensor, tail in zip(instance.tensors, plan.tails, strict=True):
            assert tail is not Decision.SWAP or tensor.swappable


@settings(max_examples=100, deadline=None)
@given(instances(max_tensors=8, max_operations=10))
def test_all_of_them_keep_everything_at_the_unconstrained_peak_but_recompute_all(instance: Instance) -> None:
    instance = instance.with_budget(instance.peak)
    for baseline in (baselines.keep_all, baselines.swap_all, baselines.first_blocks):
        assert set(baseline(instance).intervals) <= {Decision.KEEP}
        assert place_and_judge(instance, baseline(instance)).timeline.makespan == instance.ideal


@settings(max_examples=100, deadline=None)
@given(instances(budgets=(0, 100)))
def test_swap_all_swaps_what_covers_an_operation_over_budget_and_nothing_else(instance: Instance) -> None:
    for interval, decision in zip(instance.idle_intervals, baselines.swap_all(instance).intervals, strict=True):
        assert instance.budget is not None
        over = any(instance.keep_all_memory[t] > instance.budget for t in range(interval.start + 1, interval.end))
        assert decision is (Decision.SWAP if over and instance.tensors[interval.tensor].swappable else Decision.KEEP)


# Two blocks of two operations; what passes between them is x, y and z, inside are p and q. The loss reads z.
BLOCKS = (
    "in 1: -> x=2",
    "a@A 2: x -> p=3",
    "b@A 2: p -> y=2",
    "c@B 2: y -> q=3",
    "d@B 2: q -> z=2",
    "loss 1: z -> g=2",
    "d'@B 4: q g ->",
    "c'@B 4: y ->",
    "b'@A 4: p ->",
    "a'@A 4: x ->",
)


def test_each_block_is_rebuilt_once_from_its_input() -> None:
    instance = step(*BLOCKS)
    assert baselines.blocks_of(instance) == ("A", "B")
    placement = place_and_judge(instance, baselines.recompute_all(instance))
    assert spelled(instance, placement.schedule) == (
        "in, a, b, drop p, c, d, drop q, loss, drop z, c, d', drop q, drop g, c', drop y, a, b', drop p, a', drop x"
    )
    assert placement.timeline.makespan == instance.ideal + 2 + 2


def test_first_blocks_takes_as_few_as_needed_and_the_first() -> None:
    # In the loss x, p, y, q, z and g fill 14 bytes; without p 11, without q too 8, but d' needs x, y, g and q again: 9.
    instance = step(*BLOCKS)
    assert instance.peak == 14
    for budget, blocks in ((14, ()), (13, ("A",)), (11, ("A",)), (10, ("A", "B")), (9, ("A", "B"))):
        limited = instance.with_budget(budget)
        assert baselines.first_blocks(limited) == baselines.recompute_blocks(limited, blocks)


def test_first_blocks_takes_all_if_none_are_enough() -> None:
    instance = step(*BLOCKS, budget=1)
    assert baselines.first_blocks(instance) == baselines.recompute_all(instance)


def test_what_leaves_a_block_is_kept_for_the_re_run_of_the_next() -> None:
    # y is read in the forward pass only, by B, and has died when q is wanted again: it is kept for that.
    instance = step("in 1: -> x=2", "a@A 2: x -> y=2", "c@B 2: y -> q=3", "d 9: -> g=2", "c'@B 4: q ->", "a'@A 4: x ->")
    placement = place_and_judge(instance, baselines.recompute_all(instance))
    assert spelled(instance, placement.schedule) == "in, a, c, drop q, d, drop g, c, drop y, c', drop q, a', drop x"


def test_what_cannot_run_again_is_kept() -> None:
    instance = step("in 1: -> x=2", "a@A! 2: x -> p=3", "b@A 2: p -> q=3", "d 9: -> g=2", "b'@A 4: q ->", "a'@A 4: p x ->")
    placement = place_and_judge(instance, baselines.recompute_all(instance))
    assert spelled(instance, placement.schedule) == "in, a, b, drop q, d, drop g, b, b', drop q, a', drop x, drop p"


def test_without_blocks_there_is_nothing_to_recompute() -> None:
    instance = step("f 1: -> a=2", "g 1: a -> b=2", "b' 1: b ->", "a' 1: a ->", budget=1)
    assert baselines.blocks_of(instance) == ()
    assert baselines.recompute_all(instance).intervals == Plan.keep_all(instance).intervals
    with pytest.raises(PlacementError):
        place_and_judge(instance, baselines.first_blocks(instance))


@pytest.mark.parametrize("name", ["bert-large", "gpt2-xl", "llama-7b"])
def test_the_blocks_of_a_model_run_again_once_and_nothing_else_does(name: str) -> None:
    instance = load(name, layers=3)
    placement = place_and_judge(instance, baselines.recompute_all(instance))
    runs = Counter(target for action, target in placement.schedule.instructions if action is Action.RUN)
    again = {t for t, count in runs.items() if count > 1}
    assert max(runs.values()) == 2
    assert again
    assert all(instance.operations[t].block in baselines.blocks_of(instance) for t in again)
    assert all(instance.operations[t].phase == "forward" for t in again)


def test_more_blocks_need_less_memory_and_more_time() -> None:
    instance = load("gpt2-xl", layers=4)
    blocks = baselines.blocks_of(instance)
    timelines = [
        place_and_judge(instance, baselines.recompute_blocks(instance, blocks[:count])).timeline
        for count in range(len(blocks) + 1)
    ]
    assert [timeline.peak for timeline in timelines] == sorted((timeline.peak for timeline in timelines), reverse=True)
    assert [timeline.makespan for timeline in timelines] == sorted(timeline.makespan for timeline in timelines)
    assert timelines[-1].peak < timelines[0].peak
