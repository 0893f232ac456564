"""The slack formulation through OR-Tools CP-SAT, which reckons in integers."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from slackswap_opt.files import InputError
from slackswap_opt.formulations.linear import LinearProgram
from slackswap_opt.formulations.presolve import FOR_PLANS
from slackswap_opt.formulations.process import solve_in_process
from slackswap_opt.formulations.rounding import Rounding, Units
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.formulations.solved import Limits, Solved
from slackswap_opt.instance import Instance

WORKERS = 8
"""Threads by default, however few cores: strategies differ by thread, and with fewer it finds next to nothing here."""
LARGEST_ROW, LARGEST_OBJECTIVE = 1 << 31, 1 << 62
"""CP-SAT checks for overflow of 64 bits; sums of terms of one row are kept within 32, where a release has wrapped around."""
GRAINS = ((20, 18, 8), (20, 16, 8), (18, 16, 8), (18, 14, 8), (16, 14, 8), (14, 12, 6), (12, 10, 4), (10, 8, 2))
"""Bits of all sizes together, of all durations, and of the lanes' rates, finest first. Sizes come first: without room for what
is rounded up, no plan that fills the budget fits the model."""


def model_for(instance: Instance) -> SlackModel:
    """Return the model for plans in the finest of some units in which no sum is too large.

    Raises
    ------
    InputError
        If it is too large in all of them.
    """
    for units in _units(instance):
        model = SlackModel(instance, rounding=Rounding.INNER, units=units, reductions=FOR_PLANS)
        if not too_large(model.program):
            return model
    raise InputError(f"'{instance.name}' is too large for cp-sat: {too_large(model.program)}; choose another method")


def _units(instance: Instance) -> Iterator[Units]:
    """Yield units for the time that operations take, finest first, then for that of copies: on a slow link they take longer."""
    size = sum(tensor.size for tensor in instance.tensors)
    link, copies = instance.link, instance.ideal
    for tensor in instance.tensors:
        copies += link.offload_time(tensor.size) + link.prefetch_time(tensor.size)
    for time in (instance.ideal, copies):
        for size_bits, time_bits, precision in GRAINS:
            yield Units(1 << max(0, size.bit_length() - size_bits), (time >> time_bits) + 1, precision)


def too_large(program: LinearProgram) -> str:
    """Return which row or objective may take values that are not safe, or an empty text."""
    reach = [max(abs(v.lower), abs(v.upper)) for v in program.variables]
    for row in program.rows:
        terms = zip(row.columns, row.coefficients, strict=True)
        if (most := abs(row.rhs) + sum(abs(c) * reach[j] for j, c in terms)) >= LARGEST_ROW:
            return f"row '{row.name}' may reach {most}"
    if (most := sum(abs(c) * reach[j] for j, c in program.objective.items())) >= LARGEST_OBJECTIVE:
        return f"the objective may reach {most}"
    return ""


def solve_program(
    program: LinearProgram, limits: Limits, start: Sequence[int] | None = None, *, deterministic_limit: float | None = None
) -> Solved:
    """Minimise a program with all columns integer.

    Parameters
    ----------
    program
        What is to be solved; see `too_large`.
    limits
        What it may use. A solver that is late is killed.
    start
        A feasible value of every column, the solution to begin from. What is found is never worse.
    deterministic_limit
        A limit in CP-SAT's own count of its work, about a second each. With one thread and this limit alone equal calls give
        equal solutions.

    Raises
    ------
    ImportError
        If OR-Tools is not installed.
    """
    if find_spec("ortools") is None:
        raise ImportError("pip install 'ortools>=9.15'")
    return solve_in_process(
        "cp_sat_process.py", program, limits, start, workers=WORKERS, deterministic_limit=deterministic_limit
    )
