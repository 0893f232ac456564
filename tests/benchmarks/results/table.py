"""What a table of the page is: columns, a key for each row, and what works a row out."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from slackswap_opt import Result

Row = tuple[str, ...]
NONE = "none"
"""Stands where it is proven that no schedule fits."""
MISSED = "does not fit"
"""Stands where a method gave no schedule."""


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes
    ----------
    columns
        Their titles; the first is that of the keys.
    keys
        One a row: what `row` is called with.
    row
        Works a row out; a function of a module, so that other processes can run it.
    closing
        Says what the rows come to, in Markdown; empty if there is nothing to say.
    """

    columns: Row
    keys: tuple[tuple[Any, ...], ...]
    row: Callable[..., Row]
    closing: Callable[["Table", list[Row]], str] = lambda table, rows: ""

    def rows(self, executor: Executor) -> list[Row]:
        """Return all rows, worked out on an executor."""
        futures = [executor.submit(self.row, *key) for key in self.keys]
        return [future.result() for future in futures]

    def markdown(self, rows: list[Row]) -> str:
        """Return rows as a Markdown table, with what they come to below it."""
        text, closing = markdown(self.columns, rows), self.closing(self, rows)
        return f"{text}\n\n{closing}" if closing else text

    def numbers(self, rows: list[Row], column: str) -> list[float]:
        """Return the numbers of one column, without cells that hold a word."""
        place = self.columns.index(column)
        return [float(row[place]) for row in rows if row[place][:1].isdigit() or row[place][:1] == "-"]


def markdown(columns: Row, rows: list[Row]) -> str:
    """Return a table as Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (columns, ("---",) * len(columns), *rows))


def reached(result: Result) -> str:
    """Return the percentage of ideal throughput that a result retains, to the nearest hundredth."""
    return f"{100 * result.retained:.2f}" if result.retained is not None else MISSED


def at_most(ideal: int, bound: int | None) -> str:
    """Return the percentage of ideal throughput that a bound on the makespan leaves, rounded up to a hundredth."""
    return NONE if bound is None else f"{_up(10_000 * ideal, bound) / 100:.2f}"


def gap(makespan: int | None, bound: int | None) -> str:
    """Return the gap in percentage points of the makespan, rounded up to a hundredth."""
    if bound is None:
        return NONE
    return MISSED if makespan is None else f"{_up(10_000 * (makespan - bound), makespan) / 100:.2f}"


def largest_gap(table: Table, rows: list[Row]) -> str:
    """Say what greedy's largest certified gap is, and where."""
    gaps = [(float(row[table.columns.index("gap")]), row[0]) for row in rows if row[table.columns.index("gap")][:1].isdigit()]
    worst, where = max(gaps, key=lambda pair: pair[0])
    return f"Largest gap: {worst:.2f} points, at {where}."


def recomputation(table: Table, rows: list[Row]) -> str:
    """Say greedy's largest gap, what it gains beyond every schedule that only recomputes, and what it loses without swaps."""
    words = [largest_gap(table, rows)]
    if gains := table.numbers(rows, GAIN):
        words.append(f"Gain beyond every schedule that only recomputes: {min(gains):.2f} to {max(gains):.2f} points.")
    if ALONE in table.columns:
        alone, best = table.columns.index(ALONE), table.columns.index(BEST)
        losses = [
            float(row[best].split(" to ")[1]) - float(row[alone]) for row in rows if row[best] != NONE and row[alone] != MISSED
        ]
        words.append(f"Greedy without swaps is at most {max(losses):.2f} points below the optimum of recomputation alone.")
    return " ".join(words)


ALONE = "recompute-only"
BEST = "best recompute-only"
GAIN = "gain, at least"


def gain(result: Result, bound: int | None) -> str:
    """Return the points by which a result exceeds the throughput that a bound on other schedules leaves, rounded down."""
    if result.retained is None or bound is None:
        return NONE if bound is None else MISSED
    return f"{(10_000 * result.ideal // (result.makespan or 1) - _up(10_000 * result.ideal, bound)) / 100:.2f}"


def _up(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
