"""The benchmarks run, small, where there is no device; their figures for memory are exact even so."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.benchmarks import bench_host_cost, bench_runtime, bench_swapping


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


TINY = ["--device", "cpu", "--size", "tiny", "--steps", "1", "--planning", "0.3"]


def test_the_benchmark_of_the_runtime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    assert bench_runtime.main([*TINY, "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    assert record["torch"] == torch.__version__
    rows = {(row["workload"], row["method"]): row for row in record["rows"]}
    ours = [f"ours, {method}, {share}" for share in ("50%", "30%") for method in ("greedy", "auto")]
    ways = ["plain", "checkpoint", "save_on_cpu", "keep-all, on paper", *ours]
    assert list(rows) == [(workload, way) for workload in ("GPT-2-like", "Llama-like") for way in ways]
    for (workload, way), row in rows.items():
        assert row["note"] == row["error"] == ""
        if way.startswith("ours"):
            assert row["peak"] == row["requested"] == row["predicted_peak"] <= row["budget"] < rows[workload, "plain"]["peak"]
            assert (row["moved"] > 0 and row["host"] > 0) or row["reruns"] > 0
    table = capsys.readouterr().out
    assert "ours, greedy, 30%" in table


def test_a_way_that_fails_does_not_take_the_others_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def checkpointed(model: torch.nn.Module) -> None:
        written.append(json.loads(path.read_text())["rows"])
        raise failures.pop()

    path, written = tmp_path / "rows.json", list[object]()
    failures = [torch.OutOfMemoryError("all gone"), RuntimeError("an illegal access\nwas encountered")]
    monkeypatch.setattr(bench_runtime, "checkpointed", checkpointed)
    monkeypatch.setattr(bench_runtime, "METHODS", ())
    assert bench_runtime.main([*TINY, "--json", str(path)]) == 1
    rows = json.loads(path.read_text())["rows"]
    assert [row["method"] for row in rows] == ["plain", "checkpoint", "save_on_cpu", "keep-all, on paper"] * 2
    assert [row["note"] for row in rows if row["error"]] == ["RuntimeError: an illegal access", "out of memory"]
    assert "Traceback" in rows[1]["error"]
    assert rows[1]["time"] is None
    assert rows[2]["time"] > 0
    # What was known when the first failed was on disk.
    assert written == [rows[:1], rows[:5]]
    assert "RuntimeError: an illegal access" in capsys.readouterr().out


def test_some_ways_can_be_run_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    assert bench_runtime.main([*TINY, "--json", str(path), "--only", "llama-like: ours, greedy, 30%"]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["predicted_peak"] == row["peak"]
    assert str(path) in capsys.readouterr().out


def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    assert bench_runtime.main([]) == 2
    assert capsys.readouterr().err == "there is no CUDA device; use --device cpu --size tiny\n"


def test_the_benchmark_of_the_host_cost(capsys: pytest.CaptureFixture[str]) -> None:
    bench_host_cost.main(2, 1, 16)
    lines = capsys.readouterr().out.splitlines()
    assert "us an operation" in lines[1]
    names = [line[:32].strip() for line in lines[2:]]
    assert names[0] == "plain"
    assert {"no-op mode", "keep-all, whole clock", "keep-all, forward clock", "recompute-all, forward clock"} <= set(names)


def test_the_table_of_the_host_cost() -> None:
    # A hundred operations; beyond plain: 3 us an operation for the no-op mode, 4.5 for the other. The third of four rounds was
    # busy for all, the last for the other alone.
    times = {
        "plain": [100_000, 100_000, 900_000, 100_000],
        "no-op mode": [400_000, 400_000, 1_200_000, 400_000],
        "other": [550_000, 550_000, 1_350_000, 900_000],
    }
    head, _, plain, noop, other = bench_host_cost.lines(times, 100)
    assert head == "100 operations, plain step 0.10 ms"
    assert plain.split() == ["plain", "0.00", "0.00", "0.10", "ms"]
    assert noop.split() == ["no-op", "mode", "3.00", "1.00", "0.40", "ms"]
    assert other.split() == ["other", "4.50", "1.50", "0.55", "ms"]


def test_the_benchmark_of_swapping(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--size", "tiny", "--clock", "processor", "--steps", "2", "--shares", "50", "--bandwidths", "400MB/s"]
    assert bench_swapping.main([*arguments, "--traces", str(tmp_path)]) == 0
    _, row = capsys.readouterr().out.splitlines()
    assert float(row.split()[-2].removesuffix("%")) > 0
    assert bench_swapping.overlap((tmp_path / "50-percent-400MB-s.json").read_text()) > 0


def test_the_share_of_copies_beside_computation() -> None:
    def event(lane: int, start: float, duration: float, kind: str = "run") -> dict[str, object]:
        return {"ph": "X", "tid": lane, "ts": start, "dur": duration, "cat": kind}

    # Of the copy out, from 5 to 15, 5 are beside the first operation and 2 beside the re-run; of the one back, from 20 to 30,
    # nothing: compute waits for it.
    events = [
        event(0, 0, 10),
        event(0, 13, 4, "run again"),
        event(0, 20, 10, "drop"),
        event(1, 5, 10, "offload"),
        event(2, 20, 10, "prefetch"),
    ]
    assert bench_swapping.overlap(json.dumps({"traceEvents": events})) == 7 / 20
    assert bench_swapping.overlap(json.dumps({"traceEvents": events[:3]})) == 1
