"""PuLP's solvers: right answers on models worked out by hand, kept limits, and nothing believed that is not checked."""

import fcntl
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings

from slackswap_opt import InputError, load, solve
from slackswap_opt.exact import Run
from slackswap_opt.formulations import milp, process
from slackswap_opt.formulations.linear import LinearProgram, Sense
from slackswap_opt.formulations.milp import CBC, HIGHS
from slackswap_opt.formulations.scratch import PREFIX, scratch_folder
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.formulations.solved import Limits, Outcome, Solved
from slackswap_opt.greedy import greedy
from slackswap_opt.instance import Instance
from slackswap_opt.result import Options, Progress, Status
from tests.handmade import step
from tests.tiny_instances import tiny_instances

STOPPED = "Stopped on time (no integer solution - continuous used) - objective value 0.00000000\n"
Fake = Callable[[str], Path]

TIGHT = step(
    *("f 10: -> a=4", "g 10: a -> b=4", "h 30: b -> c=4", "h' 10: c ->", "g' 10: b ->", "f' 10: a ->"),
    budget=8,
)
"""b and c fill the budget of 8 in h and h', so a must leave between g and f'. Its copy out takes 4 of h's 30 ns, the one back 4
of g's 10: nothing is lost by swapping a, 10 ns by running f again."""


SLOW = TIGHT.with_link(replace(TIGHT.link, offload_bandwidth=10**8))
"""TIGHT, with 40 ns for the copy out: h would wait 30 ns for it, so f runs again, 10 ns."""


def knapsack(weights: tuple[int, ...], values: tuple[int, ...], room: int) -> LinearProgram:
    """Leave out as little value as fits: minimise the values of what is not taken."""
    program = LinearProgram()
    left = [program.variable(f"left_{j}", 1, integer=True) for j in range(len(weights))]
    program.row("room", list(zip(left, weights, strict=True)), Sense.AT_LEAST, sum(weights) - room)
    program.minimise(zip(left, values, strict=True))
    return program


SMALL = knapsack((5, 4, 3, 2), (9, 7, 5, 1), 9)
"""Of a room of 9 the best use is 5 + 4, worth 16: 5 and 1 are left out, 6 in all."""


