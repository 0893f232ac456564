"""Mixed-integer solvers through PuLP, each in a process of its own that ends when its time is over.

The process gets a folder: `program.json` in, `answer.json` out; in `incumbent.json`, `progress` and `log` stands what is known
meanwhile. What solvers print stays there too, and goes with the folder.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slackswap_opt.files import InputError, shown
from slackswap_opt.formulations.linear import LinearProgram
from slackswap_opt.formulations.rounding import Units
from slackswap_opt.formulations.scratch import scratch_folder
from slackswap_opt.formulations.solved import Limits, Outcome, Solved
from slackswap_opt.instance import Instance

CBC, HIGHS = "PULP_CBC_CMD", "HiGHS"
ALIASES = {"cbc": CBC, "highs": HIGHS}

BITS = 20
"""Solvers hold a value for integer that is 1e-6 off: times the sum of all sizes that should be less than a unit."""
GRACE = 1.0
"""Seconds after its deadline at which a solver is killed."""
POLL = 0.05
"""Seconds between two looks at a solver."""

_PROCESS = Path(__file__).with_name("pulp_process.py")
_CBC_BOUND = re.compile(r"(\S+) best solution, best possible (\S+)")
_CBC_FOUND = re.compile(r"nteger solution of (\S+) found|olution found of (\S+)")
_CBC_ROOT = re.compile(r"Continuous objective value is (\S+)")


def units_for(instance: Instance) -> Units:
    """Return units for solvers that reckon in floating point: sizes and durations add up to about 2^BITS at most.

    A power of two for sizes: those of large tensors often are multiples of one, and nothing is lost in rounding.
    """
    size = sum(tensor.size for tensor in instance.tensors)
    return Units(size=1 << max(0, size.bit_length() - BITS), time=(instance.ideal >> BITS) + 1, precision=12)


def solver_name(name: str | None) -> str:
    """Return PuLP's name of a solver, given that or a short one in any case; by default that of CBC.

    Raises
    ------
    InputError
        If PuLP does not know it, or it is not installed.
    """
    if name is None:
        return CBC
    if name.lower() in ALIASES:
        return ALIASES[name.lower()]
    with scratch_folder() as folder:
        answer = _run(folder, {"solver": name, "check": True}, Limits())
    if answer["outcome"] == "refused":
        raise _refused(name, answer)
    return name


def _refused(name: str, answer: dict[str, Any]) -> InputError:
    if not answer["missing"]:
        known, available = ", ".join(answer["known"]), ", ".join(answer["available"])
        return InputError(f"unknown solver {shown(name)}; choose from {known}, of which {available} are installed")
    choices = ", ".join(answer["available"])
    return InputError(f"solver {shown(name)} is not installed: {answer['missing']}; installed are {choices}")


def solve_program(program: LinearProgram, solver: str, limits: Limits, start: Sequence[float | None] | None = None) -> Solved:
    """Minimise a program with one of PuLP's solvers.

    Parameters
    ----------
    program
        What is to be solved. Solvers reckon in floating point: coefficients should be small integers.
    solver
        PuLP's name of it.
    limits
        What it may use. The time counts from its start to its end; a solver that is late is killed with all it started.
    start
        A value for each column where one is known, of a solution to begin from. A solver that needs all takes all or none.

    Raises
    ------
    ImportError
        If PuLP is not installed.
    InputError
        If PuLP does not know the solver, or it is not installed.
    """
    if limits.deadline is not None and limits.deadline <= time.monotonic():
        return Solved(Outcome.STOPPED, words="the time was over before it started")
    data = {
        "solver": solver,
        "variables": [(v.lower, v.upper, v.integer) for v in program.variables],
        "rows": [(row.columns, row.coefficients, row.sense, row.rhs) for row in program.rows],
        "objective": list(program.objective.items()),
        "start": start and list(start),
        "deadline": limits.deadline,
        "gap": limits.gap,
        "relative_gap": limits.gap / max(1.0, _value(program, start)),
        "threads": limits.threads,
        "seed": limits.seed,
    }
    with scratch_folder() as folder:
        answer = _run(folder, data, limits)
    if answer["outcome"] == "refused":
        raise _refused(solver, answer)
    return _checked(program, answer)


def _value(program: LinearProgram, start: Sequence[float | None] | None) -> float:
    """Return the objective of a start as far as it is known, or of the worst point."""
    known = start or [None] * len(program.variables)
    values = (program.variables[j].upper if (value := known[j]) is None else value for j in program.objective)
    return float(sum(c * value for c, value in zip(program.objective.values(), values, strict=True)))


def _run(folder: Path, data: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Run the process in `folder` and return its answer, or what is known without one."""
    if find_spec("pulp") is None:
        raise ImportError("pip install 'pulp>=3.3.2,<4' highspy")
    (folder / "program.json").write_text(json.dumps(data))
    search_path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": search_path, "TMPDIR": str(folder), "PYTHONSAFEPATH": "1"}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(_PROCESS), str(folder)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
    try:
        late = _follow(process, folder, limits)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            process.stdin.close()
    return _answer(folder, process.returncode, late)


