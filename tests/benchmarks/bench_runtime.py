"""Step time and memory of plain training, of what PyTorch offers, and of ours: `python tests/benchmarks/bench_runtime.py`.

On a CUDA device it takes about three minutes and writes one JSON file and one table. With `--device cpu` and `--size tiny` or
`small` it runs anywhere: copies then take as long as on the link given by `--bandwidth`, and the peak is what the CPU's
allocator reports. In `small` operations are long enough for times to mean something.

The budgets are shares of the bytes that can move: a share `s` allows `f + s (p - f)`, where `p` is the peak of a step that
keeps everything and `f` what no plan can do without.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# A script's own folder is on the path, but not the root of the repository.
sys.path.append(str(Path(__file__).parents[2]))

from slackswap_opt.files import InputError
from slackswap_opt.instance import Instance, Link
from slackswap_opt.runtime import MemoryBudget, Profile, measure_link, profile
from slackswap_opt.runtime.lanes import Rated
from slackswap_opt.runtime.language_models import GPT2_XL, LLAMA_7B, Gpt2, Llama, Shape
from slackswap_opt.runtime.transfers import Lanes
from slackswap_opt.units import format_size, format_time, parse_bandwidth
from tests.runtime.meters import untouched_peak

SHARES = (0.5, 0.3)
METHODS = ("greedy", "auto")
Scope = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, and the batch that it is trained on."""

    name: str
    model: type[nn.Module]
    shape: Shape
    batch: int


@dataclass(frozen=True, slots=True)
class Row:
    """One way to train one model: times in ns, sizes in bytes, None where it was not predicted or did not fit."""

    workload: str
    method: str
    budget: int | None
    time: int | None
    peak: int | None
    predicted_time: int | None = None
    predicted_peak: int | None = None
    moved: int | None = None
    reruns: int | None = None
    note: str = ""


SIZES = {"tiny": (Shape(3, 64, 4, 256, 128, 64), 4), "small": (Shape(4, 384, 6, 1536, 512, 256), 4)}


def workloads(size: str) -> list[Workload]:
    """Return what to train: layers of the published shapes, fewer than published; or toys."""
    if size in SIZES:
        shape, batch = SIZES[size]
        return [Workload("GPT-2-like", Gpt2, replace(shape, dropout=0.1), batch), Workload("Llama-like", Llama, shape, batch)]
    return [
        Workload("GPT-2-like", Gpt2, replace(GPT2_XL, layers=12), 8),
        Workload("Llama-like", Llama, replace(LLAMA_7B, layers=4), 4),
    ]


