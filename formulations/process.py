"""Solvers in processes of their own, which end when their time is over, whatever the solver thinks of it.

A process gets a folder: `program.json` in, `answer.json` out; in `incumbent.json`, `progress` and `log` stands what is known
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
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from slackswap_opt.formulations.linear import LinearProgram
from slackswap_opt.formulations.scratch import scratch_folder
from slackswap_opt.formulations.solved import Limits, Outcome, Solved

GRACE = 1.0
"""Seconds after its deadline at which a solver is killed."""
POLL = 0.05
"""Seconds between two looks at a solver."""

_CBC_BOUND = re.compile(r"(\S+) best solution, best possible (\S+)")
_CBC_FOUND = re.compile(r"nteger solution of (\S+) found|olution found of (\S+)")
_CBC_ROOT = re.compile(r"Continuous objective value is (\S+)")


def solve_in_process(
    script: str, program: LinearProgram, limits: Limits, start: Sequence[float] | None, **options: Any
) -> Solved:
    """Have a program solved by a script of this folder.

    Parameters
    ----------
    script
        Name of the file.
    program, limits, start
        What is to be solved, what may be used, and values of all columns to begin from, or None.
    options
        What else the script wants to know.
    """
    if not program.rows:
        least = tuple(float(v.lower if program.objective.get(j, 0) >= 0 else v.upper) for j, v in enumerate(program.variables))
        return Solved(Outcome.OPTIMAL, least, words="nothing to decide")
    if limits.deadline is not None and limits.deadline <= time.monotonic():
        return Solved(Outcome.STOPPED, words="the time was over before it started")
    data = {
        "variables": [(v.lower, v.upper, v.integer) for v in program.variables],
        "rows": [(row.columns, row.coefficients, row.sense, row.rhs) for row in program.rows],
        "objective": list(program.objective.items()),
        "start": start and list(start),
        "deadline": limits.deadline,
        "gap": limits.gap,
        "threads": limits.threads,
        "seed": limits.seed,
        **options,
    }
    return _checked(program, run(script, data, limits))


def run(script: str, data: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Run a script of this folder on some data; return its answer, or what is known without one."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder())
            process = _started(folder, script, data)
        except OSError as error:
            words = f"its process and temporary files cannot be made: {error.strerror or error}"
            return {"outcome": "failed", "bound": None, "words": words}
        try:
            late = _follow(process, folder, limits)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin:
                process.stdin.close()
        return _answer(folder, process.returncode, late)


def _started(folder: Path, script: str, data: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start the process in its folder, with what it is to solve."""
    (folder / "program.json").write_text(json.dumps(data))
    search_path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": search_path, "TMPDIR": str(folder), "PYTHONSAFEPATH": "1"}
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), str(folder)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )


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
    if (folder / "answer.json").exists():
        answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    elif late:
        answer = {"outcome": "stopped", "words": "stopped from outside when its time was over"}
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
            with suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(position)
                whole, end, _ = file.read().rpartition(b"\n")
                self.read[path] = position + len(whole) + len(end)
                for line in whole.decode(errors="replace").split("\n"):
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
    """Return what the answer says, unless its values are no solution: then it is a failure."""
    if answer["outcome"] == "refused":
        return Solved(Outcome.FAILED, words=answer["words"])
    values = answer.get("values")
    if values is not None and (broken := _broken(program, values)):
        return Solved(Outcome.FAILED, None, answer["bound"], f"its solution breaks '{broken}'")
    outcome = Outcome(answer["outcome"])
    return Solved(outcome, None if values is None else tuple(values), answer["bound"], answer.get("words", ""))


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
