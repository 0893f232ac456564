"""The clock that stands still in backward passes: half the price, since no dispatch mode is active there.

It knows where it is by counting how often autograd asked for a saved tensor. What is due between two such moments waits for the
later one, or for the end of the pass: it is still in time, as what is brought back is wanted by the one who asks. What is freed
is freed later, so that more may be held meanwhile. A copy back that begins so late lets compute wait, so it begins at the
earlier moment instead where memory allows.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from slackswap_opt.runtime.profile import Profile
from slackswap_opt.runtime.program import Backward, Program, orders_of
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from slackswap_opt.timeline import Timeline


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
    places = _Places(program, passes)
    try:
        found = places.judged(frozenset())
    except ScheduleError:
        return None
    limit = found.timeline.peak if program.instance.budget is None else program.instance.budget
    found = min((found, *_fetched_early(places, limit)), key=lambda judged: judged.timeline.makespan)
    return replace(
        program,
        instance=places.instance,
        schedule=found.schedule,
        timeline=found.timeline,
        places=orders_of(places.instance, found.schedule, program.managed),
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


class _Judged(NamedTuple):
    """A schedule, what happens under it, and the position of each of its instructions in the program's."""

    schedule: Schedule
    timeline: Timeline
    numbers: list[int]


def _fetched_early(places: "_Places", limit: int) -> Iterator[_Judged]:
    """Yield the schedule with as many copies back at the earlier moment as fit into `limit` bytes, or nothing."""
    early = places.movable
    while early:
        try:
            found = places.judged(early)
        except ScheduleError:
            return
        if found.timeline.peak <= limit:
            yield found
            return
        waiting = places.in_the_way(early, found, limit)
        early = early - waiting if waiting else frozenset()


class _Places:
    """Where the instructions of a program go that are due between two moments of a clock that stands still.

    Attributes
    ----------
    instance
        The step without a budget.
    movable
        The copies back that may begin at the earlier moment, by their position in the program's schedule: those whose tensor
        has left by then.
    """

    def __init__(self, program: Program, passes: tuple[Backward, ...]) -> None:
        self.instance = program.instance.with_budget(None)
        self._program = program
        self._earlier, self._later = list(range(len(program.places))), list(range(len(program.places)))
        for start, end, asked in passes:
            for before, after in pairwise(sorted({start, end, *(clock for clock, _ in asked)})):
                for place in range(before + 1, after):
                    self._earlier[place], self._later[place] = before, after
        self._due = list(self._orders())
        self.movable = frozenset(self._find_movable())

    def _orders(self) -> Iterator[tuple[int, int, Instruction]]:
        """Yield position and place of all that is to be done, and of the operations with what dies by itself."""
        place = 0
        for n, instruction in enumerate(self._program.schedule.instructions):
            yield n, place, instruction
            place += self._is_operation(instruction, place)

    def _is_operation(self, instruction: Instruction, place: int) -> bool:
        return instruction == (Action.RUN, place)

    def _is_natural(self, instruction: Instruction) -> bool:
        return instruction.action is Action.DROP and instruction.target not in self._program.managed

    def _find_movable(self) -> Iterator[int]:
        gone: dict[int, int] = {}
        for n, place, (action, target) in self._due:
            if action in (Action.OFFLOAD, Action.EVICT):
                gone[target] = self._later[place]
            elif action is Action.PREFETCH and gone.get(target, place) <= self._earlier[place] < place:
                yield n

    def judged(self, early: frozenset[int]) -> _Judged:
        """Return the schedule with these copies back at the earlier moment, and what happens under it."""
        natural: list[list[int]] = [[] for _ in self._program.places]
        due: list[list[int]] = [[] for _ in self._program.places]
        operations: list[list[int]] = [[] for _ in self._program.places]
        for n, place, instruction in self._due:
            if self._is_operation(instruction, place):
                operations[place].append(n)
            elif self._is_natural(instruction):
                natural[place].append(n)
            else:
                due[self._earlier[place] if n in early else self._later[place]].append(n)
        numbers = [n for parts in zip(natural, due, operations, strict=True) for part in parts for n in part]
        schedule = Schedule.of(self.instance, [self._program.schedule.instructions[n] for n in numbers])
        return _Judged(schedule, simulate(self.instance, schedule), numbers)

    def in_the_way(self, early: frozenset[int], found: _Judged, limit: int) -> frozenset[int]:
        """Return some of the early copies without which there is no more than `limit` bytes, so far as it is for them."""
        at = {n: k for k, n in enumerate(found.numbers)}
        runs = [at[n] for n, place, instruction in self._due if self._is_operation(instruction, place)]
        ends = (*runs, len(at))
        spans = {
            n: (at[n], ends[self._later[place]], self.instance.tensors[target].size)
            for n, place, (_, target) in self._due
            if n in early
        }
        waiting: set[int] = set()
        for k, size in enumerate(found.timeline.memory):
            over = [n for n, (start, end, _) in spans.items() if start <= k < end] if size > limit else []
            excess = size - limit - sum(spans[n][2] for n in over if n in waiting)
            for n in sorted((n for n in over if n not in waiting), reverse=True):
                if excess <= 0:
                    break
                waiting.add(n)
                excess -= spans[n][2]
        return frozenset(waiting)
