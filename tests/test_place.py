"""Plans become schedules: laws, with a second judge, then schedules worked out by hand, in the time and memory they take."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from slackswap_opt.files import InputError
from slackswap_opt.instance import Instance, Link
from slackswap_opt.place import PlacementError, place, place_and_judge
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.schedule import Action
from slackswap_opt.simulate import simulate
from slackswap_opt.testing import instances
from tests.handmade import plan, planned, spelled, step
from tests.naive_judge import naive


@settings(max_examples=150, deadline=None)
@given(planned(possible=False, host_budgets=True))
def test_any_plan_is_placed_within_the_budget_or_refused_with_a_reason(example: tuple[Instance, Plan]) -> None:
    instance, given_plan = example
    try:
        placement = place_and_judge(instance, given_plan)
    except PlacementError as error:
        message = str(error)
        assert "'" in message
        return
    verdict = naive(instance, placement.schedule)
    timeline = placement.timeline
    assert (verdict.peak, verdict.host_peak, verdict.makespan) == (timeline.peak, timeline.host_peak, timeline.makespan)
    assert instance.budget is None or timeline.peak <= instance.budget
    assert instance.host_budget is None or timeline.host_peak <= instance.host_budget


@settings(max_examples=100, deadline=None)
@given(planned(host_budgets=True))
def test_copies_and_re_runs_are_those_of_the_plan(example: tuple[Instance, Plan]) -> None:
    instance, given_plan = example
    try:
        schedule = place(instance, given_plan)
    except PlacementError:
        return
    swapped = {g.tensor for g, d in zip(instance.idle_intervals, given_plan.intervals, strict=True) if d is Decision.SWAP}
    swapped |= {i for i, decision in enumerate(given_plan.tails) if decision is Decision.SWAP}
    assert {i for action, i in schedule.instructions if action in (Action.OFFLOAD, Action.PREFETCH)} <= swapped
    again = sum(action is Action.RUN for action, _ in schedule.instructions) - len(instance.operations)
    assert again == 0 or Decision.RECOMPUTE in given_plan.intervals


@settings(max_examples=100, deadline=None)
@given(planned(host_budgets=True))
def test_equal_plans_give_equal_schedules(example: tuple[Instance, Plan]) -> None:
    instance, given_plan = example
    try:
        schedule = place(instance, given_plan)
    except PlacementError:
        with pytest.raises(PlacementError):
            place(replace(instance), given_plan)
        return
    assert place(replace(instance), Plan(given_plan.intervals, given_plan.tails)) == schedule


@settings(max_examples=100, deadline=None)
@given(instances())
def test_keeping_everything_is_the_ideal_step_at_the_unconstrained_peak(instance: Instance) -> None:
    timeline = place_and_judge(instance.with_budget(instance.peak), Plan.keep_all(instance)).timeline
    assert (timeline.makespan, timeline.peak) == (instance.ideal, instance.peak)


@settings(max_examples=100, deadline=None)
@given(instances(unswappable=False, budgets=(0, 0)))
def test_swapping_everything_fits_the_largest_need(instance: Instance) -> None:
    everything = Plan((Decision.SWAP,) * len(instance.idle_intervals), (Decision.DISCARD,) * len(instance.tensors))
    assert instance.budget == instance.largest_need
    assert place_and_judge(instance, everything).timeline.peak <= instance.largest_need


@settings(max_examples=100, deadline=None)
@given(planned())
def test_a_faster_link_never_makes_the_placed_schedule_longer(example: tuple[Instance, Plan]) -> None:
    instance, given_plan = example
    try:
        placement = place_and_judge(instance, given_plan)
    except PlacementError:
        return
    link = Link(2 * instance.link.offload_bandwidth, 2 * instance.link.prefetch_bandwidth, 0, instance.link.duplex)
    assert simulate(instance.with_link(link), placement.schedule).makespan <= placement.timeline.makespan


def placed(instance: Instance, *decisions: str, tails: str = "") -> tuple[str, int]:
    """Return the schedule of a plan as text, and its makespan."""
    placement = place_and_judge(instance, plan(instance, *decisions, tails=tails))
    return spelled(instance, placement.schedule), placement.timeline.makespan


def test_a_swap_that_computation_hides() -> None:
    # f 0-10, g 10-20 while a is copied out; h 20-40 and h' 40-60 fill the budget with b and c; a comes back during g'
    # (60-70) and f' follows at once: the ideal 80 ns.
    instance = step(
        "f 10: -> a=10", "g 10: a -> b=10", "h 20: b -> c=10", "h' 20: b c ->", "g' 10: b ->", "f' 10: a ->", budget=20
    )
    text = "f, offload a, g, evict a, h, h', drop c, prefetch a, g', drop b, f', drop a"
    assert placed(instance, "a swap") == (text, 80)


def test_a_swap_that_memory_makes_late() -> None:
    # As above without g': a can only come back when c has left at 60, and f' waits until 70.
    instance = step("f 10: -> a=10", "g 10: a -> b=10", "h 20: b -> c=10", "h' 20: b c ->", "f' 10: a ->", budget=20)
    text = "f, offload a, g, evict a, h, h', drop b, drop c, prefetch a, f', drop a"
    assert placed(instance, "a swap") == (text, 80)


def test_a_swap_without_time_is_no_swap() -> None:
    instance = step("f 1: -> a=10", "g 1: a -> b=1", "h 1: b ->", "f' 1: a ->", budget=11)
    assert placed(instance, "a swap") == ("f, g, h, drop b, f', drop a", 4)


def test_a_forced_eviction_stalls() -> None:
    # f 0-3, the copy 3-13, k 13-18, g 18-38 while a comes back, a' 38-42: 10 ns over the ideal 32.
    instance = step("f 3: -> a=10", "k 5: -> b=9", "g 20: ->", "a' 4: a ->", budget=10)
    assert placed(instance, "a swap") == ("f, offload a, evict a, k, drop b, prefetch a, g, a', drop a", 42)


def test_a_chain_of_re_runs() -> None:
    instance = step("f 2: -> a=3", "g 3: a -> b=4", "h 4: b -> c=5", "k 1: -> d=9", "h' 10: c ->", budget=9)
    text = "f, g, drop a, h, drop b, drop c, k, drop d, f, g, drop a, h, drop b, h', drop c"
    assert placed(instance, "c recompute") == (text, 20 + 2 + 3 + 4)


def test_a_second_swap_copies_nothing_out() -> None:
    # f 0-9, a out 9-13, k 13-18, a back 18-22, g 22-27, l 27-32, a back 32-36, a' 36-40.
    instance = step("f 9: -> a=4", "k 5: -> b=9", "g 5: a ->", "l 5: -> c=9", "a' 4: a ->", budget=9)
    text = "f, offload a, evict a, k, drop b, prefetch a, g, drop a, l, drop c, prefetch a, a', drop a"
    assert placed(instance, "a swap swap") == (text, 40)


def test_a_second_swap_of_changed_bytes_copies_again() -> None:
    # Four more: a, written in place by g, goes out once more at 27-31.
    instance = step("f 9: -> a=4", "k 5: -> b=9", "g 5: a -> a", "l 5: -> c=9", "a' 4: a ->", budget=9)
    text = "f, offload a, evict a, k, drop b, prefetch a, g, offload a, evict a, l, drop c, prefetch a, a', drop a"
    assert placed(instance, "a swap swap") == (text, 44)


def test_a_sibling_that_comes_back_early_is_held_or_rebuilt_again() -> None:
    operations = ("f 5: -> a=4 m=3", "k 5: -> b=9", "a' 5: a ->", "l' 5 +7: ->", "m' 5: m ->")
    held = "f, drop a, drop m, k, drop b, f, a', drop a, l', m', drop m"
    assert placed(step(*operations, budget=10), "a recompute", "m recompute") == (held, 30)
    again = "f, drop a, drop m, k, drop b, f, drop m, a', drop a, l', f, drop a, m', drop m"
    assert placed(step(*operations, budget=9), "a recompute", "m recompute") == (again, 35)


def test_an_in_place_group_is_rebuilt_in_order() -> None:
    instance = step("f 2: -> a=4", "g 3: a -> a", "k 5: -> b=9", "a' 4: a ->", budget=9)
    assert placed(instance, "a recompute") == ("f, g, drop a, k, drop b, f, g, a', drop a", 19)


def test_a_re_run_evicts_the_sibling_that_is_still_on_its_way_out() -> None:
    # c goes out after g, 10-30 on this link; the re-run of g before b' writes a second c, so it waits until 30 and drops it.
    # g 30-39, b' 39-44 and l 44-53 while c takes 39-59 to come back.
    instance = step(
        "f 1: -> a=1",
        "g 9: a -> b=4 c=4",
        "k 5: -> d=9",
        "b' 5: a b ->",
        "l 9: ->",
        "c' 4: c ->",
        link=Link(2 * 10**8, 2 * 10**8),
    )
    text = "f, g, drop b, offload c, k, drop d, evict c, g, drop c, prefetch c, b', drop a, drop b, l, c', drop c"
    assert placed(instance, "b recompute", "c swap") == (text, 1 + 9 + 20 + 9 + 20 + 4)


def test_one_lane_for_both_directions_takes_turns() -> None:
    # a back and b out both want the lane at 51; b, which must make room, goes first, and a is 10 late.
    operations = (
        "f 1: -> a=10",
        "e 10: ->",
        "k 30: -> c=20",
        "p 10: -> b=10",
        "q 10: ->",
        "a' 1: a ->",
        "r 20: -> d=20",
        "b' 9: b ->",
    )
    both = step(*operations, budget=20)
    text, makespan = placed(both, "a swap", "b swap")
    assert text == (
        "f, offload a, e, evict a, k, drop c, p, offload b, prefetch a, q, evict b, a', drop a, r, drop d, prefetch b, b', "
        "drop b"
    )
    assert makespan == both.ideal + 10  # b comes back only when d has left
    one = step(*operations, budget=20, link=Link(10**9, 10**9, 0, duplex=False))
    assert placed(one, "a swap", "b swap") == (text, makespan + 10)


@pytest.mark.parametrize(
    ("tail", "text", "makespan"),
    [
        ("discard", "f, g, drop y, h, drop x, drop z, k, drop b, f, h, drop x, z', drop z, l', f, g, drop x, y', drop y", 54),
        (
            "swap",
            "f, offload x, g, drop y, h, drop z, evict x, k, drop b, prefetch x, h, z', drop z, l', g, drop x, y', drop y",
            46,
        ),
        ("recompute", "f, g, drop y, h, drop x, drop z, k, drop b, f, h, z', drop z, l', g, drop x, y', drop y", 48),
    ],
)
def test_tails(tail: str, text: str, makespan: int) -> None:
    # The ideal is 40. Re-runs of g and h add 2, of f 6 each; the swap of x stalls k by 1 (out 6-9) and h by 3 (back 29-32).
    instance = step(
        "f 6: -> x=3", "g 1: x -> y=3", "h 1: x -> z=3", "k 20: -> b=6", "z' 4: z ->", "l' 4 +3: ->", "y' 4: y ->", budget=6
    )
    assert instance.ideal == 40
    assert placed(instance, "z recompute", "y recompute", tails=f"x {tail}") == (text, makespan)


def test_a_kept_tail_holds_its_bytes() -> None:
    operations = ("f 6: -> x=3", "g 1: x -> y=3", "h 1: x -> z=3", "k 20: -> b=6", "z' 4: z ->", "l' 4 +3: ->", "y' 4: y ->")
    decisions = ("z recompute", "y recompute")
    text = "f, g, drop y, h, drop z, k, drop b, h, z', drop z, l', g, drop x, y', drop y"
    assert placed(step(*operations, budget=9), *decisions, tails="x keep") == (text, 42)
    with pytest.raises(PlacementError, match="operation 'k' needs 9 bytes under this plan, over the budget of 6"):
        placed(step(*operations, budget=6), *decisions, tails="x keep")


def test_what_is_held_leaves_only_before_and_after() -> None:
    # a is held during k' too, so it comes back for k', out 2-6 and back 15-19: two stalls, of 2 before h and 4 before k'.
    operations = ("f 2: -> a=4", "g 2: -> b=4", "h 9: -> c=4", "k' 2: b ->", "a' 2: a ->")
    text = "f, offload a, g, evict a, h, drop c, prefetch a, k', drop b, a', drop a"
    assert placed(step(*operations, budget=8, held={"a": (3, 3)}), "a swap") == (text, 17 + 2 + 4)
    with pytest.raises(PlacementError, match="operation 'h' needs 12 bytes"):
        placed(step(*operations, budget=8, held={"a": (2, 2)}), "a swap swap")


def test_a_full_host_refuses_and_names_the_operation() -> None:
    operations = ("f 1: -> a=4 b=4", "k 20: -> c=9", "b' 9: b ->", "a' 4: a ->")
    with pytest.raises(PlacementError, match="tensors must leave for operation 'k', but the host's budget of 7 bytes"):
        placed(step(*operations, budget=9, host_budget=7), "a swap", "b swap")
    assert placed(step(*operations, budget=9, host_budget=8), "a swap", "b swap")[1] == 34 + 8 + 4


def test_copies_are_placed_again_where_compute_stalls() -> None:
    # 3 bytes a nanosecond out, 10 ns a byte back, and 1 ns a copy. f 0-1, t out 1-3, s out 3-7; g 3-4 after t has left; h,
    # which takes no time, needs s gone by 7 and t back by 18. On the axis of bare durations h ends with g, so nothing has time
    # to set out after g; with the stall of 11 there is: u goes out 7-11 and is gone when h has run, so that s comes back 18-99,
    # four earlier. s' 99-104, u back 104-185, u' 185-187.
    instance = step(
        "f 1 +1: -> s=8 t=1", "g! 1: s -> u=8", "h! 0 +1: t -> d=2", "s'! 5 +1: s ->", "u'! 2: u -> e=3",
        budget=16,
        link=Link(3 * 10**9, 10**8, 1),
    )  # fmt: skip
    assert placed(instance, "s swap", "t swap", "u swap") == (
        "f, offload t, offload s, evict t, g, offload u, evict s, prefetch t, h, drop t, drop d, evict u, prefetch s, s', "
        "drop s, prefetch u, u', drop u, drop e",
        187,
    )


def test_a_forced_wait_lets_the_next_copy_out_set_out() -> None:
    # 10 ns a byte out, 3 bytes a nanosecond back, and 1 ns a copy. s goes out 1-52, and k must wait for it, so d follows at
    # 52-153 during k, not after it. m waits until d has left, s is back 153-156, m 156-158, d back 158-163, d' 163-172.
    instance = step(
        "f 1: -> s=5", "g! 2: s -> c=2 x=10 d=10", "k 5 +3: c x -> e=2", "m 2 +3: s x ->", "d' 9 +3: d ->",
        budget=27,
        link=Link(10**8, 3 * 10**9, 1),
    )  # fmt: skip
    assert placed(instance, "s swap", "d swap") == (
        "f, offload s, g, offload d, evict s, k, drop c, drop e, evict d, prefetch s, m, drop s, drop x, prefetch d, d', "
        "drop d",
        172,
    )


def test_a_plan_for_another_step_is_refused() -> None:
    instance = step("f 1: -> a=4", "g 5: -> b=4", "f' 1: a b ->", budget=8)
    with pytest.raises(InputError, match="'intervals' must have a decision for each of 1 idle intervals, got 0"):
        place(instance, Plan((), ()))
    with pytest.raises(InputError, match="'tails' must have a decision for each of 2 tensors, got 1"):
        place(instance, Plan((Decision.KEEP,), (Decision.DISCARD,)))
    with pytest.raises(InputError, match=r"intervals\[0\] must be keep, swap or recompute, got discard"):
        place(instance, Plan((Decision.DISCARD,), (Decision.DISCARD,) * 2))


def test_a_step_without_operations_has_an_empty_schedule() -> None:
    empty = Instance("empty", (), (), Link(1, 1), 0)
    placement = place_and_judge(empty, Plan((), ()))
    assert placement.schedule.instructions == ()
    assert placement.timeline.makespan == 0
