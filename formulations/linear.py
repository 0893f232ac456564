"""A linear program in integers, as data: what every solver is given and what a certificate is checked against."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import groupby, pairwise
from typing import NamedTuple

_TERMS_IN_LINE = 8


class Sense(StrEnum):
    """How a row's left side compares with its right side."""

    AT_MOST = "<="
    AT_LEAST = ">="
    EQUAL = "="


class Variable(NamedTuple):
    """A column: its name, the integers it lies between, whether it must be integer itself, and how large it typically is.

    `scale` is a power of two by which solvers that work in floating point may divide it.
    """

    name: str
    lower: int
    upper: int
    integer: bool = False
    scale: int = 1


class Row(NamedTuple):
    """A constraint: sum of coefficients times columns, compared with `rhs`. No column stands twice, no coefficient is 0."""

    name: str
    columns: tuple[int, ...]
    coefficients: tuple[int, ...]
    sense: Sense
    rhs: int


Terms = Iterable[tuple[int, int]]
"""Pairs of a column and its coefficient; a column may stand several times."""


class LinearProgram:
    """Variables, rows and an objective to be minimised; it grows as a formulation is written down.

    Attributes
    ----------
    variables, rows
        In the order in which they were added; a variable is known by its position.
    objective
        Coefficients by column.
    definitions
        Columns that are nothing but the value of some terms, for short, in an order in which they can be worked out.
    """

    def __init__(self) -> None:
        self.variables: list[Variable] = []
        self.rows: list[Row] = []
        self.objective: dict[int, int] = {}
        self.definitions: list[tuple[int, Terms]] = []

    def variable(self, name: str, upper: int, *, lower: int = 0, integer: bool = False, scale: int = 1) -> int:
        """Add a variable and return its column."""
        self.variables.append(Variable(name, lower, upper, integer, scale))
        return len(self.variables) - 1

    def define(self, column: int, name: str, terms: Sequence[tuple[int, int]]) -> None:
        """Add the constraint that a column equals the sum of some terms."""
        self.definitions.append((column, terms))
        self.row(name, [*terms, (column, -1)], Sense.EQUAL, 0)

    def row(self, name: str, terms: Terms, sense: Sense, rhs: int) -> None:
        """Add a constraint; terms of one column are summed."""
        total: dict[int, int] = {}
        for column, coefficient in terms:
            total[column] = total.get(column, 0) + coefficient
        kept = {column: coefficient for column, coefficient in total.items() if coefficient}
        self.rows.append(Row(name, tuple(kept), tuple(kept.values()), sense, rhs))

    def rise(self, name: str, columns: Sequence[int]) -> None:
        """Add the constraints that each of some columns is at least the one before it."""
        for n, (earlier, later) in enumerate(pairwise(columns)):
            self.row(f"{name}_{n}", [(later, 1), (earlier, -1)], Sense.AT_LEAST, 0)

    def minimise(self, terms: Terms) -> None:
        """Set the objective."""
        self.objective = dict(terms)

    def value(self, values: Sequence[int]) -> int:
        """Return the objective at `values`."""
        return evaluate(self.objective.items(), values)

    def broken(self, values: Sequence[int]) -> str | None:
        """Return the name of a variable or row that `values` violates, or None if they are feasible."""
        for variable, value in zip(self.variables, values, strict=True):
            if not variable.lower <= value <= variable.upper:
                return variable.name
        for name, columns, coefficients, sense, rhs in self.rows:
            activity = sum(c * values[j] for j, c in zip(columns, coefficients, strict=True))
            over, under = activity > rhs, activity < rhs
            if (over and sense is not Sense.AT_LEAST) or (under and sense is not Sense.AT_MOST):
                return name
        return None


def evaluate(terms: Terms, values: Sequence[int]) -> int:
    """Return the sum of coefficients times values."""
    return sum(coefficient * values[column] for column, coefficient in terms)


def to_lp(program: LinearProgram, remarks: Sequence[str] = ()) -> str:
    """Return the program in the LP format that solvers read, with remarks above it.

    Names must consist of letters, digits and underscores. Lines are broken, since readers limit their length.
    """
    names = [variable.name for variable in program.variables]
    lines = [f"\\ {remark}" for remark in (*remarks, "minimise the overhead")]
    lines += ["Minimize", f" overhead: {_sum(program.objective.items(), names)}", "Subject To"]
    for name, columns, coefficients, sense, rhs in program.rows:
        terms = _sum(zip(columns, coefficients, strict=True), names)
        lines.append(f" {name}: {terms} {sense} {rhs}")
    lines.append("Bounds")
    lines += [f" {v.lower} <= {v.name} <= {v.upper}" for v in program.variables]
    if general := [v.name for v in program.variables if v.integer]:
        lines += ["General", *(f" {name}" for name in general)]
    return "\n".join([*lines, "End", ""])


def _sum(terms: Terms, names: Sequence[str]) -> str:
    spelled = [f"{'-' if c < 0 else '+'} {abs(c)} {names[j]}" for j, c in terms]
    lines = (" ".join(spelled[n : n + _TERMS_IN_LINE]) for n in range(0, len(spelled), _TERMS_IN_LINE))
    return "\n   ".join(lines) or f"0 {names[0]}"


def to_mps(program: LinearProgram, remarks: Sequence[str] = ()) -> str:
    """Return the program in the free MPS format, which spells it column by column, with remarks above it."""
    entries: list[list[tuple[str, int]]] = [[] for _ in program.variables]
    for column, cost in program.objective.items():
        entries[column].append(("overhead", cost))
    for row in program.rows:
        for column, coefficient in zip(row.columns, row.coefficients, strict=True):
            entries[column].append((row.name, coefficient))
    letters = {Sense.AT_MOST: "L", Sense.AT_LEAST: "G", Sense.EQUAL: "E"}
    lines = [*(f"* {remark}" for remark in (*remarks, "minimise the overhead")), "NAME slackswap FREE", "ROWS", " N overhead"]
    lines += [f" {letters[row.sense]} {row.name}" for row in program.rows]
    lines.append("COLUMNS")
    for integer, columns in groupby(zip(program.variables, entries, strict=True), lambda column: column[0].integer):
        lines += [" MARKER 'MARKER' 'INTORG'"] * integer
        # A column in no row must be named all the same.
        lines += [f" {v.name} {row} {c}" for v, of in columns for row, c in of or [("overhead", 0)]]
        lines += [" MARKER 'MARKER' 'INTEND'"] * integer
    lines += ["RHS", *(f" RHS {row.name} {row.rhs}" for row in program.rows if row.rhs), "BOUNDS"]
    for v in program.variables:
        lines += [f" LO BOUND {v.name} {v.lower}", f" UP BOUND {v.name} {v.upper}"]
    return "\n".join([*lines, "ENDATA", ""])
