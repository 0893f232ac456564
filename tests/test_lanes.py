"""When copies travel: laws over random plans, then lanes worked out by hand."""

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from slackswap_opt.instance import Instance, Link
from slackswap_opt.lanes import OffloadLane, Swap, fetch_in_time, swaps_of
from slackswap_opt.plan import Plan
from slackswap_opt.runlist import PlacementError, RunList, run_list
from tests.handmade import plan, planned, step


def travelled(instance: Instance, runs: RunList) -> tuple[list[Swap], NDArray[np.int64], list[int]]:
    """Return the swaps with their positions, what memory holds with copies under way, and when each event starts."""
    swaps = swaps_of(instance, runs)
    memory = np.asarray(runs.memory(instance), dtype=np.int64)
    lane = OffloadLane(
        instance, runs, swaps, memory, list(accumulate((instance.operations[t].duration for t in runs.events), initial=0))
    )
    lane.sweep()
    fetch_in_time(instance, swaps, memory, lane.starts)
    return swaps, memory, lane.starts


@settings(max_examples=100, deadline=None)
@given(planned(host_budgets=True))
def test_each_way_to_the_host_and_back_has_its_order(example: tuple[Instance, Plan]) -> None:
    try:
        runs = run_list(*example)
        swaps, _, _ = travelled(example[0], runs)
    except PlacementError:
        return
    for swap in swaps:
        assert swap.out.last < swap.gone_by <= swap.back.first
        if swap.kept:
            continue
        if swap.copies:
            assert swap.out.written < swap.issue <= swap.evict
        assert swap.out.last < swap.evict <= swap.gone_by
        assert max(swap.evict, swap.back_after) <= swap.fetch <= swap.back.first


@settings(max_examples=100, deadline=None)
@given(planned(host_budgets=True))
def test_copies_under_way_keep_to_the_budget(example: tuple[Instance, Plan]) -> None:
    instance = example[0]
    try:
        runs = run_list(*example)
        swaps, memory, _ = travelled(instance, runs)
    except PlacementError:
        return
    expected = runs.memory(instance)
    for swap in swaps:
        away = range(swap.evict, swap.fetch) if not swap.kept else range(0)
        for e in range(swap.out.last + 1, swap.back.first):
            expected[e] += swap.size * (e not in away)
    assert memory.tolist() == expected
    assert instance.budget is None or max(expected, default=0) <= instance.budget


@settings(max_examples=100, deadline=None)
@given(planned(host_budgets=True))
def test_events_start_in_order_and_no_earlier_than_without_copies(example: tuple[Instance, Plan]) -> None:
    instance = example[0]
    try:
        runs = run_list(*example)
        _, _, starts = travelled(instance, runs)
    except PlacementError:
        return
    clock = 0
    for t, start in zip(runs.events, starts, strict=False):
        assert start >= clock
        clock = start + instance.operations[t].duration
    assert starts[-1] == clock


def only(instance: Instance, *decisions: str) -> tuple[Swap, NDArray[np.int64], list[int]]:
    """Return the one swap of a plan, placed."""
    swaps, memory, starts = travelled(instance, run_list(instance, plan(instance, *decisions)))
    (swap,) = swaps
    return swap, memory, starts


def test_a_copy_out_starts_when_the_tensor_is_written_and_its_bytes_leave_when_it_is_done() -> None:
    # f 0-10 writes a; the copy takes 10-20; g 10-15 reads a, h 15-18, k 18-30. At 30 it is done: evicted before l.
    instance = step("f 10: -> a=10", "g 5: a ->", "h 3: ->", "k 12: ->", "l 9: ->", "a' 1: a ->")
    swap, memory, starts = only(instance, "a swap")
    assert (swap.issue, swap.evict, swap.kept) == (1, 4, True)
    assert starts == [0, 10, 15, 18, 30, 39, 40]
    # To be back at 39 it must set out at 29, before l: it would only leave to come back, so it stays.
    assert memory.tolist() == [10] * 6