def _follow(process: "subprocess.Popen[bytes]", folder: Path, limits: Limits) -> bool:
    """Wait for the process to end, tell of its progress, and return True if it is late."""
    progress = _Progress(folder)
    while process.poll() is None:
        if limits.deadline is not None and time.monotonic() > limits.deadline + GRACE:
            return True
        if limits.watch and progress.news():
            limits.watch(progress.objective, progress.bound)
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL)
    return False


def _answer(folder: Path, code: int, late: bool) -> dict[str, Any]:
    if not late and (folder / "answer.json").exists():
        answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    elif late:
        answer = {"outcome": "stopped", "words": "killed when its time was over"}
    else:
        lines = (folder / "output").read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no word")
        answer = {"outcome": "failed", "words": f"killed by signal {-code}" if code < 0 else f"it ended with '{last}'"}
    if answer["outcome"] in ("stopped", "failed") and (folder / "incumbent.json").exists():
        answer |= {"outcome": "feasible", "values": json.loads((folder / "incumbent.json").read_text())}
    if answer.get("bound") is None:
        progress = _Progress(folder)
        progress.news()
        answer["bound"] = progress.bound
    return answer


class _Progress:
    """What a solver has written of its progress so far: our own lines, or the log of CBC."""

    def __init__(self, folder: Path) -> None:
        self.objective: float | None = None
        self.bound: float | None = None
        self.read = {folder / "progress": 0, folder / "log": 0}

    def news(self) -> bool:
        """Read on, and return whether there was something new."""
        before = (self.objective, self.bound)
        for path, position in self.read.items():
            with suppress(FileNotFoundError), path.open(errors="replace") as file:
                file.seek(position)
                whole, _, _ = file.read().rpartition("\n")
                self.read[path] = position + len(whole.encode()) + bool(whole)
                for line in whole.split("\n"):
                    self._line(line)
        return before != (self.objective, self.bound)

    def _line(self, line: str) -> None:
        words = line.split()
        if len(words) == 2:
            self._note(words[0], words[1])
        elif match := _CBC_BOUND.search(line):
            self._note(match[1], match[2])
        elif match := _CBC_FOUND.search(line):
            self._note(match[1] or match[2], None)
        elif match := _CBC_ROOT.search(line):
            self._note(None, match[1])

    def _note(self, objective: str | None, bound: str | None) -> None:
        if (value := _finite(objective)) is not None and (self.objective is None or value < self.objective):
            self.objective = value
        if (value := _finite(bound)) is not None and (self.bound is None or value > self.bound):
            self.bound = value


def _finite(word: str | None) -> float | None:
    """Return a number, or None for what is none or stands for infinity."""
    try:
        value = float(word or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e30 else None


def _checked(program: LinearProgram, answer: dict[str, Any]) -> Solved:
    """Return the answer, unless its values are no solution: then it is a failure."""
    outcome, words, bound = Outcome(answer["outcome"]), answer.get("words", ""), answer.get("bound")
    values = answer.get("values")
    if values is not None and (broken := _broken(program, values)):
        return Solved(Outcome.FAILED, None, bound, f"its solution breaks '{broken}'")
    return Solved(outcome, None if values is None else tuple(values), bound, words)


def _broken(program: LinearProgram, values: Sequence[float]) -> str | None:
    """Return the name of a variable or row that values violate beyond what floating point explains, or None."""
    if len(values) != len(program.variables):
        return "the number of variables"
    for variable, value in zip(program.variables, values, strict=True):
        slack = 1e-5 * max(1.0, abs(value))
        if not variable.lower - slack <= value <= variable.upper + slack:
            return variable.name
        if variable.integer and abs(value - round(value)) > 1e-4:
            return variable.name
    for name, columns, coefficients, sense, rhs in program.rows:
        terms = [c * values[j] for j, c in zip(columns, coefficients, strict=True)]
        slack = 1e-5 * (abs(rhs) + sum(map(abs, terms)) + 1.0)
        over = sum(terms) - rhs
        if (over > slack and sense != ">=") or (over < -slack and sense != "<="):
            return name
    return None
