"""Step time and memory of plain training, of what PyTorch offers, and of ours: `python tests/benchmarks/bench_runtime.py`.

On a CUDA device it takes some minutes, and prints one table at the end. The JSON file is written again after every way to
train; one that fails is in it with its error, and the others go on. `--only llama` or `--only "ours, greedy"` runs some.

With `--device cpu` and `--size tiny` or `small` it runs anywhere: copies then take as long as on the link given by
`--bandwidth`, and the peak is what the CPU's allocator reports. In `small` operations are long enough for times to mean
something.

The budgets are shares of the bytes that can move: a share `s` allows `f + s (p - f)`, where `p` is the peak of a step that
keeps everything and `f` what no plan can do without.
"""

import argparse
import gc
import json
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
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
from slackswap_opt.runtime import MemoryBudget, measure_link, profile
from slackswap_opt.runtime.lanes import Rated
from slackswap_opt.runtime.language_models import GPT2_XL, LLAMA_7B, Gpt2, Llama, Shape
from slackswap_opt.runtime.profiler import DEFAULT_LINK
from slackswap_opt.runtime.transfers import Lanes
from slackswap_opt.schedule import Schedule
from slackswap_opt.solve import solve
from slackswap_opt.units import format_size, format_time, parse_bandwidth
from tests.runtime.meters import untouched_peak

SHARES = (0.5, 0.3)
METHODS = ("greedy", "auto")
WARM = 4
"""Steps before those that are timed."""

PATIENCE = 12
"""Steps in which a plan must have been made."""

log = logging.getLogger(__name__)

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
    """One way to train one model: times in ns, sizes in bytes, None where it was not predicted or measured.

    `peak` is what the allocator had handed out at most, `requested` what it was asked for; both beyond what was there before.
    """

    workload: str
    method: str
    budget: int | None = None
    time: int | None = None
    peak: int | None = None
    requested: int | None = None
    predicted_time: int | None = None
    predicted_peak: int | None = None
    moved: int | None = None
    reruns: int | None = None
    host: int | None = None
    note: str = ""
    error: str = ""


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
        How many steps are timed.
    planning
        Seconds that an exact method may plan.
    """

    def __init__(self, workload: Workload, device: torch.device, link: Link, steps: int, planning: float) -> None:
        torch.manual_seed(0)
        self.workload, self.device, self.link, self.steps, self.planning = workload, device, link, steps, planning
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.model = workload.model(workload.shape).to(device, dtype)
        self.tokens = torch.randint(0, workload.shape.vocabulary, (workload.batch, workload.shape.length), device=device)

    def ways(self) -> Iterator[tuple[str, Callable[[], Row]]]:
        """Yield the ways to train, each with what measures it."""
        pinned = self.device.type == "cuda"
        yield "plain", lambda: self.measured("plain", nullcontext)
        yield "checkpoint", lambda: self.measured("checkpoint", partial(checkpointed, self.model))
        on_cpu = partial(torch.autograd.graph.save_on_cpu, pin_memory=pinned)
        yield "save_on_cpu", lambda: self.measured("save_on_cpu", on_cpu)
        yield "keep-all, on paper", self.on_paper
        for share in SHARES:
            for method in METHODS:
                yield f"ours, {method}, {share:.0%}", partial(self.ours, share, method)

    def attempt(self, method: str, run: Callable[[], Row]) -> Row:
        """Return what `run` returns, or a row with what it raised."""
        try:
            self.release()
            return run()
        except torch.OutOfMemoryError as error:
            return Row(self.workload.name, method, note="out of memory", error=str(error))
        except InputError as error:
            return Row(self.workload.name, method, note=str(error).splitlines()[0], error=str(error))
        except Exception as error:
            # Whatever is wrong with one way, hours on a device must not be lost to the others for it.
            note = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
            return Row(self.workload.name, method, note=note, error=traceback.format_exc())

    def release(self) -> None:
        """Give back what the way before has left with the allocators."""
        for parameter in self.model.parameters():
            parameter.grad = None
        gc.collect()
        if self.device.type == "cuda":
            self.synchronize()
            torch.cuda.empty_cache()
            # Private, but else pinned memory of `save_on_cpu` stays locked for good.
            getattr(torch._C, "_accelerator_emptyHostCache", lambda: None)()

    def step(self, scope: Scope) -> None:
        """Run one step from no gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None
        with scope():
            loss = functional.cross_entropy(self.model(self.tokens).flatten(0, 1).float(), self.tokens.flatten())
            loss.backward()  # type: ignore[no-untyped-call]

    @cached_property
    def instance(self) -> Instance:
        """The step on paper."""
        return profile(lambda: self.step(nullcontext), name=self.workload.name, link=self.link).instance

    def on_paper(self) -> Row:
        """Return what a profile says of the plain step."""
        return Row(
            self.workload.name, "keep-all, on paper", predicted_time=self.instance.ideal, predicted_peak=self.instance.peak
        )

    def ours(self, share: float, method: str) -> Row:
        """Return the time and the peak under a plan, beside what was predicted."""
        limit = allowed(self.instance, share)
        lanes: Lanes | None = Rated(self.link) if self.device.type == "cpu" else None
        budget = MemoryBudget(limit, method=partial(self.planned, method), link=self.link, lanes=lanes)
        try:
            for _ in range(PATIENCE):
                self.step(budget.step)
                if budget.report().plans:
                    break
            row = self.measured(f"ours, {method}, {share:.0%}", budget.step)
        finally:
            budget.close()
        if not budget.report().plans:
            raise RuntimeError(f"no two of {PATIENCE} steps were alike, so there is no plan")
        plan = budget.report().plans[0]
        reasons = [step.reason or "it was not complete" for step in plan.steps if step.reason or not step.complete]
        timeline = plan.ready.usual.program.timeline
        return replace(
            row,
            budget=limit,
            predicted_time=timeline.makespan,
            predicted_peak=timeline.peak,
            moved=timeline.offloaded + timeline.prefetched,
            reruns=timeline.recomputed,
            host=plan.ready.host,
            note=f"{len(reasons)} of {len(plan.steps)} steps left the plan: {reasons[0]}" if reasons else "",
        )

    def planned(self, method: str, instance: Instance) -> Schedule:
        """Return a plan that is not thought about for too long."""
        result = solve(instance, method, time_limit=self.planning)
        if result.schedule is None:
            raise InputError(f"no plan fits: {result.message}")
        return result.schedule

    def measured(self, method: str, scope: Scope) -> Row:
        """Return the median time of a step in nanoseconds, and the peak of one in bytes beyond what was there before."""
        for _ in range(WARM):
            self.step(scope)
        times = []
        for _ in range(self.steps):
            self.synchronize()
            began = time.perf_counter_ns()
            self.step(scope)
            self.synchronize()
            times.append(time.perf_counter_ns() - began)
        peak, requested = self.peak(scope)
        return Row(self.workload.name, method, time=round(median(times)), peak=peak, requested=requested)

    def peak(self, scope: Scope) -> tuple[int, int]:
        """Return the most bytes that a step allocates beyond those before, and the most that it asks for."""
        for parameter in self.model.parameters():
            parameter.grad = None
        gc.collect()
        if self.device.type != "cuda":
            peak = untouched_peak(lambda: self.step(scope))
            return peak, peak
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_stats(self.device)
        self.step(scope)
        self.synchronize()
        after = torch.cuda.memory_stats(self.device)
        allocated, requested = (
            after[f"{kind}_bytes.all.peak"] - before[f"{kind}_bytes.all.current"] for kind in ("allocated", "requested")
        )
        return allocated, requested

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