def test_a_copy_back_sets_out_as_late_as_is_in_time() -> None:
    # Back by 48 the copy must start by 38: l starts at 30 and m at 39, so it sets out before l.
    instance = step("f 10: -> a=10", "k 10: ->", "n 10: ->", "l 9: ->", "m 9: ->", "a' 1: a ->")
    swap, memory, starts = only(instance, "a swap")
    assert starts == [0, 10, 20, 30, 39, 48, 49]
    assert (swap.issue, swap.evict, swap.fetch, swap.kept) == (1, 2, 3, False)
    assert memory.tolist() == [10, 10, 0, 10, 10, 10]


def test_copies_back_queue_up_before_the_last_deadline() -> None:
    # b must start by 60 - 10 and a, which is wanted before it, by min(50, 59) - 10: one after the other on the lane.
    instance = step("f 10: -> a=10 b=10", "k 20: ->", "l 10: ->", "m 10: ->", "n 9: ->", "a' 1: a ->", "b' 1: b ->")
    swaps, _, starts = travelled(instance, run_list(instance, plan(instance, "a swap", "b swap")))
    assert starts == [0, 10, 30, 40, 50, 59, 60, 61]
    assert [(swap.issue, swap.evict, swap.fetch) for swap in swaps] == [(1, 2, 3), (1, 2, 4)]


def test_copies_out_go_first_to_leave_first() -> None:
    instance = step("f 1: -> a=10 b=10", "k 5: a ->", "l 9: ->", "m 40: ->", "b' 1: b ->", "a' 1: a ->")
    swaps, _, _ = travelled(instance, run_list(instance, plan(instance, "a swap", "b swap")))
    # Both are written by f; b leaves after f, a after k: b's copy takes 1-11, a's 11-21.
    assert [(instance.tensors[swap.tensor].name, swap.evict) for swap in swaps] == [("b", 3), ("a", 4)]


def test_memory_forces_a_tensor_out_and_compute_waits() -> None:
    # f 0-3; the copy takes 3-13, but k needs the room: it starts at 13.
    instance = step("f 3: -> a=10", "k 5: -> b=9", "g 20: ->", "a' 4: a ->", budget=10)
    swap, _, starts = only(instance, "a swap")
    assert (swap.issue, swap.evict, swap.fetch) == (1, 1, 2)
    assert starts == [0, 13, 18, 38, 42]


def test_memory_moves_a_copy_back() -> None:
    # Back by 60 it should set out at 50, before h' (40-60); there b and c fill the budget, so it comes with g'.
    instance = step("f 10: -> a=10", "g 10: a -> b=10", "h 20: b -> c=10", "h' 20: b c ->", "f' 10: a ->", budget=20)
    swap, memory, _ = only(instance, "a swap")
    assert (swap.issue, swap.evict, swap.fetch) == (1, 2, 4)
    assert memory.tolist() == [10, 20, 20, 20, 10]


def test_what_has_no_time_to_leave_stays() -> None:
    # The copy would take 1-11, but a is wanted at 3.
    instance = step("f 1: -> a=10", "g 1: a -> b=1", "h 1: b ->", "f' 1: a ->", budget=11)
    swap, memory, starts = only(instance, "a swap")
    assert swap.kept
    assert memory.tolist() == [10, 11, 11, 10]
    assert starts == [0, 1, 2, 3, 4]


def test_a_second_swap_copies_nothing() -> None:
    instance = step("f 9: -> a=4", "k 5: -> b=9", "g 5: a ->", "l 5: -> c=9", "a' 4: a ->", budget=9)
    first, second = travelled(instance, run_list(instance, plan(instance, "a swap swap")))[0]
    assert (first.copies, second.copies) == (True, False)
    assert first.successor is second
    assert (second.issue, second.evict, second.fetch) == (-1, 3, 4)
    # The copy on the host waits for event 4, the last that brings it back.
    assert first.host_until == 4


def test_a_second_swap_copies_again_what_was_written_in_place_meanwhile() -> None:
    instance = step("f 9: -> a=4", "k 5: -> b=9", "g 5: a -> a", "l 5: -> c=9", "a' 4: a ->", budget=9)
    first, second = travelled(instance, run_list(instance, plan(instance, "a swap swap")))[0]
    assert (first.copies, second.copies) == (True, True)
    assert first.host_until == 2


