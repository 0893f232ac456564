"""Whether steps take as long as predicted where copies take as long as on a link: `python tests/benchmarks/bench_swapping.py`.

A GPT-2-like model trains on one core under plans, with operations of some milliseconds. Copies are done at once, and compute
then waits as long as a link of the given bandwidth would have made it wait; durations are those that the runtime measures in
its profiling steps. The share of the copies' time that lies beside computation is that of the judge's timeline, and that
of the trace of one more step, which `--traces FOLDER` keeps for a viewer; both with the clock that runs throughout.

Steps without a plan alternate with those under one, so that a machine that grows slower does so for both: *retained* is the
share of a plain step's speed that is left. `--clock processor` counts what this thread computes and what it waits for copies,
instead of the time on the wall: so figures mean something on a machine that others use too, though it still sees what they do
to caches and memory.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from torch.nn import functional

# A script's own folder is on the path, but not the root of the repository.
sys.path.append(str(Path(__file__).parents[2]))

from slackswap_opt.instance import Link
from slackswap_opt.report.traces import chrome_trace
from slackswap_opt.runtime import MemoryBudget, profile
from slackswap_opt.runtime.lanes import Rated
from slackswap_opt.runtime.language_models import Gpt2, Shape
from slackswap_opt.solve import HEURISTICS
from slackswap_opt.units import format_bandwidth, format_size, format_time, parse_bandwidth

SIZES = {"tiny": (Shape(2, 32, 2, 64, 32, 32), 2), "small": (Shape(3, 512, 8, 2048, 512, 512), 1)}
LATENCY = 20_000
"""Nanoseconds that a copy takes beyond its bytes."""

Step = Callable[[], None]


class Wall:
    """The time on the wall."""

    now = staticmethod(time.perf_counter_ns)

    def sleep(self, nanoseconds: int) -> None:
        """Let time pass."""
        time.sleep(nanoseconds / 1e9)


class Processor:
    """The time that this thread had a processor, and what it would have slept."""

    def __init__(self) -> None:
        self._slept = 0

    def now(self) -> int:
        """Return nanoseconds."""
        return time.thread_time_ns() + self._slept

    def sleep(self, nanoseconds: int) -> None:
        """Let time pass."""
        self._slept += nanoseconds


Clock = Wall | Processor


@dataclass(frozen=True, slots=True)
class Row:
    """How steps under one plan fared: times in ns, budget and moved in bytes, overlaps as shares of the copies' time."""

    budget: int
    bandwidth: int
    plain: int
    ideal: int
    predicted: int
    measured: tuple[int, ...]
    stall: int
    waited: int
    moved: int
    reruns: int
    overlap: float
    overlap_seen: float

    @property
    def ratio(self) -> float:
        """Measured by predicted."""
        return median(self.measured) / self.predicted


def overlap(trace: str) -> float:
    """Return the share of the time of copies in which an operation ran, for a trace of three lanes; 1 if nothing is copied."""
    events = [event for event in json.loads(trace)["traceEvents"] if event["ph"] == "X"]
    spans = [(event["ts"], event["ts"] + event["dur"], event["tid"], event["cat"]) for event in events]
    runs = [(start, end) for start, end, _, kind in spans if kind in ("run", "run again")]
    copies = [(start, end) for start, end, lane, _ in spans if lane]
    beside = sum(max(0.0, min(e, end) - max(s, start)) for s, e in copies for start, end in runs)
    total = sum(end - start for start, end in copies)
    return beside / total if total else 1.0


def row(step: Step, clock: Clock, limit: int, bandwidth: int, method: str, steps: int, path: Path) -> Row:
    """Train under one budget on one link, and write the trace of a step to `path`."""
    link = Link(bandwidth, bandwidth, LATENCY)
    budget = MemoryBudget(limit, method=method, link=link, lanes=Rated(link, now=clock.now, sleep=clock.sleep))
    while not budget.report().plans:
        with budget.step():
            step()
    plain = []
    for _ in range(1 + steps):
        plain.append(timed(step, clock))
        with budget.step():
            step()
    budget.record(path)
    with budget.step():
        step()
    budget.close()
    (plan,) = budget.report().plans
    left = [record.reason for record in plan.steps if record.reason]
    if left:
        raise RuntimeError(f"a step left its plan: {left[0]}")
    # The first step under the plan came before these, and the last one is the traced one.
    records = plan.steps[-1 - steps : -1]
    program, timeline = plan.ready.whole.program, plan.ready.usual.program.timeline
    return Row(
        budget=limit,
        bandwidth=bandwidth,
        plain=round(median(plain[1:])),
        ideal=timeline.ideal,
        predicted=timeline.makespan,
        measured=tuple(record.time for record in records),
        stall=timeline.offload_stall + timeline.prefetch_stall,
        waited=round(median(record.offload_stall + record.prefetch_stall for record in records)),
        moved=timeline.offloaded + timeline.prefetched,
        reruns=timeline.recomputed,
        overlap=overlap(chrome_trace(program.instance, program.schedule, program.timeline)),
        overlap_seen=overlap(path.read_text()),
    )


def timed(step: Step, clock: Clock) -> int:
    """Return the nanoseconds that a step takes."""
    began = clock.now()
    step()
    return clock.now() - began


def workload(size: str) -> Step:
    """Return a step of training from no gradients."""
    shape, batch = SIZES[size]
    torch.manual_seed(0)
    model, tokens = Gpt2(shape), torch.randint(0, shape.vocabulary, (batch, shape.length))

    def step() -> None:
        model.zero_grad()
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()  # type: ignore[no-untyped-call]

    return step


HEADS = (
    *("budget", "link", "moved", "re-runs", "plain", "predicted", "measured", "ratio"),
    *("retained", "seen", "waits", "seen", "beside", "seen"),
)


def line(each: Row) -> str:
    """Return a row as a person reads it."""
    measured = median(each.measured)
    cells = (
        format_size(each.budget),
        format_bandwidth(each.bandwidth),
        format_size(each.moved),
        str(each.reruns),
        *map(format_time, (each.plain, each.predicted, round(measured))),
        f"{each.ratio:.3f}",
        *(f"{share:.1%}" for share in (each.ideal / each.predicted, each.plain / measured)),
        *map(format_time, (each.stall, each.waited)),
        *(f"{share:.1%}" for share in (each.overlap, each.overlap_seen)),
    )
    return "".join(f"{cell:>11}" for cell in cells)


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clock", choices=["wall", "processor"], default="wall")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--shares", nargs="+", type=int, default=[50, 30], help="percent of the bytes that can move")
    parser.add_argument("--bandwidths", nargs="+", default=["30MB/s", "200MB/s"])
    parser.add_argument("--method", choices=HEURISTICS, default="greedy")
    parser.add_argument("--steps", type=int, default=7, help="timed steps of each kind")
    parser.add_argument("--traces", type=Path, help="a folder for traces")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    clock = Wall() if options.clock == "wall" else Processor()
    step = workload(options.size)
    instance = profile(step, timed=False).instance
    print("".join(f"{head:>11}" for head in HEADS))
    with tempfile.TemporaryDirectory() as scratch, patch("time.perf_counter_ns", clock.now):
        folder = options.traces or Path(scratch)
        for share, rate in product(options.shares, options.bandwidths):
            path = folder / f"{share}-percent-{rate.replace('/', '-')}.json"
            limit = max(instance.floor) + (instance.peak - max(instance.floor)) * share // 100
            print(line(row(step, clock, limit, parse_bandwidth(rate), options.method, options.steps, path)), flush=True)
            gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
