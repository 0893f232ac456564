"""The interval model of schedules agrees with the exhaustive search, which shares nothing with it, and with the judge."""

import pytest
from hypothesis import assume, given, settings

from slackswap_opt import InputError
from slackswap_opt.drafts import NoPlanError
from slackswap_opt.formulations.exact_schedule import best_schedule
from slackswap_opt.greedy import greedy
from slackswap_opt.instance import Instance, Link
from slackswap_opt.schedule import Action
from slackswap_opt.simulate import simulate
from slackswap_opt.testing import instances
from tests import brute_force
from tests.handmade import step
from tests.tiny_instances import tiny_instances


def agrees(instance: Instance, limit: int) -> None:
    try:
        searched = brute_force.best_schedule(instance, space="all", limit=limit)
    except brute_force.SearchLimitError:
        assume(False)
    best = best_schedule(instance)
    assert best.proven
    assert best.makespan == (searched[0] if searched else None)
    if best.schedule:
        assert simulate(instance, best.schedule).makespan == best.makespan


@settings(max_examples=12, deadline=None)
@given(
    tiny_instances(tensors=3, operations=6) | instances(max_tensors=4, max_operations=6, budgets=(0, 100), host_budgets=True)
)
def test_it_agrees_with_the_exhaustive_search(instance: Instance) -> None:
    agrees(instance, 4_000)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(tiny_instances(tensors=5, operations=8) | instances(max_tensors=5, budgets=(0, 100), host_budgets=True))
def test_it_agrees_with_the_exhaustive_search_on_larger_steps(instance: Instance) -> None:
    agrees(instance, 15_000)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(tiny_instances(tensors=8, operations=12))
def test_greedy_is_never_better(instance: Instance) -> None:
    best = best_schedule(instance, more=4)
    assume(best.proven)
    try:
        found = greedy(instance)
    except NoPlanError:
        return
    if best.makespan is not None:
        again = sum(action is Action.RUN for action, _ in found.placement.schedule.instructions) - len(instance.operations)
        assert found.makespan >= best.makespan or again > 4


# c takes the room of a in h and h': a leaves and comes back.
ROWS = ("f 3: -> a=4", "g 10: ->", "h 10: -> c=4", "h' 10: c ->", "g' 10: ->", "f' 10: a ->")


@pytest.mark.parametrize(
    ("link", "overhead"),
    [
        # 4 ns out during g, 4 ns back during g'.
        (Link(10**9, 10**9), 0),
        # 40 ns out, 30 of them in the open, or back: f runs again.
        (Link(10**8, 10**9), 3),
        (Link(10**9, 10**8), 3),
        # 12 ns out and 12 back, 10 of each hidden: 4 ns against 3.
        (Link(10**9, 10**9, latency=8), 3),
        # 11 and 11: 2 ns.
        (Link(10**9, 10**9, latency=7), 2),
    ],
)
def test_swap_or_run_again(link: Link, overhead: int) -> None:
    instance = step(*ROWS, budget=4, link=link)
    best = best_schedule(instance)
    assert (best.makespan, best.proven) == (instance.ideal + overhead, True)


@pytest.mark.parametrize(("duplex", "overhead"), [(True, 0), (False, 4)])
def test_one_lane_for_both_directions(duplex: bool, overhead: int) -> None:
    # h fills the budget with b and its workspace, f' with a and d: during g', of 4 ns, a comes back and b goes out, 4 ns each.
    rows = ("f! 1: -> a=4", "p 4: ->", "h! 10 4: -> b=4", "g' 4: ->", "f'! 10: a -> d=4", "q' 4: ->", "h'! 10: b ->")
    instance = step(*rows, budget=8, link=Link(10**9, 10**9, duplex=duplex))
    assert best_schedule(instance).makespan == instance.ideal + overhead


def test_a_host_that_holds_one_tensor() -> None:
    # Both of a and b must leave for c, and f and g cannot run again.
    rows = ("f! 10: -> a=4", "g! 10: -> b=4", "h 10: -> c=8", "h' 10: c ->", "g' 10: b ->", "f' 10: a ->")
    assert best_schedule(step(*rows, budget=8)).makespan is not None
    best = best_schedule(step(*rows, budget=8, host_budget=7))
    assert (best.schedule, best.makespan, best.proven) == (None, None, True)


def test_what_is_held_outside_stays() -> None:
    best = best_schedule(step(*ROWS, budget=4, held={"a": (1, 2)}))
    assert (best.schedule, best.proven) == (None, True)


@pytest.mark.parametrize(("held", "overhead"), [({}, 1), ({"a": (0, 2)}, 2)])
def test_a_second_copy_takes_room_while_a_re_run_makes_it(held: dict[str, tuple[int, int]], overhead: int) -> None:
    # b must leave for g. To run f again takes 1 ns, and room for another a: if that cannot be dropped first, b is swapped.
    instance = step("f 1: -> a=1 b=1", "g 1 +1: a ->", "h 1: a b ->", budget=2, held=held)
    assert best_schedule(instance).makespan == instance.ideal + overhead == brute_force.optimum(instance)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="'budget' must be set"):
        best_schedule(step(*ROWS))
    with pytest.raises(InputError, match="'step' is too large, with 9 tensors and 18 operations: at most 8 and 14"):
        best_schedule(step(*(f"f{j} 1: -> x{j}=1" for j in range(9)), *(f"g{j}' 1: x{j} ->" for j in range(9)), budget=9))
