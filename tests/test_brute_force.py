from dataclasses import replace

import pytest
from hypothesis import given, settings

from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.schedule import Action
from tests.brute_force import SearchLimitError, best_schedule, optimum, plan_optimum
from tests.tiny_instances import tiny_instances

BYTE_PER_NS = Link(10**9, 10**9)
Row = tuple[int, tuple[int, ...], tuple[int, ...]]


def step(sizes: tuple[int, ...], rows: list[Row], budget: int | None, link: Link = BYTE_PER_NS) -> Instance:
    """A step of (duration, reads, writes), by default behind a link of a byte a nanosecond each way."""
    tensors = tuple(Tensor(f"x{i}", size) for i, size in enumerate(sizes))
    operations = tuple(Operation(f"o{t}", *row) for t, row in enumerate(rows))
    return Instance("step", tensors, operations, link, budget)


def fixed(instance: Instance, *, swappable: bool = True, recomputable: bool = True) -> Instance:
    """The instance with all tensors swappable or not, and all operations recomputable or not."""
    return replace(
        instance,
        tensors=tuple(replace(x, swappable=swappable) for x in instance.tensors),
        operations=tuple(replace(o, recomputable=recomputable) for o in instance.operations),
    )


def with_workspace(instance: Instance, workspace: dict[int, int]) -> Instance:
    """The instance with the workspaces of some operations."""
    operations = tuple(replace(o, workspace=workspace.get(t, 0)) for t, o in enumerate(instance.operations))
    return replace(instance, operations=operations)


def at_most(a: int | None, b: int | None) -> bool:
    """Whether optimum `a` is no worse than `b`, where None is worse than any."""
    return b is None or (a is not None and a <= b)


@settings(max_examples=40, deadline=None)
@given(tiny_instances(tensors=5, operations=8))
def test_smaller_spaces_are_never_better(instance: Instance) -> None:
    ideal, every, plan, narrow, narrowest = (
        instance.ideal,
        optimum(instance),
        plan_optimum(instance),
        plan_optimum(instance, W=1),
        plan_optimum(instance, W=0),
    )
    assert at_most(ideal, every)
    assert at_most(every, plan)
    assert at_most(plan, narrow)
    assert at_most(narrow, narrowest)
    assert plan_optimum(instance, W=len(instance.operations)) == plan
    assert plan_optimum(instance.with_budget(None)) == plan_optimum(instance.with_budget(instance.peak)) == ideal


@settings(max_examples=80, deadline=None)
@given(tiny_instances())
def test_more_memory_is_never_worse(instance: Instance) -> None:
    assert instance.budget is not None
    assert at_most(optimum(instance.with_budget(instance.budget + 1)), optimum(instance))
    assert at_most(optimum(replace(instance, host_budget=9)), optimum(replace(instance, host_budget=8)))


@settings(max_examples=40, deadline=None)
@given(tiny_instances())
def test_a_better_link_is_never_worse(instance: Instance) -> None:
    link, slow = instance.link, (plan_optimum(instance), optimum(instance))
    for better in (
        replace(link, offload_bandwidth=2 * link.offload_bandwidth),
        replace(link, prefetch_bandwidth=2 * link.prefetch_bandwidth),
        replace(link, latency=0),
        replace(link, duplex=True),
    ):
        fast = instance.with_link(better)
        assert at_most(plan_optimum(fast), slow[0])
        assert at_most(optimum(fast), slow[1])


def test_a_swap_that_computation_hides_costs_nothing() -> None:
    # Budget 4 holds one of x0 and x1. x0 is copied out during o1 (ns 5 to 9 of 5 to 15); x1 lives in o2 and o3 (15 to 35);
    # x0 comes back during o4 (35 to 39 of 35 to 45). Running o0 again instead would cost 5.
    rows: list[Row] = [(5, (), (0,)), (10, (), ()), (10, (), (1,)), (10, (1,), ()), (10, (), ()), (10, (0,), ())]
    assert plan_optimum(step((4, 4), rows, budget=4)) == optimum(step((4, 4), rows, budget=4)) == 55


@pytest.mark.parametrize(("first", "least"), [(3, 36), (8, 46), (9, 47)])
def test_a_swap_in_the_open_competes_with_a_rerun(first: int, least: int) -> None:
    # Nothing runs while x0 goes out (4 ns) and comes back (4 ns): 8 ns, or the duration of o0 to make it anew. 30 ns besides.
    rows: list[Row] = [(first, (), (0,)), (10, (), (1,)), (10, (1,), ()), (10, (0,), ())]
    assert plan_optimum(step((4, 4), rows, budget=4)) == least
    assert optimum(step((4, 4), rows, budget=4)) == least


