"""Any loop under a budget: every bit is that of plain training, nothing is left behind, and steps follow their plan."""

import warnings
from collections.abc import Callable
from random import Random

import pytest

from slackswap_opt.instance import Instance
from slackswap_opt.runtime.budget import PlanLeftWarning
from slackswap_opt.schedule import Schedule
from tests.runtime.loops import LOOPS, Loop, compare, everything, followed
from tests.runtime.plans import random_plan, recompute_all, schedule_of


def all_again(instance: Instance) -> Schedule:
    return schedule_of(instance, recompute_all(instance))


def at_random(instance: Instance) -> Schedule:
    return schedule_of(instance, random_plan(instance, Random(8)), Random(9))


@pytest.mark.parametrize(
    ("plan", "clock"),
    [
        (all_again, "forward"),
        (at_random, "whole"),
        pytest.param(all_again, "whole", marks=pytest.mark.slow),
        pytest.param(at_random, "forward", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("loop", LOOPS)
def test_loops(loop: Loop, clock: str, plan: Callable[[Instance], Schedule]) -> None:
    budget = everything(plan, clock=clock)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanLeftWarning)
        compare(loop, budget)
    assert sum(followed(budget)) >= LOOPS[loop]
