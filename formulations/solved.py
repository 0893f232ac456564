"""What an exact solver reports of a program, whichever it is."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """How a solve ended.

    OPTIMAL: the solver holds its solution to be within the tolerance. FEASIBLE: it stopped with a solution. INFEASIBLE: it
    says that there is none. STOPPED: it stopped without one. FAILED: it broke, was killed, or answered nonsense.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Solved:
    """The end of a solve, in the solver's own words and numbers; none of them is proven.

    Attributes
    ----------
    outcome
        How it ended.
    values
        A value for every column, if there is a solution.
    bound
        What the solver holds to be the least possible objective, in the units of the program, or None.
    words
        What the solver said, for people.
    """

    outcome: Outcome
    values: tuple[float, ...] | None = None
    bound: float | None = None
    words: str = ""


Watch = Callable[[float | None, float | None], None]
"""Called with the best objective and the bound so far, in the units of the program, None where there is none."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a solver may use.

    Attributes
    ----------
    deadline
        A time on the clock of `time.monotonic`, in seconds, by which it must have ended, or None.
    gap
        How far from the optimum it may stop, in the units of the objective.
    threads, seed
        Threads, None for its own choice; and the seed of random choices.
    watch
        Told of progress now and then, or None.
    """

    deadline: float | None = None
    gap: float = 0.0
    threads: int | None = None
    seed: int = 0
    watch: Watch | None = None
