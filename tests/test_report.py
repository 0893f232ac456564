"""Tables, plain data and the picture say what the judge says."""

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from rich.table import Table

from slackswap_opt.files import InputError
from slackswap_opt.plan import Decision
from slackswap_opt.report.plots import plot, plot_lanes, plot_memory, plot_timeline
from slackswap_opt.report.records import result_record
from slackswap_opt.report.tables import (
    bounds_in_words,
    check_table,
    compare_table,
    exact_size,
    memory_table,
    rendered,
    result_table,
)
from slackswap_opt.result import Result, Status
from slackswap_opt.runtime import MemoryRow
from slackswap_opt.schedule import Schedule
from slackswap_opt.simulate import simulate
from slackswap_opt.testing import instances, schedules
from slackswap_opt.units import parse_size
from tests.example import RECOMPUTE, STEP, SWAP, result

SWAPPED, RECOMPUTED = result(SWAP, Decision.SWAP), result(RECOMPUTE, Decision.RECOMPUTE)
NOTHING = Result(Status.INFEASIBLE, "keep-all", STEP, message="operation 'h' needs 300 bytes.", smallest_budget=300)


def text(table: Table) -> str:
    """The printed table with one space between words."""
    return "\n".join(" ".join(line.split()) for line in rendered([table]).splitlines())


def bars(drawn: Result | Axes, name: str) -> list[tuple[float, float]]:
    """The extents in nanoseconds of the bars of one colour."""
    ax = plot_lanes(drawn) if isinstance(drawn, Result) else drawn
    (collection,) = [c for c in ax.collections if str(c.get_label()).startswith(name)]
    assert isinstance(collection, PolyCollection)
    times = [np.asarray(path.vertices, dtype=float)[:, 0] * 1e6 for path in collection.get_paths()]
    return [(round(time.min()), round(time.max())) for time in times]


def points(line: Line2D) -> tuple[list[float], list[float]]:
    """The coordinates of a line in nanoseconds and bytes."""
    time, memory = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
    return [round(t * 1e6) for t in time], [round(m * 1e9) for m in memory]


@settings(max_examples=25)
@given(st.data())
def test_the_picture_adds_up_to_the_timeline(data: st.DataObject) -> None:
    instance = data.draw(instances())
    schedule = data.draw(schedules(instance))
    timeline = simulate(instance, schedule)
    of = Result(Status.FEASIBLE, "walk", instance, None, schedule, timeline)
    # Bars only merge what is less than a nanosecond apart here, so each total is exact.
    lanes = plot_lanes(of)
    forward, backward, again, stall = (
        sum(end - start for start, end in bars(lanes, name)) for name in ("forward", "backward", "recomputation", "stall")
    )
    assert forward + backward == timeline.ideal
    assert again == timeline.recompute_time
    assert stall == timeline.offload_stall + timeline.prefetch_stall
    kept, held = map(points, plot_memory(of).get_lines()[:2])
    assert (max(kept[1]), max(held[1])) == (instance.peak, timeline.peak)


@pytest.mark.parametrize("of", [SWAPPED, RECOMPUTED, NOTHING])
def test_a_record_has_the_fields_of_a_result_and_is_json(of: Result) -> None:
    record = result_record(of)
    derived = {name for name, member in vars(Result).items() if isinstance(member, property)}
    assert set(record) == {field.name for field in fields(Result)} | derived
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def test_a_record_holds_a_schedule_file() -> None:
    record = result_record(SWAPPED)
    assert Schedule.from_json(json.dumps(record["schedule"])) == SWAP
    link = {"offload_bandwidth": 10**9, "prefetch_bandwidth": 10**9, "latency": 0, "duplex": True}
    assert record["instance"] == {"name": "step", "fingerprint": STEP.fingerprint, "budget": 200, "link": link}
    assert record["plan"] == {"intervals": ["swap"], "tails": ["discard"] * 3}
    assert record["timeline"]["prefetch_stall"] == 100
    assert (record["makespan"], record["ideal"], record["peak"], record["gap"]) == (1200, 1100, 200, None)


