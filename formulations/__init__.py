"""The integer programs, their solvers and their certificates."""
