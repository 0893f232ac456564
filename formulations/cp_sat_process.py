"""The process in which OR-Tools CP-SAT runs: `python cp_sat_process.py FOLDER`, started and described by `process`."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ortools.sat.python import cp_model

OUTCOMES = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
    cp_model.UNKNOWN: "stopped",
}


class Watch(cp_model.CpSolverSolutionCallback):
    """Writes down every better solution."""

    def __init__(self, folder: Path, variables: list[Any]) -> None:
        super().__init__()
        self.folder, self.variables = folder, variables

    def on_solution_callback(self) -> None:
        """Write down the solution, its objective and the bound."""
        write(self.folder / "incumbent.json", [self.value(variable) for variable in self.variables])
        with (self.folder / "progress").open("a") as progress:
            progress.write(f"{self.objective_value} {self.best_objective_bound}\n")


def write(path: Path, data: Any) -> None:
    """Write JSON so that whoever reads finds all of it or nothing."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data))
    partial.replace(path)


def die_with_parent() -> None:
    """End this process when the parent is gone: only then does the standard input end."""
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


def model_of(data: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the program for CP-SAT, with the start as a hint for every variable, and the variables in their order."""
    model = cp_model.CpModel()
    variables = [model.new_int_var(lower, upper, f"v{j}") for j, (lower, upper, _) in enumerate(data["variables"])]
    for columns, coefficients, sense, rhs in data["rows"]:
        activity = cp_model.LinearExpr.weighted_sum([variables[j] for j in columns], coefficients)
        if sense == "<=":
            model.add(activity <= rhs)
        elif sense == ">=":
            model.add(activity >= rhs)
        else:
            model.add(activity == rhs)
    objective = data["objective"]
    model.minimize(cp_model.LinearExpr.weighted_sum([variables[j] for j, _ in objective], [c for _, c in objective]))
    if data["start"]:
        for variable, value in zip(variables, data["start"], strict=True):
            model.add_hint(variable, value)
    return model, variables


def solver_for(data: dict[str, Any]) -> Any:
    """Return a solver within the limits."""
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = data["threads"] or data["workers"]
    parameters.random_seed = data["seed"]
    parameters.absolute_gap_limit = data["gap"]
    if data["deadline"] is not None:
        parameters.max_time_in_seconds = max(0.05, 0.95 * (data["deadline"] - time.monotonic()))
    if data["deterministic_limit"] is not None:
        parameters.max_deterministic_time = data["deterministic_limit"]
    return solver


def main(folder: Path) -> None:
    """Read `program.json` and write `answer.json`."""
    threading.Thread(target=die_with_parent, daemon=True).start()
    data = json.loads((folder / "program.json").read_text())
    model, variables = model_of(data)
    solver = solver_for(data)
    status = solver.solve(model, Watch(folder, variables))
    answer: dict[str, Any] = {"outcome": OUTCOMES.get(status, "failed"), "words": solver.status_name(status).lower()}
    # After any other status there are no values: what the solver returns then is arbitrary.
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        answer |= {"values": [solver.value(v) for v in variables], "bound": solver.best_objective_bound}
    if status == cp_model.MODEL_INVALID:
        answer["words"] = f"invalid model: {model.validate()}"
    write(folder / "answer.json", answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