def test_a_table_shows_cost_and_memory() -> None:
    shown = text(result_table(replace(SWAPPED, bound=1140, solver="highs", solver_status="time limit")))
    for line in (
        "retained 91.67% of ideal throughput",
        "makespan 1.20 us, ideal 1.10 us, overhead 100 ns",
        "peak 200 B of a budget of 200 B, unconstrained 300 B",
        "stalls 0 ns for copies out, 100 ns for copies back",
        "recompute 0 ns in 0 operations",
        "moved 100 B to the host, 100 B back",
        "kept 0 of 1 tensors with idle intervals, 0 B in all",
        "swapped 1 of 1 tensors with idle intervals, 100 B in all",
        "recomputed 0 of 1 tensors with idle intervals, 0 B in all",
        "bound 1.14 us for every schedule of the plan space: retained 91.67%; no plan exceeds 96.50%",
        "gap 5.00% of the makespan, certified",
        "solver highs: time limit",
        "planned in 1.50 ms",
    ):
        assert line in shown
    assert "recompute 100 ns in 1 operations" in text(result_table(RECOMPUTED))


def test_a_table_without_a_schedule_tells_why() -> None:
    shown = text(result_table(NOTHING))
    assert "operation 'h' needs 300 bytes." in shown
    assert "smallest budget 300 B" in shown


def test_a_judged_schedule_has_the_same_lines() -> None:
    assert SWAPPED.timeline is not None
    assert "overhead 100 ns" in text(check_table(STEP, SWAPPED.timeline, None))


def test_results_stand_side_by_side() -> None:
    head, _, *rows, _ = [
        line.split() for line in text(compare_table([SWAPPED, RECOMPUTED, NOTHING])).splitlines() if line.strip()
    ]
    assert head[:4] == ["model", "method", "status", "retained"]
    assert rows[0][4] == rows[1][4] == "91.67%"
    assert rows[2][1:6] == ["keep-all", "infeasible", "-", "-", "needs"]
    assert "step: operation 'h' needs 300 bytes." in text(compare_table([SWAPPED, NOTHING]))
    assert "gap" not in head
    assert "gap" in text(compare_table([replace(SWAPPED, bound=1140)]))


def test_names_are_never_markup() -> None:
    assert "[bold]" in text(result_table(replace(SWAPPED, method="[bold]", message=":smile:")))


@pytest.mark.parametrize("size", [0, 999, 1000, 123_456_789_123])
def test_an_exact_size_can_be_given_back(size: int) -> None:
    assert parse_size(exact_size(size).split("(")[-1].rstrip(")")) == size


def test_lanes_show_when_what_happens() -> None:
    assert bars(SWAPPED, "forward") == [(0, 600)]
    assert bars(SWAPPED, "backward") == [(600, 900), (1000, 1200)]
    assert bars(SWAPPED, "stall") == [(900, 1000)]
    assert bars(SWAPPED, "offload") == [(100, 200)]
    assert bars(SWAPPED, "prefetch") == [(900, 1000)]
    assert bars(SWAPPED, "recomputation") == []
    assert bars(RECOMPUTED, "recomputation") == [(900, 1000)]
    assert bars(RECOMPUTED, "stall") == []


def test_memory_shows_schedule_budget_and_keeping_everything() -> None:
    kept, held, budget = map(points, plot_memory(SWAPPED).get_lines())
    # Each value holds from the time before to its own: f, g, h, h' and g' when everything is kept.
    assert kept == ([0, 100, 300, 600, 900, 1100], [0, 100, 200, 300, 300, 200])
    assert held == ([0, 100, 300, 600, 900, 1200], [0, 100, 200, 200, 200, 200])
    assert budget[1] == [200, 200]


def test_panels_share_the_time() -> None:
    lanes, memory = plot_timeline(SWAPPED)
    assert lanes.get_xlim() == memory.get_xlim() == (0, 1200 / 1e6)
    assert "91.67%" in lanes.get_title(loc="left")


