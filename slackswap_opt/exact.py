"""Methods that hand the slack formulation to an exact solver, and place what it finds.

The model counts in coarse units, sizes rounded up and the budget down, so that its numbers suit solvers that reckon in floating
point. It is loose elsewhere: copies may split, for example. So a solver's verdicts and numbers are about the model; those of a
result are the judge's. The solver starts from greedy's plan, which is returned if the solver's is longer, with a word on why.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from slackswap_opt.drafts import Found, NoPlanError
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.formulations.solved import Limits, Outcome, Solved
from slackswap_opt.greedy import greedy
from slackswap_opt.improve import Effort, improved
from slackswap_opt.instance import Instance
from slackswap_opt.result import Answer, Options, Progress
from slackswap_opt.settle import settled
from slackswap_opt.units import format_time

PLACING = 0.1
"""The share of the time limit that is kept for placing what the solver finds."""

Start = tuple[int, ...] | None
Solve = Callable[[SlackModel, Limits, Start], Solved]
"""Solves a model within limits from values of all its columns, or from none."""


def cbc(instance: Instance, options: Options) -> Answer:
    """Solve by CBC, which comes with PuLP."""
    return _through_pulp(instance, options, "cbc")


def highs(instance: Instance, options: Options) -> Answer:
    """Solve by HiGHS through PuLP."""
    return _through_pulp(instance, options, "highs")


def milp(instance: Instance, options: Options) -> Answer:
    """Solve by the solver named in the options, any that PuLP lists; by default CBC."""
    return _through_pulp(instance, options, options.solver)


def cp_sat(instance: Instance, options: Options) -> Answer:
    """Solve by OR-Tools CP-SAT.

    With one thread it also stops at a count of its work that it reaches in about half of the time limit, so that equal calls
    give equal plans unless the machine is slow.
    """
    from slackswap_opt.formulations import cp_sat as solver

    def solve(model: SlackModel, limits: Limits, start: Start) -> Solved:
        count = options.time_limit / 2 if options.threads == 1 and options.time_limit is not None else None
        return solver.solve_program(model.program, limits, start, deterministic_limit=count)

    return Run(instance, options, "CP-SAT", solver.model_for).answer(solve)


def _through_pulp(instance: Instance, options: Options, solver: str | None) -> Answer:
    from slackswap_opt.formulations import milp

    name = milp.solver_name(solver)

    def solve(model: SlackModel, limits: Limits, start: Start) -> Solved:
        return milp.solve_program(model.program, name, limits, start)

    return Run(instance, options, name, milp.model_for).answer(solve)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What a solver made of a model.

    Attributes
    ----------
    solved
        Its report.
    found
        The placement of its plan, if it has one that fits, after a local search.
    believed
        The makespan that its model gives to that plan, in nanoseconds, or None.
    started
        Whether it was given a feasible point to start from.
    fault
        Why its plan as it stands cannot be placed, or empty.
    """

    solved: Solved
    found: Found | None
    believed: int | None
    started: bool
    fault: str


