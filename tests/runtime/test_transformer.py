"""A transformer of four layers with every trap, in 32 bits and under autocast, under plans and places at random."""

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from random import Random

import pytest
import torch
from torch import nn
from torch.nn import functional

from slackswap_opt.runtime import Profile, profile
from slackswap_opt.runtime.coarse import coarse
from slackswap_opt.runtime.program import Program, program_of
from slackswap_opt.runtime.recorder import RaceError, Recorded
from slackswap_opt.runtime.transfers import Lane
from tests.runtime.cases import Case, Scope
from tests.runtime.plans import random_plan, schedule_of, swap_all
from tests.runtime.test_meters import Transformer
from tests.runtime.test_transfers import Forgetful
from tests.runtime.training import History, Runs, difference, train

STEPS = 2


def case(autocast: bool) -> Case:
    def step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
        torch.manual_seed(iteration)
        tokens = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(iteration))
        half: AbstractContextManager[object] = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
        with scope():
            with half:
                loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
        return [loss.item()]

    return Case("everything at once", (), Transformer, step)


@cache
def profiled(autocast: bool) -> Profile:
    model, step = case(autocast).make()
    return profile(lambda: step(model, 0, nullcontext), timed=False)


@cache
def plainly(autocast: bool) -> History:
    return train(case(autocast), nullcontext, STEPS)


def random_program(autocast: bool, seed: int) -> Program:
    result, random = profiled(autocast), Random(seed)
    program = program_of(result, schedule_of(result.instance, random_plan(result.instance, random), random))
    standing = coarse(result, program)
    assert standing is not None
    return standing if seed % 2 else program


def check(autocast: bool, seed: int) -> None:
    program = random_program(autocast, seed)
    runs = Runs(program, Recorded(), weigh=True)
    assert difference(plainly(autocast), train(case(autocast), runs.step, STEPS)) == ""
    runs.check()
    assert runs.transfers.prefetched == STEPS * program.timeline.prefetched
    assert sum(execution.reruns for execution in runs.executions) == STEPS * program.timeline.recomputed


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_random_plans(autocast: bool, seed: int) -> None:
    check(autocast, seed)


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_plans(autocast: bool, seed: int) -> None:
    check(autocast, seed)


def test_memory_really_falls() -> None:
    result = profiled(False)
    program = program_of(result, schedule_of(result.instance, swap_all(result.instance)))
    assert program.timeline.peak < result.instance.peak * 4 // 5
    runs = Runs(program, weigh=True)
    train(case(False), runs.step, 1)
    runs.check()


def test_no_wait_is_forgotten_in_a_whole_step() -> None:
    lanes = Recorded()
    train(case(False), Runs(random_program(False, 1), lanes).step, STEPS)
    assert lanes.checks > 50


@pytest.mark.parametrize(
    "forgotten",
    [(Lane.OUT, Lane.COMPUTE), (Lane.COMPUTE, Lane.OUT), (Lane.BACK, Lane.COMPUTE), (Lane.COMPUTE, Lane.BACK)],
    ids=["source still written", "source reused", "earlier users", "use before arrival"],
)
def test_a_wait_that_is_forgotten_is_caught_in_a_whole_step(forgotten: tuple[Lane, Lane]) -> None:
    with pytest.raises(RaceError):
        train(case(False), Runs(random_program(False, 1), Forgetful(forgotten)).step, 1)