def test_a_second_swap_copies_if_the_first_had_no_time() -> None:
    # The first interval, k at 1-2, is too short for a copy of 4 ns; nothing but the second swap copies a out.
    instance = step("f 1: -> a=4", "k 1: ->", "g 1: a ->", "l 20: ->", "m 20: ->", "n 20: ->", "a' 4: a ->")
    first, second = travelled(instance, run_list(instance, plan(instance, "a swap swap")))[0]
    assert first.kept
    assert (second.copies, second.issue, second.evict, second.fetch, second.kept) == (True, 3, 4, 5, False)


def test_a_tensor_is_gone_by_the_time_a_re_run_writes_it() -> None:
    # g writes b and c; b is rebuilt for b' while c is away: g's re-run writes a second c, which leaves at once.
    instance = step("f 1: -> a=1", "g 9: a -> b=4 c=4", "k 5: -> d=9", "b' 5: a b ->", "l 9: ->", "c' 4: c ->")
    runs = run_list(instance, plan(instance, "b recompute", "c swap"))
    assert [instance.operations[t].name for t in runs.events] == ["f", "g", "k", "g", "b'", "l", "c'"]
    (swap,) = swaps_of(instance, runs)
    assert (swap.out.last, swap.gone_by, swap.back_after, swap.back.first) == (1, 3, 4, 6)


def test_a_full_host_delays_a_copy_until_another_is_back() -> None:
    # Both leave after f, but the host has room for one: b waits until a', event 2, has a back.
    instance = step("f 1: -> a=4 b=4", "k 9: -> c=1", "a' 9: a ->", "l 9: ->", "m 9: ->", "b' 9: b ->", host_budget=4, budget=9)
    swaps, _, _ = travelled(instance, run_list(instance, plan(instance, "a swap", "b swap")))
    assert [(swap.issue, swap.host_until) for swap in swaps] == [(1, 2), (3, 5)]


def test_a_full_host_refuses_what_memory_forces_out() -> None:
    # k needs both a and b to leave, and the host has no room for the second.
    instance = step("f 1: -> a=4 b=4", "k 20: -> c=9", "b' 9: b ->", "a' 4: a ->", budget=9, host_budget=7)
    with pytest.raises(PlacementError, match="tensors must leave for operation 'k', but the host's budget of 7 bytes has no"):
        travelled(instance, run_list(instance, plan(instance, "a swap", "b swap")))
    roomy = replace(instance, host_budget=8)
    assert len(travelled(roomy, run_list(roomy, plan(roomy, "a swap", "b swap")))[0]) == 2


def test_a_full_host_refuses_what_a_re_run_would_overwrite() -> None:
    instance = step("f 1: -> a=1", "g 9: a -> b=4 c=4", "k 5: -> d=9", "b' 5: a b ->", "l 9: ->", "c' 4: c ->", host_budget=3)
    with pytest.raises(PlacementError, match="tensor 'c' must leave, but the host's budget of 3 bytes has no room"):
        travelled(instance, run_list(instance, plan(instance, "b recompute", "c swap")))


def test_latency_and_rounding_count_for_each_copy() -> None:
    # 7 bytes at 2 GB/s are 3.5, so 4 ns, and 3 ns of latency: out 5-12, evicted before l at 15; back by 34 it starts at 27.
    instance = step("f 5: -> a=7", "k 10: ->", "l 9: ->", "m 10: ->", "a' 1: a ->", link=Link(2 * 10**9, 2 * 10**9, 3))
    swap, _, starts = only(instance, "a swap")
    assert starts == [0, 5, 15, 24, 34, 35]
    assert (swap.issue, swap.evict, swap.fetch) == (1, 2, 3)


def test_times_beyond_64_bits_are_ordered_all_the_same() -> None:
    # A byte a second and 2^60 bytes: a copy takes 2^60 s, and 2^60 * 10^9 ns have no place in 64 bits.
    size = 2**60
    instance = step(f"f 5: -> a={size}", f"k 10: -> b={size}", "l 9: ->", "a' 1: a ->", link=Link(1, 1), budget=size)
    swap, _, starts = only(instance, "a swap")
    assert (swap.issue, swap.evict, swap.fetch) == (1, 1, 2)
    assert starts[1] == 5 + size * 10**9