def test_plots_draw_where_they_are_told() -> None:
    axes = plot_timeline(SWAPPED)
    assert plot_timeline(RECOMPUTED, axes) == axes
    assert plot_memory(RECOMPUTED, axes[1]) is axes[1]


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_picture_is_written_once(tmp_path: Path, suffix: str, magic: bytes) -> None:
    path = tmp_path / f"p{suffix}"
    plot(SWAPPED, path)
    assert path.read_bytes().startswith(magic)
    with pytest.raises(InputError, match="exists already"):
        plot(SWAPPED, path)
    plot(SWAPPED, path, overwrite=True)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end in one of \.png, \.svg, \.pdf"):
        plot(SWAPPED, tmp_path / "p.jpeg2000")


def test_names_are_never_formulas(tmp_path: Path) -> None:
    named = replace(SWAPPED, instance=replace(SWAPPED.instance, name=r"a $\foo{$ b"))
    plot(named, tmp_path / "p.svg")
    assert r"a $\foo{$ b" in (tmp_path / "p.svg").read_text(encoding="utf-8")


def test_nothing_is_drawn_without_a_schedule(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'keep-all' for 'step' has no schedule"):
        plot(NOTHING, tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []


def test_drawing_leaves_pyplot_alone(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.test_report import SWAPPED; from slackswap_opt.report.plots import plot;"
        f"plot(SWAPPED, {str(tmp_path / 'p.png')!r}); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


def test_without_matplotlib_the_error_is_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'slackswap-opt\[plot\]'"):
        plot(SWAPPED, tmp_path / "p.png")


def test_what_a_bound_allows_is_rounded_up() -> None:
    # 1100 / 1153 is 95.403... percent: a plan that retains it would exceed 95.40 percent.
    assert bounds_in_words(1100, 1200, 1153) == "retained 91.67%; no plan exceeds 95.41%"
    assert bounds_in_words(1100, None, 1100) == "no plan exceeds 100.00%"
    assert bounds_in_words(1100, 1200, None) == "retained 91.67%"
    assert bounds_in_words(1100, None, None) == "nothing yet"
    assert bounds_in_words(0, 0, 0) == "retained 100.00%; no plan exceeds 100.00%"


def test_a_schedule_from_outside_of_the_plan_space_has_no_gap() -> None:
    assert "gap none: this schedule beats the bound" in text(result_table(replace(SWAPPED, bound=1201)))


def test_figures_side_by_side_are_whole_on_a_narrow_terminal() -> None:
    shown = rendered([compare_table([SWAPPED, RECOMPUTED])], terminal=False)
    environment = {"COLUMNS": "60", "TERM": "dumb"}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        narrow = rendered([compare_table([SWAPPED, RECOMPUTED])], terminal=True)
    assert "\u2026" not in narrow
    assert [line.split() for line in shown.splitlines()[3:]] == [line.split() for line in narrow.splitlines()[3:]]


def test_what_is_said_of_several_results_is_said_once() -> None:
    assert text(compare_table([NOTHING, NOTHING, SWAPPED])).count(NOTHING.message) == 1


def test_what_weighs_little_is_summed_up_where_memory_goes() -> None:
    heavy = MemoryRow("layers.*", "activation", 8, 2000, 1999, 30, 500, 2000, 1000, "")
    fixed = MemoryRow("head", "gradient", 1, 3000, 3000, 40, 0, 0, 0, "it belongs to the backward pass")
    light = MemoryRow("norm", "mean", 1, 4, 4, 10, 20, 4, 4, "")
    shown = text(memory_table([heavy, fixed, light, light]))
    assert "layers.* activation 8 2.000 kB 1.999 kB 30 ns 500 ns yes 1.000 kB" in shown
    assert "head gradient 1 3.000 kB 3.000 kB 40 ns 0 ns no no it belongs to the backward pass" in shown
    assert "mean" not in shown
    assert "2 more rows, 8 B at the peak" in shown
    assert "more rows" not in text(memory_table([heavy, fixed]))