def test_latency_makes_one_large_copy_better_than_two_small_ones() -> None:
    # A copy of 2 or 4 bytes takes 1 ns and 3 of latency. 4 of the 8 bytes must leave for x3, with nothing running meanwhile: x0
    # goes and comes back in 4 + 4 ns, x1 and x2 together in 8 + 8.
    link = Link(10**12, 10**12, latency=3)
    rows: list[Row] = [(3, (), (0, 1, 2)), (10, (), (3,)), (10, (3,), ()), (10, (0, 1, 2), ())]
    instance = fixed(step((4, 2, 2, 4), rows, 8, link), recomputable=False)
    found = best_schedule(instance)
    assert found is not None
    assert found[0] == optimum(instance) == 33 + 8
    assert [i for action, i in found[1].instructions if action is Action.OFFLOAD] == [0]


CHAIN: list[Row] = [(2, (), (0,)), (3, (0,), (1,)), (5, (), (2,)), (5, (2,), ()), (5, (1,), ()), (5, (0,), ())]


def test_a_parent_is_wanted_before_its_own_next_use() -> None:
    # x2 takes the whole budget in o2 and o3, so x0 and x1 are lost. o4 wants x1, whose writer reads x0: both are made again
    # just before o4 (2 + 3 ns), one operation before o5 reads x0. With W = 0 that is too early, and there is no other way.
    instance = fixed(step((2, 2, 4), CHAIN, budget=4), swappable=False)
    assert plan_optimum(instance) == plan_optimum(instance, W=1) == optimum(instance) == 25 + 5
    assert plan_optimum(instance, W=0) is None


@pytest.mark.parametrize(("workspace", "least"), [(0, 24 + 9), (2, 24 + 11)])
def test_a_dead_parent_is_rebuilt_and_held_or_rebuilt_twice(workspace: int, least: int) -> None:
    # Everything is lost in o3, which takes the whole budget. o4 wants x1 (3 ns), o5 wants x3 (4 ns), both made of x0 (2 ns),
    # whose last access was o2. x0 just fits beside x1 in o4, and is made once: 9 ns. With a workspace in o4 it does not, and is
    # made twice: 11 ns.
    rows: list[Row] = [(2, (), (0,)), (3, (0,), (1,)), (4, (0,), (3,)), (5, (), (2,)), (5, (1,), ()), (5, (3,), ())]
    instance = with_workspace(fixed(step((2, 2, 4, 2), rows, budget=4), swappable=False), {4: workspace})
    assert plan_optimum(instance) == optimum(instance) == least


def test_a_dead_parent_may_be_kept_for_a_rerun() -> None:
    # x1 has to go for o2's workspace. With x0, whose last access is o2 (5 ns to make), still there, o1 makes x1 again in 2 ns.
    rows: list[Row] = [(5, (), (0,)), (2, (0,), (1,)), (5, (0,), ()), (4, (1,), ())]
    instance = with_workspace(fixed(step((4, 4), rows, budget=8), swappable=False), {2: 4})
    assert plan_optimum(instance) == optimum(instance) == 16 + 2


def test_what_is_back_inside_an_interval_stays_in_the_plan_space() -> None:
    # o2 needs all of the memory, o3 half of it beside x1. To make x1 again for o3 takes x0 (1 + 8 ns), which o3 has no room for
    # and o4 reads: any schedule makes it a third time, 1 ns. In the plan space it would have to stay through o3.
    rows: list[Row] = [(1, (), (0,)), (8, (0,), (1,)), (10, (), ()), (5, (1,), ()), (5, (0,), ())]
    instance = with_workspace(fixed(step((4, 4), rows, budget=8), swappable=False), {2: 8, 3: 4})
    assert optimum(instance) == 29 + 10
    assert plan_optimum(instance) is None


def test_what_is_leaving_serves_no_rerun_in_the_plan_space() -> None:
    # o2 has no room for both tensors, o4 for none. Any schedule drops x1 for o2 and makes it again of x0 (1 ns), whose copy out
    # is under way until x0 is evicted for o4. A plan has x0 out before o2, with o1 alone to hide its offload: 3 ns to wait.
    idle: Row = (10, (), ())
    rows: list[Row] = [(50, (), (0,)), (1, (0,), (1,)), idle, (10, (1,), ()), idle, idle, (10, (0,), ())]
    instance = with_workspace(step((4, 2), rows, budget=6), {2: 2, 4: 6})
    x0, x1 = instance.tensors
    instance = replace(instance, tensors=(x0, replace(x1, swappable=False)))
    assert optimum(instance) == 101 + 1
    assert plan_optimum(instance) == 101 + 3


