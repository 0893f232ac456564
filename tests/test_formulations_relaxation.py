"""Relaxations: values, multipliers, proofs of infeasibility, and silence."""

import subprocess
import sys
from pathlib import Path

import pytest

from slackswap_opt.formulations.linear import LinearProgram, Sense
from slackswap_opt.formulations.relaxation import relax


def program(*, least: int) -> LinearProgram:
    """Minimise 2 x + 3 y over x + y >= least, x <= 3, with x and y up to 5."""
    program = LinearProgram()
    x, y = program.variable("x", 5, integer=True), program.variable("y", 5, scale=4)
    program.row("sum", [(x, 1), (y, 1)], Sense.AT_LEAST, least)
    program.row("limit", [(x, 1)], Sense.AT_MOST, 3)
    program.minimise([(x, 2), (y, 3)])
    return program


def test_values_and_multipliers_of_a_program_worked_out_by_hand() -> None:
    # x = 3 and y = 1: one more of the sum costs 3, one more of the limit saves 1.
    relaxation = relax(program(least=4))
    assert relaxation.feasible
    assert relaxation.values == pytest.approx((3, 1))
    assert relaxation.multipliers == pytest.approx((3, -1))


def test_integers_are_relaxed() -> None:
    halves = LinearProgram()
    x = halves.variable("x", 1, integer=True)
    halves.row("half", [(x, 2)], Sense.AT_LEAST, 1)
    halves.minimise([(x, 1)])
    assert relax(halves).values == pytest.approx((0.5,))


def test_what_is_infeasible_comes_with_a_proof() -> None:
    # x + y reaches 8 at most.
    relaxation = relax(program(least=9))
    assert not relaxation.feasible
    assert relaxation.values == ()
    at_sum, at_limit = relaxation.multipliers
    assert at_sum > 0 >= at_limit
    assert 9 * at_sum + 3 * at_limit > max(0, at_sum + at_limit) * 5 + at_sum * 5


def test_a_program_without_rows_is_at_its_lower_bounds() -> None:
    empty = LinearProgram()
    empty.variable("x", 5, lower=-2)
    assert relax(empty).values == (-2.0,)
    assert relax(LinearProgram()).values == ()


def test_no_time_gives_no_values() -> None:
    relaxation = relax(program(least=4), time_limit=0.0)
    assert relaxation.values in ((), pytest.approx((3, 1)))


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    relax(program(least=4))
    relax(program(least=9))
    assert capfd.readouterr() == ("", "")


def test_it_works_beside_another_use_of_highs() -> None:
    # HiGHS refuses to run with another number of threads than its first run in the process.
    code = (
        "import highspy; first = highspy.Highs(); first.setOptionValue('threads', 2); first.run();"
        "from tests.test_formulations_relaxation import program, relax; print(relax(program(least=4)).values)"
    )
    root = Path(__file__).parents[1]
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert ended.stdout.endswith("(3.0, 1.0)\n")
