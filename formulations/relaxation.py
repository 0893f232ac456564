"""The linear relaxation of a program, by HiGHS: values and multipliers in floating point, to be rounded or certified later."""

from dataclasses import dataclass
from typing import Any

from slackswap_opt.formulations.linear import LinearProgram, Sense, Terms


@dataclass(frozen=True, slots=True)
class Relaxation:
    """What the simplex method found.

    Attributes
    ----------
    values
        Of each column; empty unless the program was solved.
    multipliers
        Of each row: what one more unit of its right side adds to the objective. If the program is infeasible, multipliers that
        prove it instead: no values of the columns reach the right sides combined by them. Empty if the time ran out.
    feasible
        Whether the solver holds the program to have a solution.
    """

    values: tuple[float, ...]
    multipliers: tuple[float, ...]
    feasible: bool


class RelaxationError(RuntimeError):
    """HiGHS ended with neither a solution nor a proof that there is none; the message is what it reports."""


def relax(program: LinearProgram, *, time_limit: float | None = None) -> Relaxation:
    """Minimise a program with every column continuous, by the dual simplex method.

    Parameters
    ----------
    time_limit
        Seconds, or None for no limit.

    Raises
    ------
    ImportError
        If highspy is not installed.
    RelaxationError
        If HiGHS fails.
    """
    try:
        import highspy
    except ImportError:
        raise ImportError("pip install 'highspy>=1.10'") from None
    if not program.rows:
        return Relaxation(tuple(float(v.lower) for v in program.variables), (), True)
    scales = [_scale(program, zip(row.columns, row.coefficients, strict=True)) for row in program.rows]
    cost = _scale(program, program.objective.items())
    solver = _solver(highspy, time_limit)
    solver.passModel(_scaled(highspy, program, scales, cost))
    if solver.run() == highspy.HighsStatus.kError:
        # HiGHS has one number of threads for a process: where an earlier use of it chose another one, that has to do.
        solver.setOptionValue("threads", 0)
        solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kTimeLimit:
        return Relaxation((), (), True)
    if status == highspy.HighsModelStatus.kInfeasible:
        return Relaxation((), tuple(y / scale for y, scale in zip(_proof(solver), scales, strict=True)), False)
    if status != highspy.HighsModelStatus.kOptimal:
        raise RelaxationError(f"HiGHS ended the linear relaxation with status '{solver.modelStatusToString(status)}'")
    solution = solver.getSolution()
    values = tuple(x * variable.scale for x, variable in zip(solution.col_value, program.variables, strict=True))
    return Relaxation(values, tuple(y * cost / scale for y, scale in zip(solution.row_dual, scales, strict=True)), True)


def _scale(program: LinearProgram, terms: Terms) -> float:
    """Return the power of two nearest to the largest of some terms, where columns have their typical size."""
    largest = max((abs(c) * program.variables[j].scale for j, c in terms), default=1)
    return float(1 << largest.bit_length())


def _solver(highspy: Any, time_limit: float | None) -> Any:
    solver = highspy.Highs.__new__(highspy.Highs)
    # The initialiser of highspy's own subclass prints a banner before any option can silence it.
    super(highspy.Highs, solver).__init__()
    options = {"output_flag": False, "solver": "simplex", "threads": 1, "parallel": "off", "random_seed": 0}
    for name, value in options.items():
        solver.setOptionValue(name, value)
    if time_limit is not None:
        solver.setOptionValue("time_limit", float(time_limit))
    return solver


def _scaled(highspy: Any, program: LinearProgram, scales: list[float], cost: float) -> Any:
    """Return HiGHS's form of the program: columns in their typical size, rows and objective with coefficients near 1."""
    import numpy as np

    columns = [float(variable.scale) for variable in program.variables]
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(columns), len(scales)
    model.col_cost_ = np.array([program.objective.get(j, 0) * scale / cost for j, scale in enumerate(columns)])
    model.col_lower_ = np.array([v.lower / scale for v, scale in zip(program.variables, columns, strict=True)])
    model.col_upper_ = np.array([v.upper / scale for v, scale in zip(program.variables, columns, strict=True)])
    sides = [(row.sense, row.rhs / scale) for row, scale in zip(program.rows, scales, strict=True)]
    model.row_lower_ = np.array([-highspy.kHighsInf if sense is Sense.AT_MOST else rhs for sense, rhs in sides])
    model.row_upper_ = np.array([highspy.kHighsInf if sense is Sense.AT_LEAST else rhs for sense, rhs in sides])
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.cumsum([0, *(len(row.columns) for row in program.rows)])
    matrix.index_ = np.array([j for row in program.rows for j in row.columns])
    rows = zip(program.rows, scales, strict=True)
    matrix.value_ = np.array(
        [c * columns[j] / scale for row, scale in rows for j, c in zip(row.columns, row.coefficients, strict=True)]
    )
    return model


def _proof(solver: Any) -> list[float]:
    """Return multipliers that prove the solver's program infeasible; presolve finds it out without any."""
    solver.setOptionValue("presolve", "off")
    solver.clearSolver()
    solver.run()
    _, exists, ray = solver.getDualRay()
    if not exists:
        raise RelaxationError("HiGHS calls the linear relaxation infeasible and cannot say why")
    return list(ray)