def test_what_is_held_cannot_leave() -> None:
    # x0 leaves for o3's workspace and comes back, hidden, unless something holds it through o3.
    rows: list[Row] = [(5, (), (0,)), (10, (), ()), (10, (), ()), (10, (), ()), (10, (), ()), (10, (0,), ())]
    instance = with_workspace(step((4,), rows, budget=4), {3: 4})
    for last, least in ((2, 55), (3, None)):
        held = replace(instance, tensors=(replace(instance.tensors[0], held=((0, last),)),))
        assert optimum(held) == plan_optimum(held) == least


def test_what_is_held_cannot_make_room_for_a_rerun() -> None:
    # o3's workspace leaves room for x0 or x1. Without x0, x1 stays, and o2 (1 ns) makes x0 again for o5. If x0 is held, x1 has
    # to be made again of x2 for o4, and o0's 6 bytes do not fit beside x0.
    rows: list[Row] = [(1, (), (2,)), (1, (2,), (1,)), (1, (), (0,)), (5, (), ()), (5, (1,), ()), (5, (0,), ())]
    free = with_workspace(fixed(step((4, 2, 6), rows, budget=8), swappable=False), {3: 4})
    assert optimum(free) == plan_optimum(free) == 18 + 1
    held = replace(free, tensors=(replace(free.tensors[0], held=((2, 4),)), *free.tensors[1:]))
    assert optimum(held) is plan_optimum(held) is None


def test_one_lane_for_both_directions_makes_copies_wait() -> None:
    # o2 and o4 have a workspace of half of the budget 8, so that x0 is away in o2 and x1 in o4; x0 can come back, and x1 go,
    # only during o3 (12 to 16): at once, or one after the other, which holds o4 up until 20 and all the rest with it.
    rows: list[Row] = [(4, (), (0,)), (4, (), ()), (4, (), (1,)), (4, (), ()), (4, (0,), ()), (4, (), ()), (4, (1,), ())]
    for duplex, least in ((True, 28), (False, 32)):
        instance = step((4, 4), rows, 8, replace(BYTE_PER_NS, duplex=duplex))
        instance = with_workspace(fixed(instance, recomputable=False), {2: 4, 4: 4})
        assert plan_optimum(instance) == optimum(instance) == least


def test_writers_in_place_run_again_together() -> None:
    # x0 is made by o0 (2 ns) and changed by o1 (3 ns); it cannot stay with x1, nor be swapped: 5 ns more than 30.
    rows: list[Row] = [(2, (), (0,)), (3, (0,), (0,)), (10, (), (1,)), (5, (1,), ()), (10, (0,), ())]
    instance = fixed(step((4, 4), rows, budget=4), swappable=False)
    assert plan_optimum(instance) == optimum(instance) == 30 + 5


def test_between_writers_in_place_only_a_swap_gets_a_tensor_out_in_the_plan_space() -> None:
    # o1 and o2 need all of the memory while x0 has seen the first of its writers, o0 (2 ns). Any schedule may run o0 again; a
    # plan may not, as o3 has not run yet: a copy out and back, of 4 ns each, remains.
    rows: list[Row] = [(2, (), (0,)), (10, (), (1,)), (5, (1,), ()), (3, (0,), (0,)), (10, (0,), ())]
    instance = step((4, 4), rows, budget=4)
    assert optimum(instance) == 30 + 2
    assert plan_optimum(instance) == 30 + 8
    assert plan_optimum(fixed(instance, swappable=False)) is None


def test_an_earlier_state_of_a_tensor_comes_back_from_the_host() -> None:
    # o1 (2 ns) makes x1 (3 bytes) of x0 (1 byte) and changes x0 in place. x1 cannot be swapped, and is lost for x2. To run o1
    # again takes x0 as o0 (50 ns) left it: out and back before o1, 1 ns each with nothing running, and fetched once more
    # in place of the x0 that is there while o2 or o3 runs: 2 + 2 ns more than 67. No plan goes back to an earlier state.
    rows: list[Row] = [(50, (), (0,)), (2, (0,), (0, 1)), (5, (), (2,)), (5, (2,), ()), (5, (0, 1), ())]
    instance = step((1, 3, 3), rows, budget=4)
    x0, x1, x2 = instance.tensors
    instance = replace(instance, tensors=(x0, replace(x1, swappable=False), x2))
    assert optimum(instance) == 67 + 4
    assert plan_optimum(instance) is None