class Bench:
    """Trains one workload in every way.

    Parameters
    ----------
    workload
        What to train.
    device
        Where.
    link
        The link of the device, or what it is to be on the CPU.
    steps
        How many steps are timed; half as many are run before.
    """

    def __init__(self, workload: Workload, device: torch.device, link: Link, steps: int) -> None:
        torch.manual_seed(0)
        self.workload, self.device, self.link, self.steps = workload, device, link, steps
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.model = workload.model(workload.shape).to(device, dtype)
        self.tokens = torch.randint(0, workload.shape.vocabulary, (workload.batch, workload.shape.length), device=device)

    def rows(self) -> Iterator[Row]:
        """Yield the results, way by way."""
        found = profile(lambda: self.step(nullcontext), name=self.workload.name, link=self.link)
        yield self.row("plain", nullcontext)
        with checkpointed(self.model):
            yield self.row("checkpoint", nullcontext)
        pinned = self.device.type == "cuda"
        yield self.row("save_on_cpu", lambda: torch.autograd.graph.save_on_cpu(pin_memory=pinned))
        for share in SHARES:
            for method in METHODS:
                yield self.ours(found, share, method)

    def step(self, scope: Scope) -> None:
        """Run one step from no gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None
        with scope():
            loss = functional.cross_entropy(self.model(self.tokens).flatten(0, 1).float(), self.tokens.flatten())
            loss.backward()  # type: ignore[no-untyped-call]

    def row(self, method: str, scope: Scope) -> Row:
        """Return the time and the peak of one way."""
        try:
            return Row(self.workload.name, method, None, *self.measured(scope))
        except torch.OutOfMemoryError:
            return Row(self.workload.name, method, None, None, None, note="out of memory")

    def ours(self, found: Profile, share: float, method: str) -> Row:
        """Return the time and the peak under a plan, beside what was predicted."""
        limit = allowed(found.instance, share)
        name = f"ours, {method}, {share:.0%}"
        lanes: Lanes | None = Rated(self.link) if self.device.type == "cpu" else None
        try:
            budget = MemoryBudget(limit, method=method, link=self.link, lanes=lanes)
            time_taken, peak = self.measured(budget.step)
        except (InputError, torch.OutOfMemoryError) as error:
            return Row(self.workload.name, name, limit, None, None, note=str(error).splitlines()[0])
        budget.close()
        (plan,) = budget.report().plans
        left = sum(1 for step in plan.steps if step.reason or not step.complete)
        timeline = plan.ready.usual.program.timeline
        return Row(
            self.workload.name,
            name,
            limit,
            time_taken,
            peak,
            timeline.makespan,
            timeline.peak,
            timeline.offloaded + timeline.prefetched,
            timeline.recomputed,
            f"{left} steps left the plan" if left else "",
        )

    def measured(self, scope: Scope) -> tuple[int, int]:
        """Return the median time of a step in nanoseconds, and the peak of one in bytes beyond what was there before."""
        for _ in range(4 + self.steps // 2):
            self.step(scope)
        times = []
        for _ in range(self.steps):
            self.synchronize()
            began = time.perf_counter_ns()
            self.step(scope)
            self.synchronize()
            times.append(time.perf_counter_ns() - began)
        return round(median(times)), self.peak(scope)

    def peak(self, scope: Scope) -> int:
        """Return the most bytes that a step allocates beyond those before."""
        for parameter in self.model.parameters():
            parameter.grad = None
        gc.collect()
        if self.device.type != "cuda":
            return untouched_peak(lambda: self.step(scope))
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        self.step(scope)
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.device) - before

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def allowed(instance: Instance, share: float) -> int:
    """Return the budget that leaves a share of the bytes that can move: f + s (p - f)."""
    fixed = max(instance.floor)
    return fixed + round(share * (instance.peak - fixed))


@contextmanager
def checkpointed(model: nn.Module) -> Iterator[None]:
    """Return a context in which every layer of a model is recomputed from its input."""
    layers = next(child for child in model.modules() if isinstance(child, nn.ModuleList))
    forwards = [layer.forward for layer in layers]
    for layer, forward in zip(layers, forwards, strict=True):
        layer.forward = lambda *args, forward=forward, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def table(rows: list[Row]) -> str:
    """Return the rows as a person reads them."""

    def size(value: int | None) -> str:
        return "" if value is None else format_size(value)

    def shown(value: int | None) -> str:
        return "" if value is None else format_time(value)

    heads = ("", "budget", "step", "predicted", "peak", "predicted", "moved", "re-runs")
    lines, last = [("%-34s" + "%13s" * 7) % heads], ""
    for row in rows:
        if row.workload != last:
            lines.append(last := row.workload)
        cells = (
            f"  {row.method}",
            size(row.budget),
            shown(row.time),
            shown(row.predicted_time),
            size(row.peak),
            size(row.predicted_peak),
            size(row.moved),
            "" if row.reruns is None else str(row.reruns),
        )
        lines.append(("%-34s" + "%13s" * 7) % cells + (f"  {row.note}" if row.note else ""))
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=["full", *SIZES], default="full")
    parser.add_argument("--steps", type=int, default=6, help="timed steps of each way")
    parser.add_argument("--bandwidth", default="2GB/s", help="of the link on the CPU")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device; use --device cpu --size tiny", file=sys.stderr)
        return 2
    rate = parse_bandwidth(options.bandwidth)
    link = measure_link(device).link() if device.type == "cuda" else Link(rate, rate, 20_000)
    rows: list[Row] = []
    for workload in workloads(options.size):
        for row in Bench(workload, device, link, options.steps).rows():
            rows.append(row)
            print(f"{row.workload}: {row.method}", file=sys.stderr)
    print(table(rows))
    if options.json:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        record = {"device": name, "torch": torch.__version__, "link": asdict(link), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
