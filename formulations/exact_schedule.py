"""The best schedule of a tiny step, by CP-SAT on a model of intervals: an oracle for tests of bounds and methods."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from slackswap_opt.files import InputError
from slackswap_opt.formulations.interval_program import IntervalProgram
from slackswap_opt.instance import Instance
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import simulate

MOST_TENSORS, MOST_OPERATIONS = 8, 14


@dataclass(frozen=True, slots=True)
class Best:
    """What the search for the best schedule came to.

    Attributes
    ----------
    schedule, makespan
        The best one found, and its nanoseconds by the judge; None if there is none.
    proven
        Whether the search was complete: no schedule with so many events is better, or none exists.
    """

    schedule: Schedule | None
    makespan: int | None
    proven: bool


def best_schedule(instance: Instance, *, more: int = 5, time_limit: float = 60.0, seed: int = 0) -> Best:
    """Return the best schedule of a tiny instance.

    Parameters
    ----------
    more
        Events beyond the first runs: re-runs, and pauses between copies.
    time_limit
        Seconds for the solver.
    seed
        Of its random choices.

    Raises
    ------
    ImportError
        If OR-Tools is not installed.
    InputError
        If the instance has no budget, or is too large for such a model.
    """
    if instance.budget is None:
        raise InputError("'budget' must be set for a search for the best schedule, got None")
    if len(instance.tensors) > MOST_TENSORS or len(instance.operations) > MOST_OPERATIONS:
        size = f"{len(instance.tensors)} tensors and {len(instance.operations)} operations"
        raise InputError(f"'{instance.name}' is too large, with {size}: at most {MOST_TENSORS} and {MOST_OPERATIONS}")
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise ImportError("pip install 'ortools>=9.15'") from None
    program = IntervalProgram(instance, cp_model.CpModel(), len(instance.operations) + more)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit
    solver.parameters.num_workers = 8
    solver.parameters.random_seed = seed
    status = solver.solve(program.model)
    proven = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Best(None, None, proven)
    schedule = Schedule.of(instance, _instructions(program, solver))
    makespan = simulate(instance, schedule).makespan
    if proven and makespan != round(solver.objective_value):
        raise RuntimeError(f"the model's makespan is {round(solver.objective_value)} ns, the judge's {makespan} ns")
    return Best(schedule, makespan, proven)


def _instructions(program: IntervalProgram, solver: Any) -> list[Instruction]:
    """Return the instructions of a solution, in their order."""
    issued: list[Instruction] = []
    for e in program.events:
        copies = sorted(_copies(program, solver, e))
        fetched = list(accumulate((is_back for _, _, is_back, _ in copies), max))
        issued += [Instruction(Action.OFFLOAD, i) for (_, _, _, i), late in zip(copies, fetched, strict=True) if not late]
        for i in program.tensors:
            if solver.value(program.freed[e][i]):
                issued.append(Instruction(Action.EVICT if solver.value(program.waits[e][i]) else Action.DROP, i))
        for (_, _, is_back, i), late in zip(copies, fetched, strict=True):
            if late:
                issued.append(Instruction(Action.PREFETCH if is_back else Action.OFFLOAD, i))
        for o in program.operations:
            if solver.value(program.first[e][o]) or solver.value(program.again[e][o]):
                issued.append(Instruction(Action.RUN, o))
    return issued


def _copies(program: IntervalProgram, solver: Any, e: int) -> Iterator[tuple[int, int, bool, int]]:
    """Yield start, end, direction and tensor of every copy of a gap; of two that start together one takes no time."""
    link = program.instance.link
    for issued, action, time in (
        (program.offloads[e], Action.OFFLOAD, link.offload_time),
        (program.fetches[e], Action.PREFETCH, link.prefetch_time),
    ):
        for i, flag in issued.items():
            if solver.value(flag):
                start = solver.value(program.starts[action, i, e])
                yield start, start + time(program.sizes[i]), action is Action.PREFETCH, i
