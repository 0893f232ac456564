"""Exported programs: other solvers read from either format what the formulation says."""

import subprocess
import warnings
from pathlib import Path

import highspy
import pulp
import pytest
from hypothesis import given, settings

from slackswap_opt.files import InputError
from slackswap_opt.formulations.certificate import lower_bound
from slackswap_opt.formulations.export import FORMATS, export
from slackswap_opt.formulations.linear import LinearProgram, Sense, to_lp, to_mps
from slackswap_opt.formulations.rounding import Rounding
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.instance import Instance
from slackswap_opt.instances import load
from slackswap_opt.testing import instances
from tests.example import STEP


def optimum(path: Path) -> float | None:
    """What HiGHS finds for the program in a file; None if that is infeasible."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    assert solver.readModel(str(path)) == highspy.HighsStatus.kOk
    solver.run()
    if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return None
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getObjectiveValue())


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="ascii")
    return path


@settings(max_examples=15)
@given(instances())
def test_both_formats_are_the_same_program(tmp_path_factory: pytest.TempPathFactory, instance: Instance) -> None:
    if instance.budget is None or instance.budget >= instance.peak:
        return
    folder = tmp_path_factory.mktemp("programs")
    lp, mps = (optimum(written(folder / f"p.{name}", export(instance, name))) for name in FORMATS)
    assert lp == pytest.approx(mps)


def test_the_relaxation_of_an_export_is_what_a_certificate_proves(tmp_path: Path) -> None:
    instance = load("gpt2-xl", layers=12)
    instance = instance.with_budget(instance.peak // 2)
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    solver.readModel(str(written(tmp_path / "p.mps", export(instance, "mps"))))
    solver.setOptionValue("solve_relaxation", True)
    solver.run()
    bound = lower_bound(instance).bound
    assert bound is not None
    # The certificate's multipliers are rounded, which costs at most a nanosecond here.
    assert bound == pytest.approx(instance.ideal + solver.getObjectiveValue(), abs=2)


# minimise 3 x - 2 y + z, where x + y <= 4, x >= 1 + z / 2 and z = 2 w, for integers x in [0, 9] and y in [-5, 2], z in [-8, 8],
# w in [-3, 3], w >= -3: z = -6 allows x = 0, so that y = 2 gives -4 - 6 = -10.
PROGRAM = LinearProgram()
X, Y = PROGRAM.variable("x", 9, integer=True), PROGRAM.variable("y", 2, lower=-5, integer=True)
Z, W = PROGRAM.variable("z", 8, lower=-8), PROGRAM.variable("w", 3, lower=-3)
PROGRAM.row("sum", [(X, 1), (Y, 1)], Sense.AT_MOST, 4)
PROGRAM.row("least", [(X, 2), (Z, -1)], Sense.AT_LEAST, 2)
PROGRAM.row("twice", [(Z, 1), (W, -2)], Sense.EQUAL, 0)
PROGRAM.row("deep", [(W, 1)], Sense.AT_LEAST, -3)
PROGRAM.minimise([(X, 3), (Y, -2), (Z, 1)])


@pytest.mark.parametrize(("name", "write"), [("p.lp", to_lp), ("p.mps", to_mps)])
def test_bounds_integers_and_senses_survive(name: str, write: object, tmp_path: Path) -> None:
    assert callable(write)
    assert optimum(written(tmp_path / name, write(PROGRAM, ["a remark"]))) == pytest.approx(-10)


def test_cbc_reads_mps(tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        cbc = pulp.PULP_CBC_CMD().path
    path = written(tmp_path / "p.mps", to_mps(PROGRAM))
    command = [cbc, str(path), "solve", "quit"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Objective value:                -10.00000000" in said


def test_an_unused_column_is_named_in_mps(tmp_path: Path) -> None:
    program = LinearProgram()
    program.variable("alone", 7)
    used = program.variable("used", 7)
    program.minimise([(used, -1)])
    assert optimum(written(tmp_path / "p.mps", to_mps(program))) == pytest.approx(-7)


@pytest.mark.parametrize("rounding", list(Rounding))
def test_a_file_reads_like_the_formulation(rounding: Rounding) -> None:
    lp, mps = export(STEP, "lp", rounding=rounding), export(STEP, "mps", rounding=rounding)
    program = SlackModel(STEP, rounding=rounding).program
    # Tensor 0 is written by operation 0, read by 1 and 4; operation 2 is 100 bytes over budget with everything kept.
    for name in ("s_0_1_4", "r_0_1_4", "one_0_1_4", "memory_2"):
        assert name in lp
        assert name in mps
    assert f"budget 200, {rounding} rounding" in lp.splitlines()[0]
    assert all(f"\n {row.name}:" in lp for row in program.rows)
    assert all(len(line) < 256 for line in lp.splitlines())


@pytest.mark.parametrize(
    ("instance", "format_", "reason"),
    [
        (STEP, "xls", "unknown format 'xls'; choose from lp, mps"),
        (STEP.with_budget(None), "lp", "needs a budget"),
        (STEP.with_budget(300), "lp", "nothing to decide"),
    ],
)
def test_what_has_no_program_is_refused(instance: Instance, format_: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        export(instance, format_)
