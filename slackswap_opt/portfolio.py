"""Method `auto`: greedy, what the linear relaxation suggests, a local search, and an exact solver, until it is good enough.

The relaxation gives a certified bound as well, so that `auto` knows how far it is from the optimum at most, and stops within
the tolerance. Each stage begins from the best plan so far.
"""

import time
from dataclasses import replace

from slackswap_opt.drafts import Found, NoPlanError, SlackSwap
from slackswap_opt.exact import Run, Start, fault, status
from slackswap_opt.formulations.certificate import BITS, proven_bound, proves_infeasible, to_grid
from slackswap_opt.formulations.presolve import Reductions
from slackswap_opt.formulations.relaxation import RelaxationError, relax
from slackswap_opt.formulations.rounding import Rounding
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.formulations.solved import Limits, Solved
from slackswap_opt.greedy import greedy
from slackswap_opt.improve import Effort, improved
from slackswap_opt.instance import Instance
from slackswap_opt.result import Answer, Options, Progress
from slackswap_opt.settle import completed

THRESHOLDS = (0.01, 0.5, 0.99)
"""Values of a recompute column in the relaxation at or above which it is rounded to 1."""
SEARCHING = 0.5
"""The share of the time limit after which the local search gives way to the exact solver."""
PATIENCE = 60.0
"""Seconds for the exact solver where there is no time limit: it can take hours to prove the last hundredth of a percent."""


def auto(instance: Instance, options: Options) -> Answer:
    """Run one stage after the other, until the certified gap is within the tolerance or the time is over."""
    return _Auto(instance, options).answer()


class _Auto:
    """One call of `auto`.

    Attributes
    ----------
    best, rounded
        The best plan so far, and the best of those that recompute what the relaxation does.
    bound
        The certified lower bound on the makespan in nanoseconds.
    """

    def __init__(self, instance: Instance, options: Options) -> None:
        self.instance, self.options = instance, options
        self.began = time.monotonic()
        self.best: Found | None = None
        self.rounded: Found | None = None
        self.bound = instance.ideal
        self.failure = ""
        self.faults: list[str] = []

    def answer(self) -> Answer:
        """Run the stages and say what came of them."""
        first = None
        try:
            first = self.best = greedy(self.instance)
        except NoPlanError as error:
            self.failure = str(error)
        self._tell()
        if self._done():
            return self._answer()
        if self._proves_infeasible():
            return Answer(infeasible=True, message=self.failure)
        for start in sorted((start for start in (first, self.rounded) if start), key=lambda found: found.makespan):
            if not self._done():
                self._keep(improved(self.instance, start, Effort.for_size(self.instance, self._until(SEARCHING))))
        return self._answer() if self._done() else self._solved()

    def _until(self, share: float) -> float | None:
        """Return when so large a share of the time limit is over, on the clock of `time.monotonic`."""
        return None if self.options.time_limit is None else self.began + share * self.options.time_limit

    def _done(self) -> bool:
        """Whether the best plan is within the tolerance, or the time is over."""
        end = self._until(1.0)
        if self.best and self.best.makespan - self.bound <= self.options.tolerance * self.best.makespan:
            return True
        return end is not None and time.monotonic() >= end

    def _keep(self, found: Found | None) -> None:
        """Keep a plan if it is the best so far."""
        if found and (self.best is None or found.makespan < self.best.makespan):
            self.best = found
            self._tell()

    def _tell(self) -> None:
        if self.options.on_progress:
            makespan = self.best.makespan if self.best else None
            self.options.on_progress(Progress(time.monotonic() - self.began, makespan, self.bound))

    def _proves_infeasible(self) -> bool:
        """Solve the relaxation, and return whether it proves that nothing fits; if not, it gives a bound, and plans."""
        model = SlackModel(self.instance, rounding=Rounding.OUTER, reductions=Reductions.for_bound(self.instance))
        end = self._until(1.0)
        try:
            relaxation = relax(model.program, time_limit=None if end is None else max(0.0, end - time.monotonic()))
        except RelaxationError as error:
            self.faults.append(str(error))
            return False
        multipliers = to_grid(model.program, relaxation.multipliers)
        if not relaxation.feasible and self.best is None and proves_infeasible(model, multipliers):
            return True
        if relaxation.feasible:
            self.bound = max(self.bound, proven_bound(model, multipliers, BITS))
        self._tell()
        if relaxation.values:
            self._round({model.reduced.intervals[g].number: relaxation.values[column] for g, column in model.r.items()})
        return False

    def _round(self, recomputed: dict[int, float]) -> None:
        """Place plans that recompute what the relaxation does, by idle interval, from different shares on."""
        search = SlackSwap(self.instance, swap=True, recompute=True)
        for least in THRESHOLDS:
            if not self._done():
                found = completed(search, [c for c, g in enumerate(search.numbers) if recomputed.get(g, 0.0) >= least])
                self.rounded = min((f for f in (self.rounded, found) if f), key=lambda f: f.makespan, default=None)
        self._keep(self.rounded)

    def _solved(self) -> Answer:
        """Run HiGHS on what time is left, from the best plan."""
        from slackswap_opt.formulations.milp import HIGHS, model_for, solve_program

        left = PATIENCE if (end := self._until(1.0)) is None else max(0.0, end - time.monotonic())
        run = Run(self.instance, replace(self.options, time_limit=left), HIGHS, model_for, began=self.began, bound=self.bound)

        def solve(model: SlackModel, limits: Limits, start: Start) -> Solved:
            return solve_program(model.program, HIGHS, limits, start)

        suggestion = run.suggestion(solve, self.best)
        self._keep(suggestion.found)
        self.faults += filter(None, [fault(suggestion, HIGHS)])
        return replace(self._answer(), solver=HIGHS, solver_status=status(suggestion))

    def _answer(self) -> Answer:
        """Return the best plan, without an exact solver's part in it."""
        plan, schedule = (self.best.plan, self.best.placement.schedule) if self.best else (None, None)
        return Answer(plan, schedule, message="; ".join(self.faults) or ("" if self.best else self.failure), bound=self.bound)
