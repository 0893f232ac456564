"""Mixed-integer solvers through PuLP: CBC, which comes with it, HiGHS, and whatever else it finds on this machine."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from slackswap_opt.files import InputError, shown
from slackswap_opt.formulations.linear import LinearProgram
from slackswap_opt.formulations.presolve import FOR_PLANS
from slackswap_opt.formulations.process import run, solve_in_process
from slackswap_opt.formulations.rounding import Rounding, Units
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.formulations.solved import Limits, Solved
from slackswap_opt.instance import Instance

CBC, HIGHS = "PULP_CBC_CMD", "HiGHS"
ALIASES = {"cbc": CBC, "highs": HIGHS}

BITS = 20
"""Solvers hold a value for integer that is 1e-6 off: times the sum of all sizes that should be less than a unit."""

_SCRIPT = "pulp_process.py"


def model_for(instance: Instance) -> SlackModel:
    """Return the model for plans, in units that suit floating point: all sizes add up to less than 2^BITS, so do durations.

    The unit of size is a power of two: the sizes of large tensors often are multiples of one, and nothing is lost in rounding.
    """
    size = sum(tensor.size for tensor in instance.tensors)
    units = Units(size=1 << max(0, size.bit_length() - BITS), time=(instance.ideal >> BITS) + 1, precision=12)
    return SlackModel(instance, rounding=Rounding.INNER, units=units, reductions=FOR_PLANS)


def solver_name(name: str | None) -> str:
    """Return PuLP's name of a solver, given that or a short one in any case; by default that of CBC.

    Raises
    ------
    ImportError
        If PuLP, or HiGHS where that is asked for, is not installed.
    InputError
        If PuLP does not know the solver, or it is not installed.
    """
    if find_spec("pulp") is None:
        raise ImportError("pip install 'pulp>=3.3.2,<4'")
    if name is None or name.lower() in ALIASES:
        name = ALIASES[(name or "cbc").lower()]
        if name == HIGHS and find_spec("highspy") is None:
            raise ImportError("pip install 'highspy>=1.10'")
        return name
    answer = run(_SCRIPT, {"solver": name, "check": True}, Limits())
    if answer["outcome"] == "refused":
        raise InputError(_refusal(name, answer))
    return name


def _refusal(name: str, answer: dict[str, Any]) -> str:
    known, available = ", ".join(answer["known"]), ", ".join(answer["available"])
    if answer["missing"]:
        return f"solver {shown(name)} is not installed: {answer['missing']}; installed are {available}"
    return f"unknown solver {shown(name)}; choose from {known}, of which {available} are installed"


def solve_program(program: LinearProgram, solver: str, limits: Limits, start: Sequence[float] | None = None) -> Solved:
    """Minimise a program with one of PuLP's solvers.

    Parameters
    ----------
    program
        What is to be solved. Solvers reckon in floating point: coefficients should be small integers.
    solver
        PuLP's name of it.
    limits
        What it may use. A solver that is late is killed with all that it started.
    start
        Values of all columns to begin from; solvers that take none begin from nothing.
    """
    best = _value(program, start)
    return solve_in_process(_SCRIPT, program, limits, start, solver=solver, relative_gap=limits.gap / max(1.0, best))


def _value(program: LinearProgram, start: Sequence[float] | None) -> float:
    """Return the objective of a start, or of the worst point."""
    return sum(c * (start[j] if start else program.variables[j].upper) for j, c in program.objective.items())