def market_split(rows: int = 4, columns: int = 30) -> LinearProgram:
    """Split columns in halves that are equal in every row, as nearly as possible: what no relaxation says anything about."""
    program, numbers = LinearProgram(), Random(1)
    chosen = [program.variable(f"x_{j}", 1, integer=True) for j in range(columns)]
    off = []
    for i in range(rows):
        weights = [numbers.randrange(100) for _ in range(columns)]
        over, under = (program.variable(f"{name}_{i}", 10_000) for name in ("over", "under"))
        terms = [*zip(chosen, weights, strict=True), (over, -1), (under, 1)]
        program.row(f"half_{i}", terms, Sense.EQUAL, sum(weights) // 2)
        off += [(over, 1), (under, 1)]
    program.minimise(off)
    return program


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own, where solvers put theirs."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Puts a program of one's own in the place of `cbc`: PuLP runs it as COIN_CMD. `solution` is the file it has to write."""

    def write(body: str) -> Path:
        path = tmp_path / "cbc"
        head = f"#!{sys.executable}\nimport os, sys, time\nsolution = sys.argv[sys.argv.index('-solution') + 1]\n"
        path.write_text(head + textwrap.dedent(body))
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return path

    return write


@pytest.mark.parametrize("solver", [CBC, HIGHS])
def test_a_model_worked_out_by_hand(solver: str, scratch: Path, capfd: pytest.CaptureFixture[str]) -> None:
    solved = milp.solve_program(SMALL, solver, Limits(threads=1, seed=3), (1, 1, 1, 1))
    assert solved.outcome is Outcome.OPTIMAL
    assert solved.values == pytest.approx((0, 0, 1, 1))
    assert capfd.readouterr() == ("", "")
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("solver", [CBC, HIGHS])
def test_no_solution_is_told_from_none_found(solver: str) -> None:
    program = knapsack((5, 4), (1, 1), 9)
    program.row("both", [(0, 1), (1, 1)], Sense.AT_LEAST, 3)
    assert milp.solve_program(program, solver, Limits()).outcome is Outcome.INFEASIBLE
    over = Limits(deadline=time.monotonic() - 1)
    assert milp.solve_program(SMALL, solver, over).outcome is Outcome.STOPPED


@pytest.mark.parametrize("solver", [CBC, HIGHS])
def test_what_is_stopped_by_time_is_not_called_optimal(solver: str) -> None:
    solved = milp.solve_program(market_split(), solver, Limits(deadline=time.monotonic() + 2.5, threads=1))
    assert solved.outcome in (Outcome.FEASIBLE, Outcome.STOPPED)
    assert solved.bound is None or solved.bound < 1


def test_units_suit_floating_point() -> None:
    # 12 tensors of some 10 GiB: in bytes CBC calls the choice of 5 of them infeasible, and HiGHS takes 6, a byte too many.
    sizes = [10 * 2**30 + 1000 * j for j in range(12)]
    instance = step(
        *(f"f{j} 1000: -> x{j}={size}" for j, size in enumerate(sizes)),
        "peak 1000:",
        *(f"g{j}' 1000: x{j} ->" for j in reversed(range(12))),
        budget=sum(sizes[:6]) - 1,
    )
    model = milp.model_for(instance)
    assert max(abs(c) for row in model.program.rows if row.name.startswith("memory") for c in row.coefficients) <= 2**20
    assert sum(model.scale.size(size) for size in sizes) <= 2**21
    for solver in (CBC, HIGHS):
        solved = milp.solve_program(model.program, solver, Limits(deadline=time.monotonic() + 30))
        assert solved.values is not None
        kept = sum(decision == "keep" for decision in model.values_to_plan(solved.values).intervals)
        assert kept == 5


@pytest.mark.parametrize("method", ["cbc", "highs"])
def test_a_method_finds_what_was_worked_out_by_hand(method: str) -> None:
    awkward = replace(
        SLOW,
        name="a b+-/",
        tensors=tuple(replace(x, name=name) for x, name in zip(SLOW.tensors, ("x+", "x-", "a b"), strict=True)),
        operations=tuple(replace(o, name=f"{o.name} e1 \\ {'<' * t}") for t, o in enumerate(SLOW.operations)),
    )
    result = solve(awkward, method)
    assert (result.makespan, result.solver) == (90, {"cbc": CBC, "highs": HIGHS}[method])
    assert result.solver_status == "optimal solution found; a makespan of 90 ns in its model, 90 ns by the judge"
    assert result.message == ""


def test_options_reach_the_solver(fake: Fake, tmp_path: Path) -> None:
    fake(f"open({str(tmp_path / 'arguments')!r}, 'w').write(' '.join(sys.argv))\nopen(solution, 'w').write({STOPPED!r})")
    limits = Limits(deadline=time.monotonic() + 100, gap=12.5, threads=3, seed=7)
    assert milp.solve_program(SMALL, "COIN_CMD", limits, (1, 1, 1, 1)).outcome is Outcome.STOPPED
    arguments = (tmp_path / "arguments").read_text()
    for option in ("-threads 3", "-allow 12.5", "-randomCbcSeed 8", "-mips "):
        assert option in arguments
    assert 80 < float(arguments.split("-sec ")[1].split()[0]) < 100


def test_a_false_infeasible_is_called_a_fault(fake: Fake) -> None:
    fake("open(solution, 'w').write('Infeasible - objective value 0.00000000\\n')")
    result = solve(TIGHT, "milp", solver="COIN_CMD")
    assert result.makespan == 80, "the ideal step: nobody is asked"
    result, first = solve(SLOW, "milp", solver="COIN_CMD"), greedy(SLOW)
    assert (result.status, result.plan, result.makespan) == (Status.FEASIBLE, first.plan, first.makespan)
    fault = "COIN_CMD calls a model infeasible that a known plan satisfies, which is a fault of the solver"
    assert result.message == f"{fault}; greedy's plan is returned"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os.kill(os.getpid(), 9)", "Pulp: Error while trying to execute"),
        ("os.kill(os.getppid(), 9)", "killed by signal 9"),
        ("open(solution, 'w').write('nonsense')", "COIN_CMD failed: it ended with 'IndexError"),
        (f"open(solution, 'w').write({STOPPED!r})", "COIN_CMD found no plan in its time"),
        ("open(solution, 'w').write('Optimal - objective value 0.0\\n')", "its solution breaks 'memory_"),
        ("sys.exit(3)", "Pulp: Error while trying to execute"),
    ],
)
def test_a_solver_that_breaks_costs_its_own_plan_only(fake: Fake, scratch: Path, body: str, reason: str) -> None:
    fake(body)
    result = solve(SLOW, "milp", solver="COIN_CMD")
    assert result.plan == greedy(SLOW).plan
    assert reason in result.message
    assert result.message.endswith("; greedy's plan is returned")
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("method", ["cbc", "highs", "cp-sat", "auto"])
def test_without_room_for_temporary_files_greedys_plan_is_returned(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half of its peak: the certified gap is far from closed, so that auto needs its solver too.
    instance = load("chain").with_budget(550_000_000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    result = solve(instance, method, tolerance=0.0)
    assert result.makespan is not None
    assert result.makespan <= (solve(instance).makespan or 0)
    assert "its process and temporary files cannot be made: No such file or directory" in result.message


def test_a_solver_that_does_not_stop_is_killed_with_its_children(fake: Fake, scratch: Path, tmp_path: Path) -> None:
    fake(
        f"""
        child = os.fork()
        open({str(tmp_path)!r} + f"/{{os.getpid()}}.pid", "w").close()
        time.sleep(1000)
        """
    )
    solved = milp.solve_program(SMALL, "COIN_CMD", Limits(deadline=time.monotonic() + 2.5))
    assert solved.outcome is Outcome.STOPPED
    assert "stopped from outside" in solved.words
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    # A killed process is gone when the kernel comes to it, which need not be at once.
    patience = time.monotonic() + 10
    while any(_alive(pid) for pid in pids) and time.monotonic() < patience:
        time.sleep(0.01)
    assert not any(_alive(pid) for pid in pids)
    assert not list(scratch.iterdir())


def _alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("byte", [0, 1])
def test_a_plan_that_does_not_fit_is_not_returned(byte: int) -> None:
    # The solver keeps everything: with the budget at the peak that is right, a byte below it is not.
    instance = SLOW.with_budget(SLOW.peak - byte)

    def keep_all(model: SlackModel, limits: Limits, start: tuple[int, ...] | None) -> Solved:
        return Solved(Outcome.OPTIMAL, (0.0,) * len(model.program.variables), words="optimal")

    answer = Run(instance, Options(), "fake", milp.model_for).answer(keep_all)
    first = greedy(instance)
    assert answer.plan == first.plan
    if byte:
        # What the solver recomputes, nothing, can be completed by a swap; the plan as it stands does not fit.
        assert answer.solver_status is not None
        assert answer.solver_status.startswith("optimal; a makespan of 80 ns in its model")
    else:
        assert answer.solver_status == "not asked: nothing is shorter than the ideal step"


def test_names_that_are_unknown_or_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match=r"unknown solver 'gurobbi'; choose from .*PULP_CBC_CMD.*, of which .*HiGHS.* are installed"
    ):
        solve(SLOW, "milp", solver="gurobbi")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="solver 'GLPK_CMD' is not installed: there is no program 'glpsol'; installed are"):
        solve(SLOW, "milp", solver="GLPK_CMD")
    assert [milp.solver_name(name) for name in (None, "CBC", "highs", "Highs")] == [CBC, CBC, HIGHS, HIGHS]


