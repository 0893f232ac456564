"""Any loop under a budget: every bit is that of plain training, nothing is left behind, and steps follow their plan."""

import warnings
from collections.abc import Callable
from random import Random

import pytest

from slackswap_opt.instance import Instance
from slackswap_opt.runtime.budget import PlanLeftWarning
from slackswap_opt.schedule import Action, Instruction, Schedule
from tests.runtime.loops import LOOPS, Loop, compare, custom_function, everything, followed, kernel_in_a_function, ordinary
from tests.runtime.plans import random_plan, recompute_all, schedule_of, swap_all


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


def at_once(instance: Instance) -> Schedule:
    """Swap everything, each tensor copied out as soon as its last writer has run."""
    swapped = schedule_of(instance, swap_all(instance)).instructions
    moved = {i for action, i in swapped if action is Action.OFFLOAD}
    instructions: list[Instruction] = []
    for action, target in swapped:
        if action is not Action.OFFLOAD:
            instructions.append(Instruction(action, target))
        if action is Action.RUN:
            written = [i for i in instance.operations[target].writes if i in moved and instance.writers[i][-1] == target]
            instructions += (Instruction(Action.OFFLOAD, i) for i in written)
    return Schedule.of(instance, instructions)


@pytest.mark.parametrize("clock", ["forward", "whole"])
@pytest.mark.parametrize("loop", [ordinary, custom_function, kernel_in_a_function])
def test_copies_that_are_made_at_once(loop: Loop, clock: str) -> None:
    budget = everything(at_once, clock=clock)
    compare(loop, budget)
    assert followed(budget) == [4]