def test_siblings_share_a_rerun() -> None:
    # o0 writes x0 and x1 (4 bytes each, 3 ns), x2 takes the whole budget, and one more run gives both back.
    rows: list[Row] = [(3, (), (0, 1)), (10, (), (2,)), (5, (2,), ()), (5, (0,), ()), (5, (1,), ())]
    instance = fixed(step((4, 4, 8), rows, budget=8), swappable=False)
    assert plan_optimum(instance) == optimum(instance) == 28 + 3


def test_all_that_a_rerun_writes_counts_while_it_runs() -> None:
    # x3 (1 byte) cannot leave between o1 and o5. o2 needs the 7 others, so x0 and x1 are lost, and o0 needs 8 to give either.
    rows: list[Row] = [(3, (), (0, 1)), (1, (), (3,)), (10, (3,), (2,)), (5, (2,), ()), (5, (0,), ()), (5, (1, 3), ())]
    instance = fixed(step((4, 4, 7, 1), rows, budget=8), swappable=False)
    operations = tuple(replace(o, recomputable=t != 1) for t, o in enumerate(instance.operations))
    assert optimum(replace(instance, operations=operations)) is None
    assert optimum(replace(instance, operations=operations, budget=9)) == 29 + 3


@pytest.mark.parametrize(("budget", "least"), [(8, 30 + 3), (7, 30 + 10)])
def test_a_second_copy_of_what_is_resident_counts(budget: int, least: int) -> None:
    # x1 (4 bytes) is lost for x2 (4), and o0 (3 ns) gives it again, with a second x0 (2) beside the one that o1 (7 ns) has
    # changed since: 8 bytes. With less, x0 has to go too, and both o0 and o1 run again.
    rows: list[Row] = [(3, (), (0, 1)), (7, (0,), (0,)), (10, (), (2,)), (5, (2,), ()), (5, (0, 1), ())]
    instance = fixed(step((2, 4, 4), rows, budget), swappable=False)
    assert plan_optimum(instance) == optimum(instance) == least


def test_the_host_budget_limits_what_is_swapped() -> None:
    # x0 (4 bytes) has to leave for x1, and only a host with room for it lets it.
    rows: list[Row] = [(5, (), (0,)), (10, (), ()), (10, (), (1,)), (10, (1,), ()), (10, (), ()), (10, (0,), ())]
    instance = fixed(step((4, 4), rows, budget=4), recomputable=False)
    assert plan_optimum(replace(instance, host_budget=4)) == optimum(replace(instance, host_budget=4)) == 55
    assert plan_optimum(replace(instance, host_budget=3)) is optimum(replace(instance, host_budget=3)) is None


def test_the_host_has_room_again_once_the_last_copy_has_come_back() -> None:
    # x0 is away in o2 and x1 in o7, which need all of the memory for themselves. Each goes and comes back while nothing else
    # needs memory, and is read: so the host never holds both.
    idle: Row = (10, (), ())
    rows: list[Row] = [(5, (), (0,)), idle, idle, idle, (5, (0,), ()), (5, (), (1,)), idle, idle, idle, (5, (1,), ())]
    instance = with_workspace(fixed(step((4, 4), rows, budget=4), recomputable=False), {2: 4, 7: 4})
    instance = replace(instance, host_budget=4)
    assert plan_optimum(instance) == optimum(instance) == instance.ideal


def test_without_a_budget_the_step_is_ideal_and_below_the_need_there_is_none() -> None:
    # The largest need is 4: x2 in o2.
    instance = step((2, 2, 4), CHAIN, budget=None)
    assert plan_optimum(instance) == optimum(instance) == 25
    assert plan_optimum(instance.with_budget(3)) is optimum(instance.with_budget(3)) is None


def test_an_empty_step_takes_no_time() -> None:
    assert plan_optimum(Instance("empty", (), (), BYTE_PER_NS, budget=0)) == 0


def test_searches_that_grow_too_large_are_refused() -> None:
    large = step((1,) * 9, [(1, (), tuple(range(9)))], budget=9)
    with pytest.raises(SearchLimitError, match="at most 8 tensors"):
        best_schedule(large)
    with pytest.raises(SearchLimitError, match="more than 5 states"):
        best_schedule(step((2, 2, 4), CHAIN, budget=4), limit=5)
    with pytest.raises(ValueError, match="W is a limit of the plan space"):
        best_schedule(step((2, 2, 4), CHAIN, budget=4), space="all", W=0)
