"""The figures of the SlackSwap paper beside ours, and which links and efficiencies reach them."""

from dataclasses import replace

from slackswap_opt import load, solve
from slackswap_opt.formulations.certificate import lower_bound
from slackswap_opt.hardware import get
from slackswap_opt.instance import Instance
from tests.benchmarks.results.sweeps import JUDGED, at, judged
from tests.benchmarks.results.table import MISSED, Row, Table, largest_gap, reached

FIGURES = {"bert-large": 963, "gpt2-xl": 976, "llama-7b": 996}
"""Retained throughput at half of the peak, in tenths of a percent, as the paper's simulation has it."""
RATES = (8, 12, 16, 25, 32, 50, 64)
EFFICIENCIES = (20, 30, 40, 50, 60, 70, 80, 100)
READINGS: dict[str, dict[str, bool | int | float | str]] = {
    "as it is here": {},
    "A100 of 80 GB": {"hardware": "a100-80gb"},
    "without head": {"head": False},
    "half the sequence": {},
    "a quarter of the batch": {},
    "eager attention": {"attention": "eager"},
    "no dropout": {"dropout": 0.0},
    "TF32": {"precision": "tf32"},
    "FP32": {"precision": "fp32"},
}


def reading(model: str, name: str) -> Instance:
    """Return a model's step under one reading of what the paper may have simulated, at half of its peak."""
    values = dict(READINGS[name])
    step = {"bert-large": (512, 32), "gpt2-xl": (1024, 8), "llama-7b": (2048, 4)}[model]
    if name == "half the sequence":
        values["sequence"] = step[0] // 2
    if name == "a quarter of the batch":
        values["batch"] = step[1] // 4
    hardware = values.pop("hardware", "a100-40gb")
    return at(load(model, hardware=hardware, **values), 50)


def reading_row(model: str, name: str) -> Row:
    """Return the paper's figure, greedy, bound and gap under one reading."""
    _, _, cells = judged(reading(model, name))
    return (f"{model}, {name}", f"{FIGURES[model] / 10:.1f}", *cells)


def reach_row(model: str, efficiency: int, rates: tuple[int, ...] = RATES) -> Row:
    """Return what greedy retains over links at one efficiency of matrix products, and whether that reaches the figure."""
    device = replace(get("a100-40gb"), gemm=efficiency, attention=max(1, efficiency * 5 // 6))
    instance = at(load(model, hardware=device), 50)
    cells: list[str] = []
    possible = True
    for rate in sorted(rates, reverse=True):
        linked = instance.with_link(replace(instance.link, offload_bandwidth=rate * 10**9, prefetch_bandwidth=rate * 10**9))
        cell, possible = _reach(linked, FIGURES[model], possible)
        cells.insert(0, cell)
    return (f"{efficiency} % ({device.flops_16 * efficiency // 10**14} TFLOP/s)", *cells)


def _reach(instance: Instance, figure: int, possible: bool) -> tuple[str, bool]:
    """Return greedy's percentage, bold if it reaches the figure, italic if some schedule might; and whether one might.

    What a faster link makes impossible is impossible here too: then `possible` is false, and no bound is worked out.
    """
    result = solve(instance, "greedy")
    if result.makespan is None:
        return MISSED, possible
    if _tenths(instance.ideal, result.makespan) >= figure:
        return f"**{reached(result)}**", True
    possible = possible and _tenths(instance.ideal, lower_bound(instance).bound or instance.ideal) >= figure
    return f"*{reached(result)}*" if possible else reached(result), possible


def _tenths(ideal: int, makespan: int) -> int:
    """Return the retained throughput in tenths of a percent, to the nearest: the figures have one decimal."""
    return (2_000 * ideal + makespan) // (2 * makespan)


TABLES = {
    "paper": Table(
        ("model, reading", "paper", *JUDGED),
        tuple((model, name) for model in FIGURES for name in READINGS if (model, name) != ("llama-7b", "no dropout")),
        reading_row,
        largest_gap,
    ),
    **{
        f"reach {model}": Table(
            ("products at", *(f"{rate} GB/s" for rate in RATES)),
            tuple((model, efficiency) for efficiency in EFFICIENCIES),
            reach_row,
        )
        for model in FIGURES
    },
}