class Run:
    """One call of one solver on one instance.

    Parameters
    ----------
    instance, options
        What is to be planned, and what the caller asks for.
    solver
        The solver's name.
    model_for
        What builds its model.
    began
        When the clock of progress reports began, as `time.monotonic` tells it; by default now. The time limit counts from now.
    bound
        A proven lower bound on the makespan for progress reports, or None.
    """

    def __init__(
        self,
        instance: Instance,
        options: Options,
        solver: str,
        model_for: Callable[[Instance], SlackModel],
        *,
        began: float | None = None,
        bound: int | None = None,
    ) -> None:
        self.instance, self.options, self.solver, self.model_for, self.bound = instance, options, solver, model_for, bound
        self.began = time.monotonic() if began is None else began
        self.deadline = None if options.time_limit is None else time.monotonic() + options.time_limit
        self.known: Found | None = None
        self.unit = 1

    def answer(self, solve: Solve) -> Answer:
        """Plan greedily, solve, and return the better plan with what the solver said."""
        try:
            first = greedy(self.instance)
            failure = ""
        except NoPlanError as error:
            first, failure = None, str(error)
        if self.instance.budget is None or (first and first.makespan == self.instance.ideal):
            return self._unasked(first, "not asked: nothing is shorter than the ideal step", bound=self.instance.ideal)
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return self._unasked(first, "not asked: the time was over", message=failure)
        return self._answered(first, failure, self.suggestion(solve, first))

    def _unasked(self, first: Found | None, status: str, *, message: str = "", bound: int | None = None) -> Answer:
        plan, schedule = (first.plan, first.placement.schedule) if first else (None, None)
        return Answer(plan, schedule, solver=self.solver, solver_status=status, message=message, bound=bound)

    def suggestion(self, solve: Solve, first: Found | None) -> Suggestion:
        """Have a model solved from a plan that is known, and place what comes of it."""
        self.known, model = first, self.model_for(self.instance)
        self.unit = model.units.time
        start = model.plan_to_values(first.plan) if first else None
        solved = solve(model, self._limits(), start)
        if solved.values is None:
            return Suggestion(solved, None, None, start is not None, "")
        overhead = sum(cost * solved.values[column] for column, cost in model.program.objective.items())
        believed = self._makespan(overhead)
        found, fault = settled(self.instance, model.values_to_plan(solved.values))
        if found:
            found = improved(self.instance, found, Effort.for_size(self.instance, self.deadline))
        return Suggestion(solved, found, believed, start is not None, fault)

    def _limits(self) -> Limits:
        options, kept = self.options, PLACING * (self.options.time_limit or 0.0)
        return Limits(
            deadline=None if self.deadline is None else self.deadline - kept,
            gap=options.tolerance * self.instance.ideal / self.unit,
            threads=options.threads,
            seed=options.seed,
            watch=self._watch if options.on_progress else None,
        )

    def _watch(self, objective: float | None, bound: float | None) -> None:
        """Pass on how far the solver is with its model."""
        if self.options.on_progress:
            elapsed = time.monotonic() - self.began
            makespan = self.known.makespan if self.known else None
            self.options.on_progress(Progress(elapsed, makespan, self.bound, self._makespan(objective), self._makespan(bound)))

    def _makespan(self, overhead: float | None) -> int | None:
        return None if overhead is None else self.instance.ideal + round(overhead * self.unit)

    def _answered(self, first: Found | None, failure: str, suggestion: Suggestion) -> Answer:
        """Return the shorter of greedy's plan and the solver's, or why there is none."""
        found, message = suggestion.found, fault(suggestion, self.solver)
        if suggestion.solved.outcome is Outcome.STOPPED:
            message = f"{self.solver} found no plan in its time"
        best = min((candidate for candidate in (found, first) if candidate), key=lambda other: other.makespan, default=None)
        if message and first:
            message += "; greedy's plan is returned"
        elif found and best is not found:
            message = f"greedy's plan is returned: that of {self.solver} takes {format_time(found.makespan)}, which is longer"
        elif best is None:
            message = message or failure
        plan, schedule = (best.plan, best.placement.schedule) if best else (None, None)
        return Answer(plan, schedule, solver=self.solver, solver_status=status(suggestion), message=message)


def fault(suggestion: Suggestion, solver: str) -> str:
    """Return a sentence on what went other than it should, or an empty one."""
    solved = suggestion.solved
    if solved.outcome is Outcome.FAILED:
        return f"{solver} failed: {solved.words}"
    if solved.outcome is Outcome.INFEASIBLE and suggestion.started:
        return f"{solver} calls a model infeasible that a known plan satisfies, which is a fault of the solver"
    if solved.outcome is Outcome.INFEASIBLE:
        return f"{solver} found no plan in its model, where sizes are rounded up: that proves nothing"
    if solved.values is not None and suggestion.found is None:
        return f"the plan of {solver} does not fit: {suggestion.fault}"
    return ""


def status(suggestion: Suggestion) -> str:
    """Return what the solver reported, with what it believed beside what the judge says of its plan."""
    status = suggestion.solved.words or suggestion.solved.outcome.value
    if suggestion.believed is None:
        return status
    judged = format_time(suggestion.found.makespan) if suggestion.found else "that it does not fit"
    return f"{status}; a makespan of {format_time(suggestion.believed)} in its model, {judged} by the judge"
