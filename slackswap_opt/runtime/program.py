"""A schedule made ready to be carried out: what happens at each place of the clock, and which storages are the runtime's own.

The place of an instruction is the number of operations that have run for the first time before it. A tensor is *managed* where
the schedule does more with it than to drop it at the end of its lifetime: the runtime then holds its storage and nothing else
does for longer. All other tensors live and die by themselves, as in plain training, at the end of their lifetime. The program
says so by their drops, which come first at their place; so what the judge says of it is what happens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple

import torch

from slackswap_opt.instance import Instance
from slackswap_opt.runtime.profile import Profile
from slackswap_opt.runtime.signatures import signature
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import simulate
from slackswap_opt.timeline import Timeline


class Order(NamedTuple):
    """An instruction to carry out.

    Attributes
    ----------
    number
        Its position in the program's schedule.
    action, target
        As in the schedule; RUN is a re-run here.
    last
        For a prefetch, whether the copy on the host is not wanted again once it has arrived.
    """

    number: int
    action: Action
    target: int
    last: bool


class Birth(NamedTuple):
    """A tensor among the results of an operation: which storage of them it is, its number and its bytes."""

    output: int
    tensor: int
    size: int


@dataclass(frozen=True, slots=True)
class Duty:
    """What to do around the first run of an operation.

    Attributes
    ----------
    births
        The managed tensors that it makes.
    writes
        The managed tensors that it writes in place.
    taped
        Whether it runs again later.
    random
        Whether it draws random numbers.
    reads
        The tensors that it must find among its arguments; only looked at if it is taped.
    """

    births: tuple[Birth, ...]
    writes: tuple[int, ...]
    taped: bool
    random: bool
    reads: frozenset[int]


class Backward(NamedTuple):
    """A backward pass, or several with nothing in between.

    Attributes
    ----------
    start, end
        Its first operation, and one after its last.
    asked
        Each time that autograd asks for a saved tensor in it, in order: the index of the next operation, and the managed tensor
        that it is on, or -1.
    """

    start: int
    end: int
    asked: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What a step is to do under a schedule.

    Attributes
    ----------
    instance, schedule, timeline
        The step, the schedule as it is carried out, and what the judge says of it.
    functions
        The operator of each operation.
    duties
        What to do around each operation, or None.
    places
        For each place, up to one after the last operation, the instructions to carry out there, in order.
    results
        For each operation all tensors that it makes.
    managed
        The tensors that the runtime holds.
    device
        Where the step runs.
    passes
        Where the clock stands still in backward passes, those passes; otherwise empty.
    """

    instance: Instance
    schedule: Schedule
    timeline: Timeline
    functions: tuple[Any, ...]
    duties: tuple[Duty | None, ...]
    places: tuple[tuple[Order, ...], ...]
    results: tuple[tuple[Birth, ...], ...]
    managed: frozenset[int]
    device: torch.device
    passes: tuple[Backward, ...] = ()
    _next_due: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        following = [len(self.places)]
        for place in reversed(range(len(self.places))):
            following.append(place if self.places[place] else following[-1])
        object.__setattr__(self, "_next_due", tuple(reversed(following)))

    def following(self, place: int) -> int:
        """Return the first place from `place` on where something is due, or one after the last place."""
        return self._next_due[place]

    def name_of(self, index: int) -> str:
        """Return the name of an operation for messages."""
        return f"'{self.instance.operations[index].name}'" if index < len(self) else "the end of the step"

    @property
    def first(self) -> int:
        """The first operation at which there is anything to do."""
        busy = (t for t, duty in enumerate(self.duties) if duty is not None and (duty.births or duty.taped))
        return min(self.following(0), next(busy, len(self)))

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.functions)


