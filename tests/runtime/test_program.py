"""What is due where: the order at a place, what is managed, and the clock that stands still in backward passes."""

from dataclasses import replace
from functools import cache
from random import Random

import pytest
import torch
from torch import nn

from slackswap_opt.instance import Link
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.runtime import Profile, profile
from slackswap_opt.runtime.coarse import coarse
from slackswap_opt.runtime.program import Program, program_of
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from slackswap_opt.solve import solve
from slackswap_opt.timeline import Timeline
from tests.runtime.plans import random_plan, schedule_of


@cache
def small() -> Profile:
    """A step of a layer with dropout and a loss: exp saves its result, the product both of its factors."""
    torch.manual_seed(0)
    weight, x = nn.Parameter(torch.randn(3, 5)), torch.randn(3, 5)
    return profile(lambda: (x * weight).exp().sin().sum().backward(), timed=False)  # type: ignore[no-untyped-call]


@cache
def layered() -> Profile:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.Tanh(), nn.LayerNorm(6)) for _ in range(3)))
    x = torch.randn(4, 6)
    return profile(lambda: model(x).square().sum().backward(), timed=False)


def names(result: Profile) -> list[str]:
    return [facts.function.split(".")[1] for facts in result.operations]


def number(result: Profile, operation: str) -> int:
    """Return the tensor that the first operation of a name makes."""
    return result.instance.operations[names(result).index(operation)].writes[0]


def planned(result: Profile, decisions: dict[int, Decision]) -> Program:
    """Return the program that treats the idle intervals of some tensors otherwise than by keeping."""
    instance = result.instance
    intervals = tuple(decisions.get(g.tensor, Decision.KEEP) for g in instance.idle_intervals)
    plan = Plan(intervals, (Decision.DISCARD,) * len(instance.tensors))
    return program_of(result, schedule_of(instance, plan))


def test_a_step_that_keeps_all_has_nothing_to_do() -> None:
    program = planned(small(), {})
    assert program.managed == frozenset()
    assert not any(program.places)
    assert not any(duty and (duty.births or duty.taped) for duty in program.duties)
    assert program.first == program.following(0) - 1 == len(program)
    assert program.timeline.resident == simulate(small().instance, program.schedule).resident


def test_a_swapped_tensor_worked_out_by_hand() -> None:
    result = small()
    assert names(result)[:4] == ["mul", "exp", "sin", "sum"]
    exp = number(result, "exp")
    program = planned(result, {exp: Decision.SWAP})
    assert program.managed == {exp}
    # exp is made by operation 1, read by sin, and sought by the backward of sin: it leaves and returns in between.
    done = [(place, order.action, order.target) for place, orders in enumerate(program.places) for order in orders]
    back = next(place for place, action, _ in done if action is Action.PREFETCH)
    assert [action for _, action, _ in done] == [Action.OFFLOAD, Action.EVICT, Action.PREFETCH, Action.DROP]
    assert {target for *_, target in done} == {exp}
    assert done[0][0] == done[1][0] == 3
    assert result.operations[back].path == ""
    assert back in [clock for clock, tensor in result.asked if tensor == exp]
    duty = program.duties[1]
    assert duty is not None
    assert [(birth.output, birth.tensor, birth.size) for birth in duty.births] == [(0, exp, 60)]
    assert not duty.taped


def test_what_runs_again_reads_what_is_managed() -> None:
    result = small()
    exp, product = number(result, "exp"), number(result, "mul")
    program = planned(result, {exp: Decision.RECOMPUTE})
    assert program.managed == {exp, product}
    duty = program.duties[1]
    assert duty is not None
    assert duty.taped
    assert duty.reads == {product}


def test_drops_by_nature_come_first_at_their_place_and_where_a_tensor_dies() -> None:
    result = layered()
    program = program_of(result, schedule_of(result.instance, random_plan(result.instance, Random(1)), Random(1)))
    instance, place, natural = result.instance, 0, True
    for action, target in program.schedule.instructions:
        if action is Action.RUN and target == place:
            place, natural = place + 1, True
        elif action is Action.DROP and target not in program.managed:
            assert natural
            assert place == instance.accesses[target][-1] + 1
        else:
            natural = False