def measured_link(device: torch.device) -> Link:
    """Return the link of a CUDA device, or a common one if it cannot be measured."""
    try:
        return measure_link(device).link()
    except RuntimeError:
        log.exception("the link could not be measured")
        return DEFAULT_LINK


def write(path: Path, device: torch.device, link: Link, rows: list[Row]) -> None:
    """Write all that is known so far."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    record = {"device": name, "torch": torch.__version__, "link": asdict(link), "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(record, indent=1) + "\n")


def main(arguments: list[str]) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=["full", *SIZES], default="full")
    parser.add_argument("--steps", type=int, default=6, help="timed steps of each way")
    parser.add_argument("--planning", type=float, default=10, help="seconds that an exact method may plan")
    parser.add_argument("--bandwidth", default="2GB/s", help="of the link on the CPU")
    parser.add_argument("--only", default="", help="run the ways whose 'model: way' has this in it")
    parser.add_argument("--json", type=Path, default=Path("bench_runtime.json"), help="where to write the rows")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device; use --device cpu --size tiny", file=sys.stderr)
        return 2
    if device.type == "cpu":
        # Threads that wait for each other make times of small operations a matter of luck where others compute too.
        torch.set_num_threads(1)
    rate = parse_bandwidth(options.bandwidth)
    link = measured_link(device) if device.type == "cuda" else Link(rate, rate, 20_000)
    log.info("%s", link)
    rows: list[Row] = []
    for workload in workloads(options.size):
        bench = Bench(workload, device, link, options.steps, options.planning)
        for method, run in bench.ways():
            if options.only.lower() in f"{workload.name}: {method}".lower():
                rows.append(bench.attempt(method, run))
                log.info("%s", rows[-1])
                write(options.json, device, link, rows)
        del bench, run
        gc.collect()
    print(table(rows))
    print(f"all of it, with what failed: {options.json}")
    return 1 if any(row.error for row in rows) else 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)9.0f ms  %(message)s")
    sys.exit(main(sys.argv[1:]))