def program_of(profile: Profile, schedule: Schedule, instance: Instance | None = None) -> Program:
    """Return the program that carries out `schedule` on the step of `profile`.

    Parameters
    ----------
    profile
        The step.
    schedule
        For its instance.
    instance
        What the schedule is for, if that is the profile's instance with other flags, budget or link.

    Raises
    ------
    ScheduleError
        If the schedule is for another instance or breaks a rule.
    """
    instance = instance or profile.instance
    simulate(instance, schedule)
    again = {t for t, runs in _runs(schedule).items() if runs > 1}
    managed = _managed(instance, schedule, again)
    functions = tuple(_operator(facts.function) for facts in profile.operations)
    results = tuple(_results(profile, instance))
    instructions = tuple(_in_order(instance, schedule, managed))
    ordered = Schedule.of(instance, instructions)
    return Program(
        instance,
        ordered,
        simulate(instance, ordered),
        functions,
        tuple(_duties(profile, instance, functions, results, managed, again)),
        orders_of(instance, ordered, managed),
        results,
        managed,
        torch.device(profile.device),
    )


def _runs(schedule: Schedule) -> dict[int, int]:
    runs: dict[int, int] = {}
    for action, target in schedule.instructions:
        if action is Action.RUN:
            runs[target] = runs.get(target, 0) + 1
    return runs


def _managed(instance: Instance, schedule: Schedule, again: set[int]) -> frozenset[int]:
    """Return the tensors that move, and those that re-runs read or write."""
    moved = {i for action, i in schedule.instructions if action not in (Action.RUN, Action.DROP)}
    operations = (instance.operations[t] for t in again)
    return frozenset(moved.union(*((*operation.reads, *operation.writes) for operation in operations)))


def _in_order(instance: Instance, schedule: Schedule, managed: frozenset[int]) -> Iterator[Instruction]:
    """Yield the instructions, with the drops of all other tensors where they die."""
    deaths: list[list[int]] = [[] for _ in range(len(instance.operations) + 1)]
    for i, accesses in enumerate(instance.accesses):
        if i not in managed:
            deaths[accesses[-1] + 1].append(i)
    place = 0
    for action, target in schedule.instructions:
        if action is not Action.DROP or target in managed:
            yield Instruction(action, target)
        if action is Action.RUN and target == place:
            place += 1
            for i in deaths[place]:
                yield Instruction(Action.DROP, i)


def orders_of(instance: Instance, schedule: Schedule, managed: frozenset[int]) -> tuple[tuple[Order, ...], ...]:
    """Return for each place the instructions to carry out there."""
    orders: list[list[Order]] = [[] for _ in range(len(instance.operations) + 1)]
    fetched_again = iter(schedule.fetched_again())
    place = 0
    for n, (action, target) in enumerate(schedule.instructions):
        last = action is Action.PREFETCH and not next(fetched_again)
        if action is Action.RUN and target == place:
            place += 1
        elif action is Action.RUN or target in managed:
            orders[place].append(Order(n, action, target, last))
    return tuple(map(tuple, orders))


def _duties(
    profile: Profile,
    instance: Instance,
    functions: tuple[Any, ...],
    results: tuple[tuple[Birth, ...], ...],
    managed: frozenset[int],
    again: set[int],
) -> Iterator[Duty | None]:
    for t, (operation, facts) in enumerate(zip(instance.operations, profile.operations, strict=True)):
        known = signature(functions[t])
        births = tuple(birth for birth in results[t] if birth.tensor in managed)
        writes = tuple(i for i in operation.writes if i in managed and instance.writers[i][0] != t)
        if births or writes or t in again or known.changed or known.undeclared:
            yield Duty(births, writes, t in again, facts.random, frozenset(operation.reads))
        else:
            yield None


def _results(profile: Profile, instance: Instance) -> Iterator[tuple[Birth, ...]]:
    for t, operation in enumerate(instance.operations):
        made = (i for i in operation.writes if instance.writers[i][0] == t)
        yield tuple(Birth(profile.tensors[i].output, i, instance.tensors[i].size) for i in made)


def _operator(name: str) -> Any:
    """Return the operator of a name such as ``aten.mm.default``."""
    return reduce(getattr, name.split("."), torch.ops)
