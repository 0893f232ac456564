"""CP-SAT: exact in integers as long as nothing overflows, never worse than what it starts from, and the same every time."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from slackswap_opt import InputError, load, solve
from slackswap_opt.formulations import cp_sat, milp
from slackswap_opt.formulations.linear import LinearProgram, Sense
from slackswap_opt.formulations.milp import CBC, HIGHS
from slackswap_opt.formulations.solved import Limits, Outcome
from slackswap_opt.greedy import greedy
from slackswap_opt.instance import Instance, Link
from slackswap_opt.result import Status
from tests.test_formulations_milp import SLOW, SMALL, knapsack, market_split
from tests.test_formulations_milp import scratch as scratch
from tests.tiny_instances import tiny_instances


def objective(program: LinearProgram, values: tuple[float, ...] | None) -> int | None:
    return None if values is None else program.value([round(value) for value in values])


def test_a_model_worked_out_by_hand(scratch: Path, capfd: pytest.CaptureFixture[str]) -> None:
    solved = cp_sat.solve_program(SMALL, Limits(), (1, 1, 1, 1))
    assert (solved.outcome, solved.values, solved.bound) == (Outcome.OPTIMAL, (0, 0, 1, 1), 6)
    program = knapsack((5, 4), (1, 1), 9)
    program.row("both", [(0, 1), (1, 1)], Sense.AT_LEAST, 3)
    assert cp_sat.solve_program(program, Limits()).outcome is Outcome.INFEASIBLE
    assert capfd.readouterr() == ("", "")
    assert not list(scratch.iterdir())


def test_a_method_finds_what_was_worked_out_by_hand() -> None:
    result = solve(SLOW, "cp-sat")
    assert (result.makespan, result.solver, result.message) == (90, "CP-SAT", "")
    assert result.solver_status == "optimal; a makespan of 90 ns in its model, 90 ns by the judge"


def test_what_it_finds_is_no_worse_than_what_it_starts_from() -> None:
    program = market_split()
    start = [0] * len(program.variables)
    for n, row in enumerate(program.rows):
        start[31 + 2 * n] = row.rhs
    assert program.broken(start) is None
    solved = cp_sat.solve_program(program, Limits(deadline=time.monotonic() + 3), start)
    assert solved.outcome is Outcome.FEASIBLE
    found = objective(program, solved.values)
    assert found is not None
    assert 0 < found <= program.value(start)


@pytest.mark.parametrize("seconds", [0.0, 1e-3, 0.3])
def test_without_time_greedy_answers(seconds: float) -> None:
    instance = load("chain")
    instance = instance.with_budget(instance.peak // 2)
    result, first = solve(instance, "cp-sat", time_limit=seconds), greedy(instance)
    assert result.makespan is not None
    assert result.makespan <= first.makespan
    assert result.status is Status.FEASIBLE
    over = cp_sat.solve_program(SMALL, Limits(deadline=time.monotonic() - 1))
    assert (over.outcome, over.values) == (Outcome.STOPPED, None)


def test_nothing_is_read_where_nothing_was_found() -> None:
    # Feasible values of this are a single needle: not found in next to no time, and no values are made up.
    program = market_split(rows=8, columns=60)
    for column in range(60, len(program.variables)):
        program.row(f"none_{column}", [(column, 1)], Sense.AT_MOST, 0)
    solved = cp_sat.solve_program(program, Limits(threads=1), deterministic_limit=0.05)
    assert (solved.outcome, solved.values, solved.words) == (Outcome.STOPPED, None, "unknown")


def test_one_thread_and_a_deterministic_limit_give_the_same_every_time() -> None:
    program = market_split()
    solved = [cp_sat.solve_program(program, Limits(threads=1, seed=5), deterministic_limit=0.3) for _ in range(3)]
    assert solved[0].outcome is Outcome.FEASIBLE
    assert solved[1:] == solved[:-1]


def test_at_least_eight_threads_by_default() -> None:
    assert cp_sat.WORKERS >= 8


def large() -> Instance:
    """SLOW with tensors of 80 GiB, operations of seconds, and a link of 20 GB/s."""
    size, second = 80 * 2**30, 10**9
    return replace(
        SLOW,
        tensors=tuple(replace(x, size=size) for x in SLOW.tensors),
        operations=tuple(replace(o, duration=o.duration * second) for o in SLOW.operations),
        link=replace(SLOW.link, offload_bandwidth=2 * 10**9, prefetch_bandwidth=20 * 10**9),
        budget=2 * size,
    )


def test_nothing_overflows_at_eighty_gibibytes_and_seconds() -> None:
    # As in SLOW: a copy out takes 43 s, of which 10 are hidden, and the re-run of f 10.
    instance = large()
    model = cp_sat.model_for(instance)
    assert cp_sat.too_large(model.program) == ""
    result = solve(instance, "cp-sat")
    assert (result.makespan, result.message) == (90 * 10**9, "")


def test_copies_that_take_seconds_beside_operations_of_nanoseconds() -> None:
    # A byte a second: 16 s of copies do not fit a row in nanoseconds.
    instance = SLOW.with_link(Link(1, 1))
    model = cp_sat.model_for(instance)
    assert model.units.time > 1
    assert cp_sat.too_large(model.program) == ""
    assert model.plan_to_values(greedy(instance).plan) is not None


def test_what_is_too_large_is_told() -> None:
    program = LinearProgram()
    x = program.variable("x", 10**6)
    program.row("much", [(x, 3000)], Sense.AT_MOST, 10**9)
    assert cp_sat.too_large(program) == "row 'much' may reach 4000000000"
    program = LinearProgram()
    program.minimise([(program.variable("x", 10**13), 10**6)])
    assert cp_sat.too_large(program) == "the objective may reach 10000000000000000000"
    program.row("row", [(0, 10**6)], Sense.AT_LEAST, 1)
    invalid = cp_sat.solve_program(program, Limits())
    assert invalid.outcome is Outcome.FAILED
    assert "invalid model" in invalid.words


def test_an_instance_that_is_too_large_in_all_units_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cp_sat, "LARGEST_ROW", 4)
    with pytest.raises(InputError, match=r"'step' is too large for cp-sat: row '\w+' may reach \d+; choose another method"):
        solve(SLOW, "cp-sat")


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(tiny_instances(tensors=5, operations=8))
def test_solvers_agree(instance: Instance) -> None:
    model = cp_sat.model_for(instance)
    exact = cp_sat.solve_program(model.program, Limits())
    least = objective(model.program, exact.values)
    for solver in (CBC, HIGHS):
        solved = milp.solve_program(model.program, solver, Limits())
        assert solved.outcome is exact.outcome
        if solved.values is not None and least is not None:
            # Columns that need not be integer may be finer there.
            believed = sum(c * solved.values[j] for j, c in model.program.objective.items())
            assert least - 1 - len(model.delay) <= believed <= least + 1e-3
