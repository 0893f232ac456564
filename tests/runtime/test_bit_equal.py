"""Results under a program are those of plain training, bit for bit, and what is held is what the judge says, byte for byte."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from itertools import islice
from random import Random

import pytest

from slackswap_opt.greedy import smallest_budget
from slackswap_opt.instance import Instance
from slackswap_opt.runtime import Profile, profile
from slackswap_opt.runtime.coarse import coarse
from slackswap_opt.runtime.learn import Learner
from slackswap_opt.runtime.program import Program, program_of
from slackswap_opt.schedule import Action, Schedule
from slackswap_opt.solve import solve
from tests.runtime.cases import CASES
from tests.runtime.plans import random_plan, recompute_all, schedule_of, swap_all
from tests.runtime.training import History, Runs, difference, train

STEPS = 4
CHANGING = frozenset(("top_two_experts", "overflowing_scaler", "crumbs", "packed_lstm"))
"""Cases whose step depends on the batch: only in a step like the profiled one can a program be followed."""

CHEAP = frozenset(
    (
        "dropout",
        "late_noise",
        "batch_norm",
        "moving_average",
        "in_place_residual",
        "tied_table",
        "frozen_base",
        "autocast_weights",
        "channels_last",
        "large_head",
        "checkpoint_inside",
        "modules_without_gradient",
    )
)
"""Cases of few operations, for which more programs take little time."""

LONG = frozenset(("crumbs", "packed_lstm"))
"""Cases of many operations, for which a few programs must do except in the slow run."""

SELF_DIFFERENTIATING = frozenset(("gradient_in_forward",))


@cache
def profiled(name: str) -> Profile:
    model, step = CASES[name].make()
    return profile(lambda: step(model, 0, nullcontext), timed=False)


@cache
def plainly(name: str) -> History:
    return train(CASES[name], nullcontext, STEPS)


def halfway(instance: Instance) -> Schedule:
    """Return what greedy makes of a budget halfway between the smallest and that of keeping everything."""
    least = smallest_budget(instance)
    assert least is not None
    schedule = solve(instance, budget=(least + instance.peak) // 2).schedule
    assert schedule is not None
    return schedule


def schedules(instance: Instance, randomly: int, seed: int) -> Iterator[Schedule]:
    yield schedule_of(instance, swap_all(instance))
    yield schedule_of(instance, recompute_all(instance))
    yield halfway(instance)
    random = Random(seed)
    for _ in range(randomly):
        yield schedule_of(instance, random_plan(instance, random), random)


def programs(result: Profile, randomly: int, seed: int = 0) -> Iterator[Program]:
    """Yield programs of every kind, the first four for both clocks, the others for one or the other in turn."""
    for number, schedule in enumerate(schedules(result.instance, randomly, seed)):
        program = program_of(result, schedule)
        if number < 4 or number % 2:
            yield program
        if number < 4 or not number % 2:
            yield coarse(result, program) or program


def check(name: str, program: Program) -> None:
    runs = Runs(program)
    assert difference(plainly(name), train(CASES[name], runs.step, STEPS)) == ""
    if name not in CHANGING:
        runs.check()
        moved = {i for action, i in program.schedule.instructions if action is Action.PREFETCH}
        assert (runs.transfers.prefetched > 0) == any(program.instance.tensors[i].size for i in moved)
        assert runs.transfers.prefetched == STEPS * program.timeline.prefetched
        assert runs.transfers.offloaded == STEPS * program.timeline.offloaded


@pytest.mark.parametrize("name", CASES)
def test_cases_with_backward_inside(name: str) -> None:
    for program in islice(programs(profiled(name), 5 if name in CHEAP else 1), 4 if name in LONG else None):
        check(name, program)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_cases_under_more_plans(name: str) -> None:
    for program in programs(profiled(name), 8, seed=1):
        check(name, program)


@cache
def learned(name: str) -> tuple[Profile, ...]:
    """Return the profile of each kind of step that a case has, where it puts the scope itself."""
    learner, found = Learner(timed=False), list[Profile]()

    @contextmanager
    def scope() -> Iterator[None]:
        lesson = learner.learned(frozenset(result.instance.fingerprint for result in found))
        found.extend([lesson.profile] if lesson is not None else [])
        with learner.step():
            yield

    train(CASES[name], scope, STEPS, inside=False)
    lesson = learner.learned(frozenset(result.instance.fingerprint for result in found))
    return (*found, *([lesson.profile] if lesson is not None else []))


def check_as_it_is(name: str, chosen: tuple[Program, ...]) -> None:
    first, *others = chosen
    runs = Runs(first, lasting=True, others=tuple(others))
    assert difference(plainly(name), train(CASES[name], runs.step, STEPS, inside=False)) == ""
    assert runs.latest is not None
    runs.latest.end()
    followed = [execution.reason == "" and execution.index == len(execution.program) for execution in runs.executions]
    assert sum(followed) >= (len(followed) // 2 if name in CHANGING or name == "broken_batch" else len(followed))


@pytest.mark.parametrize("name", CASES)
def test_cases_as_they_are(name: str) -> None:
    """Backward comes after the scope, and where a case has several scopes, each is a step."""
    every = zip(*(programs(result, 1 if name in LONG else 5) for result in learned(name)), strict=True)
    for chosen in islice(every, 4 if name in LONG else None):
        check_as_it_is(name, chosen)


@pytest.mark.parametrize("name", sorted(CASES.keys() - CHANGING))
def test_bytes(name: str) -> None:
    for program in programs(profiled(name), 1, seed=2):
        runs = Runs(program, weigh=True)
        train(CASES[name], runs.step, 1)
        runs.check()


@pytest.mark.parametrize("name", sorted(CASES.keys() - SELF_DIFFERENTIATING))
def test_most_steps_can_do_with_a_clock_that_stands_still_in_backward(name: str) -> None:
    result = profiled(name)
    assert coarse(result, program_of(result, schedule_of(result.instance, swap_all(result.instance)))) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LONG))
def test_bytes_of_long_steps(name: str) -> None:
    for program in programs(profiled(name), 3, seed=3):
        runs = Runs(program, weigh=True)
        train(CASES[name], runs.step, 1)
        runs.check()


@pytest.mark.parametrize("name", SELF_DIFFERENTIATING)
def test_a_clock_that_stands_still_refuses_what_it_would_miss(name: str) -> None:
    result = profiled(name)
    assert coarse(result, program_of(result, schedule_of(result.instance, swap_all(result.instance)))) is None
