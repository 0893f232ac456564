"""The benchmarks run, small, where there is no device; their figures for memory are exact even so."""

import json
from pathlib import Path

import pytest
import torch

from tests.benchmarks import bench_host_cost, bench_runtime


def test_the_benchmark_of_the_runtime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    assert bench_runtime.main(["--device", "cpu", "--size", "tiny", "--steps", "1", "--json", str(path)]) == 0
    record = json.loads(path.read_text())
    assert record["torch"] == torch.__version__
    rows = {(row["workload"], row["method"]): row for row in record["rows"]}
    ways = ["plain", "checkpoint", "save_on_cpu", *(f"ours, {m}, {s}" for s in ("50%", "30%") for m in ("greedy", "auto"))]
    assert list(rows) == [(workload, way) for workload in ("GPT-2-like", "Llama-like") for way in ways]
    for (workload, way), row in rows.items():
        assert row["note"] == ""
        if way.startswith("ours"):
            assert row["peak"] == row["predicted_peak"] <= row["budget"] < rows[workload, "plain"]["peak"]
    table = capsys.readouterr().out
    assert "ours, greedy, 30%" in table


def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    assert bench_runtime.main([]) == 2
    assert capsys.readouterr().err == "there is no CUDA device; use --device cpu --size tiny\n"


def test_the_benchmark_of_the_host_cost(capsys: pytest.CaptureFixture[str]) -> None:
    bench_host_cost.main(2, 1, 16)
    lines = capsys.readouterr().out.splitlines()
    assert "us an operation beyond that" in lines[0]
    names = [line[:32].strip() for line in lines[1:]]
    assert names[0] == "plain"
    assert {"no-op mode", "keep-all, whole clock", "keep-all, forward clock", "recompute-all, forward clock"} <= set(names)
