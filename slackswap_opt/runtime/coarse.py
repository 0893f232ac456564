"""The clock that stands still in backward passes: half the price, since no dispatch mode is active there.

It knows where it is by counting how often autograd asked for a saved tensor. What is due between two such moments waits for the
later one, or for the end of the pass: it is still in time, as what is brought back is wanted by the one who asks. What is freed
is freed later, so that more may be held meanwhile.
"""

from dataclasses import replace

from slackswap_opt.runtime.profile import Profile
from slackswap_opt.runtime.program import Backward, Program, orders_of
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate


def coarse(profile: Profile, program: Program) -> Program | None:
    """Return the program for the clock that stands still in backward passes, or None if there is none.

    There is none if a backward pass saves tensors itself, or if it makes or changes something that is managed. The program
    knows no budget: its peak may be higher than that of the given one.
    """
    backward = [operation.phase == "backward" for operation in program.instance.operations]
    seen = {t for t, duty in enumerate(program.duties) if duty is not None and (duty.births or duty.writes or duty.taped)}
    if profile.nested or any(backward[t] for t in seen):
        return None
    passes = _passes(profile, backward, program.managed)
    instance = program.instance.with_budget(None)
    schedule = Schedule.of(instance, _delayed(program, passes))
    try:
        timeline = simulate(instance, schedule)
    except ScheduleError:
        return None
    return replace(
        program,
        instance=instance,
        schedule=schedule,
        timeline=timeline,
        places=orders_of(instance, schedule, program.managed),
        passes=passes,
    )


def _passes(profile: Profile, backward: list[bool], managed: frozenset[int]) -> tuple[Backward, ...]:
    ends = [t for t in range(1, len(backward) + 1) if backward[t - 1] and (t == len(backward) or not backward[t])]
    starts = [t for t in range(len(backward)) if backward[t] and (t == 0 or not backward[t - 1])]
    asked = [(clock, tensor if tensor in managed else -1) for clock, tensor in profile.asked]
    return tuple(
        Backward(start, end, tuple(pair for pair in asked if start <= pair[0] <= end))
        for start, end in zip(starts, ends, strict=True)
    )


def _delayed(program: Program, passes: tuple[Backward, ...]) -> list[Instruction]:
    """Return the instructions, those inside of backward passes at the places that such a clock sees."""
    until = list(range(len(program.places)))
    for start, end, asked in passes:
        seen = iter([clock for clock, _ in asked if clock > start] + [end])
        clock = next(seen)
        for place in range(start + 1, end):
            while clock < place:
                clock = next(seen)
            until[place] = clock
    instructions: list[Instruction] = []
    waiting: list[Instruction] = []
    place = 0
    for instruction in program.schedule.instructions:
        action, target = instruction
        if action is Action.RUN and target == place:
            if until[place] == place:
                instructions += waiting
                waiting.clear()
            place += 1
            instructions.append(instruction)
        elif action is Action.DROP and target not in program.managed:
            instructions.append(instruction)
        else:
            waiting.append(instruction)
    return instructions + waiting
