"""The exact optimum of a small program in integers, to hold models against; HiGHS is asked directly."""

import math

from slackswap_opt.formulations.linear import LinearProgram, Sense


def integer_optimum(program: LinearProgram) -> int | None:
    """Return the least objective over values whose integer columns are integers, rounded up, or None if there are none."""
    if not program.rows:
        return 0
    import highspy
    import numpy as np

    solver = highspy.Highs.__new__(highspy.Highs)
    super(highspy.Highs, solver).__init__()
    # No number of threads: HiGHS has one for a process, and refuses another than that of an earlier solve.
    for option, value in {"output_flag": False, "mip_rel_gap": 0.0, "mip_abs_gap": 0.0}.items():
        solver.setOptionValue(option, value)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(program.variables), len(program.rows)
    model.col_cost_ = np.array([float(program.objective.get(j, 0)) for j in range(len(program.variables))])
    model.col_lower_ = np.array([float(variable.lower) for variable in program.variables])
    model.col_upper_ = np.array([float(variable.upper) for variable in program.variables])
    kinds = highspy.HighsVarType
    model.integrality_ = [kinds.kInteger if variable.integer else kinds.kContinuous for variable in program.variables]
    model.row_lower_ = np.array([-math.inf if row.sense is Sense.AT_MOST else float(row.rhs) for row in program.rows])
    model.row_upper_ = np.array([math.inf if row.sense is Sense.AT_LEAST else float(row.rhs) for row in program.rows])
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.cumsum([0, *(len(row.columns) for row in program.rows)])
    matrix.index_ = np.array([j for row in program.rows for j in row.columns])
    matrix.value_ = np.array([float(c) for row in program.rows for c in row.coefficients])
    solver.passModel(model)
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    assert status == highspy.HighsModelStatus.kOptimal, solver.modelStatusToString(status)
    return math.ceil(solver.getInfo().objective_function_value - 1e-5)