def test_late_drops_of_what_is_not_managed_are_brought_forward() -> None:
    instance = small().instance
    keep = Schedule.of(instance, [Instruction(Action.RUN, t) for t in range(len(instance.operations))])
    program = program_of(small(), keep)
    assert sum(action is Action.DROP for action, _ in program.schedule.instructions) == len(instance.tensors)
    assert program.timeline.peak == instance.peak


def test_a_schedule_of_another_step_is_refused() -> None:
    schedule = schedule_of(layered().instance, Plan.keep_all(layered().instance))
    with pytest.raises(ScheduleError, match="the schedule is for an instance 'step' with fingerprint"):
        program_of(small(), schedule)


def done(program: Program) -> list[tuple[Action, int, int]]:
    """Return what a program does, and at which place."""
    return [(order.action, order.target, place) for place, orders in enumerate(program.places) for order in orders]


def moments(program: Program) -> list[int]:
    """Return the places that a clock sees which stands still in backward."""
    (backward,) = program.passes
    return sorted({clock for clock, _ in backward.asked} | set(range(backward.start + 1)) | {backward.end})


@pytest.mark.parametrize("budget", [None, 0, 10**9])
@pytest.mark.parametrize("seed", range(12))
def test_a_clock_that_stands_still_does_the_same_in_time(seed: int, budget: int | None) -> None:
    result, random = layered(), Random(seed)
    schedule = schedule_of(result.instance, random_plan(result.instance, random), random)
    whole = program_of(result, schedule)
    program = replace(whole, instance=whole.instance.with_budget(budget))
    standing = coarse(result, program)
    assert standing is not None
    seen = moments(standing)
    assert {place for *_, place in done(standing)} <= set(seen)
    for action in Action:
        before = [(target, place) for kind, target, place in done(program) if kind is action]
        after = [(target, place) for kind, target, place in done(standing) if kind is action]
        assert sorted(target for target, _ in after) == sorted(target for target, _ in before)
        # Nothing is late: at the first moment that is seen, or copies back at the last one before.
        for target in {target for target, _ in before}:
            for early, late in zip(*([p for t, p in each if t == target] for each in (before, after)), strict=True):
                following = next(place for place in seen if place >= early)
                preceding = max(place for place in seen if place <= early)
                assert late == following or (action is Action.PREFETCH and late == preceding)
    assert standing.timeline.offloaded == program.timeline.offloaded
    assert budget or all(late >= early for (*_, early), (*_, late) in zip(done(program), done(standing), strict=True))


def test_copies_back_begin_early_where_memory_allows() -> None:
    result = layered()
    # Copies of 96 bytes take as long as three or four operations: they have to begin between the moments that the clock sees.
    operations = tuple(replace(operation, duration=100) for operation in result.instance.operations)
    instance = replace(result.instance, operations=operations, link=Link(3 * 10**8, 3 * 10**8))
    schedule = solve(instance, budget="75%", method="swap-only").schedule
    assert schedule is not None
    program = program_of(result, schedule, instance)
    assert program.timeline.makespan == instance.ideal

    def standing(budget: int) -> Timeline:
        found = coarse(result, replace(program, instance=instance.with_budget(budget)))
        assert found is not None
        return found.timeline

    late, early = standing(0), standing(10**9)
    assert early.makespan == instance.ideal < late.makespan
    assert early.peak > late.peak
    # With no more memory than if all were late, some are early.
    some = standing(late.peak)
    assert some.peak == late.peak
    assert early.makespan < some.makespan < late.makespan


def test_a_pass_is_all_that_backward_does() -> None:
    result = small()
    standing = coarse(result, planned(result, {number(result, "exp"): Decision.SWAP}))
    assert standing is not None
    phases = [operation.phase for operation in result.instance.operations]
    ((start, end, asked),) = standing.passes
    assert (start, end) == (phases.index("backward"), len(phases))
    # Each node asks in its turn: sin and exp for the result of exp, mul for the weight, or the batch, which are not managed.
    exp = number(result, "exp")
    assert [tensor for _, tensor in asked] == [exp, exp, -1]
