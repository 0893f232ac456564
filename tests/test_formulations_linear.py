"""Programs as data: terms are summed, feasibility is exact, definitions can be worked out."""

from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt.formulations.linear import LinearProgram, Sense, evaluate

terms = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=8)


def columns(number: int = 4) -> LinearProgram:
    program = LinearProgram()
    for n in range(number):
        program.variable(f"x{n}", 9)
    return program


@given(terms, st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_a_row_sums_its_terms(terms: list[tuple[int, int]], values: list[int]) -> None:
    program = columns()
    program.row("row", terms, Sense.EQUAL, evaluate(terms, values))
    row = program.rows[0]
    assert len(set(row.columns)) == len(row.columns)
    assert 0 not in row.coefficients
    assert evaluate(zip(row.columns, row.coefficients, strict=True), values) == row.rhs
    assert program.broken(values) is None


@given(terms, st.lists(st.integers(0, 9), min_size=4, max_size=4), st.sampled_from(Sense), st.integers(-2, 2))
def test_what_is_broken_is_named(terms: list[tuple[int, int]], values: list[int], sense: Sense, gap: int) -> None:
    program = columns()
    program.row("row", terms, sense, evaluate(terms, values) - gap)
    holds = {Sense.AT_MOST: gap <= 0, Sense.AT_LEAST: gap >= 0, Sense.EQUAL: gap == 0}[sense]
    assert program.broken(values) == (None if holds else "row")


def test_bounds_are_looked_at_too() -> None:
    program = columns()
    assert program.broken([0, 0, 10, 0]) == "x2"
    assert program.broken([0, -1, 0, 0]) == "x1"


def test_definitions_are_in_an_order_in_which_they_can_be_worked_out() -> None:
    program = columns(2)
    total = program.variable("total", 99)
    program.define(total, "sum", [(0, 2), (1, 3)])
    twice = program.variable("twice", 99)
    program.define(twice, "double", [(total, 2)])
    values = [4, 5, 0, 0]
    for column, definition in program.definitions:
        values[column] = evaluate(definition, values)
    assert values == [4, 5, 23, 46]
    assert program.broken(values) is None


def test_the_objective_is_evaluated_exactly() -> None:
    program = columns()
    program.minimise([(0, 10**20), (3, 1)])
    assert program.value([3, 0, 0, 7]) == 3 * 10**20 + 7
