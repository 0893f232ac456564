"""The process in which PuLP runs a solver: `python pulp_process.py FOLDER`, started and described by `process`.

It imports nothing of this package, so that it starts quickly; what solvers print goes wherever its parent sends it.
"""

import inspect
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pulp

CBC = ("PULP_CBC_CMD", "COIN_CMD")
OUTCOMES = {
    pulp.LpSolutionOptimal: "optimal",
    pulp.LpSolutionIntegerFeasible: "feasible",
    pulp.LpSolutionInfeasible: "infeasible",
    pulp.LpSolutionNoSolutionFound: "stopped",
}


class Highs(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS with a start, which PuLP does not pass on, and with its progress written down."""

    start: list[float] | None = None
    variables: tuple[Any, ...] = ()
    folder = Path()

    def callSolver(self, lp: Any) -> None:  # noqa: N802
        """Run HiGHS from the start."""
        import numpy as np
        from highspy import cb

        model, best = lp.solverModel, float("inf")
        index = {variable.name: variable.index for variable in lp.variables()}
        # PuLP leaves out what stands in no row, and adds a variable of its own to an empty objective.
        columns = {j: index[variable.name] for j, variable in enumerate(self.variables) if variable.name in index}
        if self.start:
            known = sorted((index, self.start[j]) for j, index in columns.items())
            indices = np.array([index for index, _ in known], dtype=np.int32)
            model.setSolution(len(known), indices, np.array([value for _, value in known], dtype=float))

        def watch(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
            nonlocal best
            if kind == cb.HighsCallbackType.kCallbackMipImprovingSolution and out.mip_primal_bound < best:
                best = out.mip_primal_bound
                values = [
                    float(out.mip_solution[columns[j]]) if j in columns else v.lowBound for j, v in enumerate(self.variables)
                ]
                write(self.folder / "incumbent.json", values)
            with (self.folder / "progress").open("a") as progress:
                progress.write(f"{out.mip_primal_bound} {out.mip_dual_bound}\n")

        model.setCallback(watch, None)
        model.startCallback(cb.HighsCallbackType.kCallbackMipImprovingSolution)
        model.startCallback(cb.HighsCallbackType.kCallbackMipLogging)
        model.run()


def write(path: Path, data: Any) -> None:
    """Write JSON so that whoever reads finds all of it or nothing."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data))
    partial.replace(path)


def die_with_parent() -> None:
    """End this process and what it started when the parent is gone: only then does the standard input end."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def refusal(name: str) -> dict[str, Any] | None:
    """Return what to answer if PuLP does not know a solver, or it is not installed."""
    known = list(dict.fromkeys(pulp.listSolvers()))
    if name in known:
        solver = pulp.getSolver(name, msg=False)
        if solver.available():
            return None
        path = getattr(solver, "path", None)
        missing = f"there is no program '{path}'" if path and not Path(path).is_dir() else "it cannot be used here"
    else:
        missing = ""
    available = pulp.listSolvers(onlyAvailable=True)
    words = f"it is not installed: {missing}"
    return {"outcome": "refused", "known": known, "available": available, "missing": missing, "words": words}


def problem(data: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the program for PuLP, and its variables in their order."""
    lp = pulp.LpProblem("slack", pulp.LpMinimize)
    variables = [
        pulp.LpVariable(f"v{j:07}", lower, upper, pulp.LpInteger if integer else pulp.LpContinuous)
        for j, (lower, upper, integer) in enumerate(data["variables"])
    ]
    lp.setObjective(pulp.LpAffineExpression([(variables[j], c) for j, c in data["objective"]]))
    senses = {"<=": pulp.LpConstraintLE, ">=": pulp.LpConstraintGE, "=": pulp.LpConstraintEQ}
    for n, (columns, coefficients, sense, rhs) in enumerate(data["rows"]):
        terms = pulp.LpAffineExpression([(variables[j], c) for j, c in zip(columns, coefficients, strict=True)])
        lp.addConstraint(pulp.LpConstraint(terms, senses[sense], f"r{n}", rhs))
    return lp, variables


def solver_for(data: dict[str, Any], folder: Path, variables: list[Any]) -> Any:
    """Return PuLP's solver with those of the options that it takes."""
    name, start = data["solver"], data["start"]
    accepted = inspect.signature(type(pulp.getSolver(name, msg=False))).parameters
    options: dict[str, Any] = {"msg": False, "threads": data["threads"]}
    if data["deadline"] is not None:
        # A solver notices the end of its time a little late, and has to write its solution.
        options["timeLimit"] = max(0.1, 0.95 * (data["deadline"] - time.monotonic()))
    options["gapAbs" if "gapAbs" in accepted else "gapRel"] = data["gap"] if "gapAbs" in accepted else data["relative_gap"]
    if name == "HiGHS":
        # With `msg` HiGHS reports its progress; nothing is printed.
        options |= {"msg": True, "log_to_console": False, "random_seed": data["seed"]}
        solver = Highs(**{key: value for key, value in options.items() if value is not None})
        solver.start, solver.variables, solver.folder = start, tuple(variables), folder
        return solver
    if name in CBC:
        # CBC takes a seed of 0 for the time of day.
        options["options"] = [f"randomCbcSeed {data['seed'] + 1}", f"randomSeed {data['seed'] + 1}"]
        options["logPath"] = str(folder / "log")
    if start and "warmStart" in accepted:
        options["warmStart"] = True
        for variable, value in zip(variables, start, strict=True):
            variable.setInitialValue(value, check=False)
    return pulp.getSolver(name, **{key: value for key, value in options.items() if key in accepted and value is not None})


def answer(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Solve the program and return what came of it."""
    if refused := refusal(data["solver"]):
        return refused
    lp, variables = problem(data)
    solver = solver_for(data, folder, variables)
    try:
        lp.solve(solver)
    except pulp.PulpSolverError as error:
        return {"outcome": "failed", "words": " ".join(str(error).split())}
    outcome = "infeasible" if lp.status == pulp.LpStatusInfeasible else OUTCOMES.get(lp.sol_status, "failed")
    found: dict[str, Any] = {"outcome": outcome, "words": pulp.LpSolution[lp.sol_status].lower()}
    if outcome in ("optimal", "feasible"):
        found["values"] = [v.lowBound if v.varValue is None else v.varValue for v in variables]
    if isinstance(solver, Highs):
        found["bound"] = lp.solverModel.getInfo().mip_dual_bound
    return found


def main(folder: Path) -> None:
    """Read `program.json` and write `answer.json`."""
    threading.Thread(target=die_with_parent, daemon=True).start()
    data = json.loads((folder / "program.json").read_text())
    if data.get("check"):
        write(folder / "answer.json", refusal(data["solver"]) or {"outcome": "available"})
    else:
        write(folder / "answer.json", answer(data, folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