def test_without_time_greedy_answers() -> None:
    result = solve(SLOW, "highs", time_limit=0)
    assert (result.plan, result.solver_status) == (greedy(SLOW).plan, "not asked: the time was over")


def test_progress_is_told_and_what_it_raises_stops_the_solver(scratch: Path) -> None:
    instance = load("chain").with_budget(load("chain").peak // 2)
    states: list[Progress] = []
    result = solve(instance, "highs", on_progress=states.append)
    assert states
    assert [state.elapsed for state in states] == sorted(state.elapsed for state in states)
    assert all(state.bound is None and (state.makespan or 0) >= instance.ideal for state in states)
    assert any(state.incumbent is not None and state.least is not None for state in states)
    assert result.makespan is not None

    def stop(state: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(instance, "highs", on_progress=stop)
    assert not list(scratch.iterdir())


def test_folders_of_killed_processes_go_and_those_in_use_stay(scratch: Path) -> None:
    left, used = scratch / f"{PREFIX}left", scratch / f"{PREFIX}used"
    for folder in (left, used):
        folder.mkdir()
        (folder / "program.json").write_text("{}")
    lock = os.open(used, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with scratch_folder() as mine, scratch_folder() as other:
        assert mine != other
        assert {path.name for path in scratch.iterdir()} == {mine.name, other.name, used.name}
    os.close(lock)
    with scratch_folder():
        assert not used.exists()
    assert not list(scratch.iterdir())


def test_values_are_checked_against_every_row_and_column() -> None:
    answer = {"outcome": "optimal", "bound": None, "words": "optimal"}
    for values, broken in (
        ((0, 0, 1, 1), None),
        ((0, 0, 1.0000001, 0.9999999), None),
        ((0, 0, 1, 0.5), "left_3"),
        ((0, 0, 2, 1), "left_2"),
        ((0, 0, 0, 1), "room"),
        ((0, 0, 1), "the number of variables"),
    ):
        solved = process._checked(SMALL, {**answer, "values": values})
        assert solved.words == (f"its solution breaks '{broken}'" if broken else "optimal")
        assert solved.outcome is (Outcome.FAILED if broken else Outcome.OPTIMAL)
        assert (solved.values is None) == bool(broken)


@pytest.mark.slow
def test_twelve_solves_at_once(scratch: Path) -> None:
    programs = [knapsack((5, 4, 3, 2), (9, 7, 5, 1), room) for room in range(3, 15)]
    alone = [milp.solve_program(program, HIGHS, Limits()).values for program in programs]
    solvers = [CBC, HIGHS] * 6
    with ThreadPoolExecutor(12) as pool:
        solved = list(pool.map(lambda program, solver: milp.solve_program(program, solver, Limits()), programs, solvers))
    for program, together, values in zip(programs, solved, alone, strict=True):
        assert together.outcome is Outcome.OPTIMAL
        assert values is not None
        assert together.values is not None
        assert program.value([round(v) for v in together.values]) == program.value([round(v) for v in values])
    assert not list(scratch.iterdir())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(tiny_instances(tensors=5, operations=8))
def test_solvers_agree(instance: Instance) -> None:
    model = milp.model_for(instance)
    objectives = []
    for solver in (CBC, HIGHS):
        solved = milp.solve_program(model.program, solver, Limits())
        assert solved.outcome in (Outcome.OPTIMAL, Outcome.INFEASIBLE)
        objectives.append(solved.values and sum(c * solved.values[j] for j, c in model.program.objective.items()))
    assert objectives[0] == pytest.approx(objectives[1], abs=1e-3)


@pytest.mark.parametrize("solver", [CBC, HIGHS])
def test_models_with_next_to_nothing_in_them(solver: str) -> None:
    program = LinearProgram()
    assert milp.solve_program(program, solver, Limits()).values == ()
    free = program.variable("free", 9, lower=3, integer=True)
    least = program.variable("least", 9, lower=2)
    assert milp.solve_program(program, solver, Limits()).values == (3, 2)
    program.row("least", [(least, 2)], Sense.AT_LEAST, 10)
    assert milp.solve_program(program, solver, Limits()).outcome is Outcome.OPTIMAL
    program.minimise([(free, -1), (least, 1)])
    assert milp.solve_program(program, solver, Limits()).values == pytest.approx((9, 5))
