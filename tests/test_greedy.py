"""SlackSwap: what it promises, by laws; what it decides, in steps worked out by hand; what once went wrong."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from slackswap_opt import baselines
from slackswap_opt.greedy import Found, NoPlanError, greedy, smallest_budget
from slackswap_opt.instance import Instance, Link
from slackswap_opt.instances import load
from slackswap_opt.place import PlacementError, place, place_and_judge
from slackswap_opt.plan import Decision
from slackswap_opt.simulate import simulate
from slackswap_opt.testing import instances
from tests.brute_force import SearchLimitError, optimum
from tests.handmade import plan, spelled, step
from tests.tiny_instances import tiny_instances

BASELINES = (baselines.keep_all, baselines.swap_all, baselines.recompute_all, baselines.first_blocks)


def fits(instance: Instance) -> bool:
    try:
        greedy(instance)
    except NoPlanError:
        return False
    return True


def baseline_fits(instance: Instance) -> bool:
    for baseline in BASELINES:
        try:
            place(instance, baseline(instance))
        except PlacementError:
            continue
        return True
    return False


@settings(max_examples=100, deadline=None)
@given(instances(max_tensors=8, max_operations=10, budgets=(0, 100), host_budgets=True))
def test_what_is_found_is_the_placement_of_its_plan_within_the_budget(instance: Instance) -> None:
    try:
        found = greedy(instance)
    except NoPlanError:
        return
    assert simulate(instance, found.placement.schedule) == found.placement.timeline
    assert found.makespan == place_and_judge(instance, found.plan).timeline.makespan >= instance.ideal


@settings(max_examples=100, deadline=None)
@given(instances(max_tensors=8, max_operations=10, budgets=(0, 100), unswappable=False))
def test_every_budget_from_the_largest_need_up_has_a_plan_where_all_may_be_swapped(instance: Instance) -> None:
    assert fits(instance)


@settings(max_examples=100, deadline=None)
@given(instances(max_tensors=8, max_operations=10, budgets=(0, 40), host_budgets=True))
def test_there_is_a_plan_where_a_baseline_has_one(instance: Instance) -> None:
    assert fits(instance) or not baseline_fits(instance)


@settings(max_examples=100, deadline=None)
@given(instances(max_tensors=8, max_operations=10, budgets=(0, 100)))
def test_without_swaps_nothing_is_copied_and_without_recomputation_nothing_runs_twice(instance: Instance) -> None:
    for forbidden in ("swap", "recompute"):
        try:
            found = greedy(instance, **{forbidden: False})
        except NoPlanError:
            continue
        assert Decision(forbidden) not in found.plan.intervals
        timeline = found.placement.timeline
        assert (timeline.offloaded if forbidden == "swap" else timeline.recomputed) == 0


@settings(max_examples=50, deadline=None)
@given(instances(max_tensors=8, max_operations=10, budgets=(0, 100), host_budgets=True))
def test_equal_instances_have_equal_plans(instance: Instance) -> None:
    results: list[Found | str] = []
    for _ in range(2):
        try:
            results.append(greedy(replace(instance)))
        except NoPlanError as error:
            results.append(str(error))
    assert results[0] == results[1]


@settings(max_examples=50, deadline=None)
@given(instances(max_tensors=8, max_operations=10))
def test_everything_is_kept_where_it_fits(instance: Instance) -> None:
    for budget in (None, instance.peak):
        found = greedy(instance.with_budget(budget))
        assert set(found.plan.intervals) <= {Decision.KEEP}
        assert found.makespan == instance.ideal


@settings(max_examples=25, deadline=None)
@given(tiny_instances(tensors=4, operations=6))
def test_no_plan_is_shorter_than_the_optimum_of_all_schedules(instance: Instance) -> None:
    try:
        best = optimum(instance)
    except SearchLimitError:
        return
    try:
        found = greedy(instance)
    except NoPlanError:
        return
    assert best is not None
    assert found.makespan >= best


@settings(max_examples=50, deadline=None)
@given(instances(max_tensors=8, max_operations=10, host_budgets=True))
def test_the_smallest_budget_has_a_plan_and_nothing_under_the_floor_has(instance: Instance) -> None:
    smallest = smallest_budget(instance)
    assert smallest is not None
    assert max(instance.floor) <= smallest <= instance.peak
    assert fits(instance.with_budget(smallest))


def test_the_dear_is_swapped_and_the_cheap_recomputed() -> None:
    # d needs all the room in k, 60-70: b and c, ten bytes each, must leave. b can be on the host by then, 50-60, c only by 70;
    # running g again takes 2, f 50.
    instance = step(
        "f 50: -> b=10", "g 2: -> c=10", "e 8: ->", "k 10: -> d=20", "m 12: ->", "c' 10: c ->", "n 10: ->", "b' 20: b ->",
        budget=20,
    )  # fmt: skip
    found = greedy(instance)
    assert found.plan == plan(instance, "b swap", "c recompute")
    assert spelled(instance, found.placement.schedule) == (
        "f, offload b, g, drop c, e, evict b, k, drop d, m, g, c', drop c, prefetch b, n, b', drop b"
    )
    assert found.makespan == instance.ideal + 2


def test_what_a_larger_tensor_made_needless_is_taken_back() -> None:
    # Ten bytes must go in k. A byte of x costs 1 ns and one of y 2, so x is taken first; y alone would have been enough.
    instance = step("f 5: -> x=5", "g 20: -> y=10", "k 10: -> d=10", "y' 1: y ->", "x' 1: x ->", budget=15)
    found = greedy(instance, swap=False)
    assert found.plan == plan(instance, "y recompute")
    assert found.makespan == instance.ideal + 20


def test_siblings_share_a_re_run() -> None:
    # Fifteen bytes must go in k. p costs 3 ns a byte and r 4; q, 6 by itself, costs nothing once f runs again for p.
    instance = step("f 30: -> p=10 q=5", "g 20: -> r=5", "k 10: -> d=10", "r' 1: r ->", "q' 1: q ->", "p' 1: p ->", budget=15)
    found = greedy(instance, swap=False)
    assert found.plan == plan(instance, "p recompute", "q recompute")
    assert found.makespan == instance.ideal + 30


def test_an_operand_whose_life_has_ended_makes_a_tensor_dear() -> None:
    # b is made of a, dead by then, in 1 + 40; c, made of nothing, in 30.
    instance = step("f 40: -> a=1", "g 1: a -> b=10", "h 30: -> c=10", "k 5: -> d=10", "c' 1: c ->", "b' 1: b ->", budget=20)
    found = greedy(instance, swap=False)
    assert found.plan == plan(instance, "c recompute")
    assert found.makespan == instance.ideal + 30


def test_only_the_intervals_around_what_is_over_budget_are_decided() -> None:
    # x and y could be recomputed for nothing before k and after, but only in k is it tight.
    instance = step(
        "f 0: -> x=4", "g 1: ->", "x1 1: x ->", "k 9: -> d=8", "x2 1: x ->", "g2 1: ->", "x3 1: x ->", budget=8
    )  # fmt: skip
    assert greedy(instance, swap=False).plan == plan(instance, "x keep recompute keep")


def test_a_full_host_turns_to_recomputation() -> None:
    instance = step("f 5: -> a=4", "k 20: -> d=8", "m 20: ->", "a' 1: a ->", budget=8, host_budget=3)
    assert greedy(instance).plan == plan(instance, "a recompute")
    assert greedy(replace(instance, host_budget=4)).plan == plan(instance, "a swap")


def test_no_plan_names_the_operation_and_the_bytes() -> None:
    instance = step("f! 5: -> a=4!", "k 20: -> d=8", "a' 1: a ->", budget=11)
    with pytest.raises(NoPlanError, match="operation 'k' is 1 bytes over the budget of 11, and nothing more can leave"):
        greedy(instance)


def test_the_smallest_budget_of_what_cannot_leave() -> None:
    # a stays through k: 12 bytes, which is the floor. Were a free to leave, 8.
    assert smallest_budget(step("f! 5: -> a=4!", "k 20: -> d=8", "a' 1: a ->")) == 12
    assert smallest_budget(step("f! 5: -> a=4", "k 20: -> d=8", "a' 1: a ->")) == 8


def test_a_step_without_operations_has_a_plan() -> None:
    assert greedy(Instance("empty", (), (), Link(1, 1), 0)).makespan == 0


def test_sizes_and_times_near_the_end_of_64_bits() -> None:
    # Four tensors of 2^59 bytes and as many nanoseconds, over a link of a byte a second: a copy takes 2^59 * 10^9 ns.
    size = 2**59
    inner = [f"f{i} {size // 4}: -> x{i}={size}" for i in range(4)]
    outer = [f"x{i}' {size // 4}: x{i} ->" for i in reversed(range(4))]
    instance = step(*inner, *outer, link=Link(1, 1))
    for budget in (size, 2 * size, 3 * size):
        found = greedy(instance.with_budget(budget))
        assert found.placement.timeline.peak <= budget
        assert found.makespan == instance.ideal + (3 - (budget // size - 1)) * size // 4


def test_a_long_chain_that_has_died_is_no_obstacle() -> None:
    # One tensor is wanted at the end, made through 3000 others; it is swapped, since recomputing it is not even considered.
    count = 3000
    inner = [f"f{i} 1: {f'x{i - 1}' if i else ''} -> x{i}=1" for i in range(count)]
    instance = step(*inner, "k 9: -> d=9", "m 9: ->", f"b' 1: x{count - 1} ->", budget=9)
    found = greedy(instance)
    assert found.makespan == instance.ideal + 1
    with pytest.raises(NoPlanError, match="operation 'k' is 1 bytes over the budget of 9"):
        greedy(instance, swap=False)


def test_a_model_at_half_its_peak_beats_its_baselines() -> None:
    instance = load("gpt2-xl", layers=6)
    instance = instance.with_budget(instance.peak // 2)
    found = greedy(instance)
    for baseline in (baselines.swap_all, baselines.recompute_all, baselines.first_blocks):
        assert found.makespan < place_and_judge(instance, baseline(instance)).timeline.makespan
    for alone in (greedy(instance, swap=False), greedy(instance, recompute=False)):
        assert found.makespan < alone.makespan
