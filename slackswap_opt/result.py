"""What a method found for an instance, as judged."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Self, TypedDict

from slackswap_opt.instance import Instance
from slackswap_opt.plan import Plan
from slackswap_opt.schedule import Schedule
from slackswap_opt.timeline import Timeline

if TYPE_CHECKING:
    from slackswap_opt.formulations.certificate import Certificate


TOLERANCE = 1e-4
"""The certified gap, as a share of the makespan, within which a result counts as optimal unless a caller says otherwise."""


class Status(StrEnum):
    """What is known of a result.

    OPTIMAL: the certified gap is within the tolerance. FEASIBLE: a schedule was found. INFEASIBLE: it is proven that none
    exists. UNKNOWN: none was found, and none is proven impossible.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one method on one instance; every number of a schedule is the simulator's.

    Attributes
    ----------
    status, method
        What is known, and the name of the method.
    instance
        What was solved, with the budget that applied.
    plan, schedule, timeline
        The decisions (None where a method gives a schedule only), the instructions, and what the simulator says of them; all
        None where nothing was found.
    bound
        A proven lower bound on the makespan in nanoseconds, or None. Some methods come with one that was not asked for.
    certificate
        What proves the bound to whoever has no solver, if a bound was asked for; otherwise None.
    runtime
        Nanoseconds that the method took, without those of the bound.
    solver, solver_status
        The exact solver and what it reported, or None.
    message
        One sentence on why there is no schedule, or that a solver erred; empty otherwise.
    smallest_budget
        Where the budget is too small, the smallest in bytes for which a schedule was found; otherwise None.
    """

    status: Status
    method: str
    instance: Instance
    plan: Plan | None = None
    schedule: Schedule | None = None
    timeline: Timeline | None = None
    bound: int | None = None
    certificate: "Certificate | None" = None
    runtime: int = 0
    solver: str | None = None
    solver_status: str | None = None
    message: str = ""
    smallest_budget: int | None = None

    @property
    def makespan(self) -> int | None:
        """Nanoseconds of the step under the schedule."""
        return self.timeline.makespan if self.timeline else None

    @property
    def ideal(self) -> int:
        """Nanoseconds of the step with unlimited memory."""
        return self.instance.ideal

    @property
    def retained(self) -> float | None:
        """The share of ideal throughput that the schedule keeps: ideal / makespan."""
        return self.timeline.retained if self.timeline else None

    @property
    def peak(self) -> int | None:
        """The most bytes held on the device at any moment."""
        return self.timeline.peak if self.timeline else None

    @property
    def gap(self) -> float | None:
        """The certified gap to the optimum: (makespan - bound) / makespan."""
        if self.timeline is None or self.bound is None:
            return None
        return (self.timeline.makespan - self.bound) / self.timeline.makespan if self.timeline.makespan else 0.0

    def certified(self, certificate: "Certificate") -> Self:
        """Return this result with what a certificate of its instance proves: a bound, or that nothing fits.

        Where a schedule contradicts that, the result stays as it is and its message says so.
        """
        if certificate.bound is None and self.schedule is None:
            return replace(self, status=Status.INFEASIBLE, certificate=certificate)
        if certificate.bound is None or (self.makespan is not None and certificate.bound > self.makespan):
            stated = "that nothing fits" if certificate.bound is None else f"a bound of {certificate.bound} ns"
            message = f"the certificate states {stated}, which this schedule contradicts; please report it"
            return replace(self, message=message)
        return replace(self, bound=max(certificate.bound, self.bound or 0), certificate=certificate)

    def optimal_within(self, tolerance: float) -> Self:
        """Return this result, called optimal if its certified gap is within `tolerance`, a share of the makespan."""
        return replace(self, status=Status.OPTIMAL) if self.gap is not None and self.gap <= tolerance else self


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method returns, before it is judged: a plan or a schedule, and a solver's report.

    Attributes
    ----------
    plan, schedule
        The decisions, and their placement; without a schedule the plan is placed by whoever judges it. Both None if none was
        found.
    infeasible
        Whether it is proven that no schedule exists.
    solver, solver_status
        The exact solver and what it reported, or None.
    message
        One sentence on why there is no plan, or that a solver erred; empty otherwise.
    bound
        A proven lower bound on the makespan in nanoseconds that came with the answer, or None.
    """

    plan: Plan | None = None
    schedule: Schedule | None = None
    infeasible: bool = False
    solver: str | None = None
    solver_status: str | None = None
    message: str = ""
    bound: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a method is, for a caller that watches it.

    Attributes
    ----------
    elapsed
        Seconds since it began.
    makespan, bound
        The best makespan so far and the proven lower bound, in nanoseconds; None where there is none yet.
    incumbent, least
        What an exact solver at work has found so far and holds to be the least possible, as makespans in nanoseconds, or None.
        Both are of its model: a schedule may miss the one and beat the other.
    """

    elapsed: float
    makespan: int | None
    bound: int | None
    incumbent: int | None = None
    least: int | None = None


class SolveOptions(TypedDict, total=False):
    """The options of `solve`, for functions that hand them on."""

    solver: str | None
    bound: bool
    tolerance: float
    time_limit: float | None
    threads: int | None
    seed: int
    on_progress: Callable[[Progress], None] | None


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may ask of any method; `solve` describes each."""

    solver: str | None = None
    tolerance: float = TOLERANCE
    time_limit: float | None = None
    threads: int | None = None
    seed: int = 0
    on_progress: Callable[[Progress], None] | None = None
