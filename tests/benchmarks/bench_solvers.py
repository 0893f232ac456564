"""Certified gaps of exact methods and of greedy: `python tests/benchmarks/bench_solvers.py [MODEL ...] [--methods M,...]`.

A row a model, budget and method: the gap in percentage points of the makespan against a bound that is certified once for all
methods, the seconds that the method took and the multiple of greedy's time, the judged makespan, and what the solver said, with
the makespan that it believed in. Methods run one after the other. Besides names that `slackswap list` prints, `library` stands
for all profiled steps of the library, and `random` for eight random graphs of 300 tensors. `--markdown` prints a table for
documents.
"""

import argparse
from collections.abc import Iterator, Sequence

from slackswap_opt import Result, load, solve
from slackswap_opt.formulations.certificate import lower_bound
from slackswap_opt.instance import Instance
from slackswap_opt.instances import saved
from slackswap_opt.units import format_time

MODELS = ("bert-large", "gpt2-xl", "llama-7b", "resnet-50", "library", "random")
SEEDS = range(8)
HEAD = ("step", "budget", "method", "gap", "seconds", "of greedy's", "makespan", "solver")
WIDTHS = (20, 6, 8, 8, 8, 11, 10, 0)


def instances(model: str) -> Iterator[tuple[str, Instance]]:
    """Yield the steps that a word of the command line stands for, with their names."""
    if model == "library":
        yield from ((f"library/{name}", saved.load_saved(name)) for name in saved.names())
    elif model == "random":
        yield from ((f"random seed={seed}", load("random", seed=seed)) for seed in SEEDS)
    else:
        yield model, load(model)


def cells(name: str, percent: int, result: Result, bound: int, unit: int) -> tuple[str, ...]:
    """Return the cells of one result; `unit` is the nanoseconds that greedy took."""
    gap = f"{100 * (result.makespan - bound) / result.makespan:.4f}" if result.makespan else "none"
    makespan = format_time(result.makespan) if result.makespan else "none"
    said = "; ".join(filter(None, (result.solver_status, result.message)))
    times = (f"{result.runtime / 1e9:.2f}", f"{result.runtime / unit:.1f}")
    return (name, f"{percent} %", result.method, gap, *times, makespan, said)


def line(row: Sequence[str], *, markdown: bool) -> str:
    """Return a row of the table."""
    if markdown:
        return f"| {' | '.join(row)} |"
    return "  ".join(f"{cell:{width}}" for cell, width in zip(row, WIDTHS, strict=True)).rstrip()


def measured(name: str, step: Instance, percent: int, methods: Sequence[str], time_limit: float) -> Iterator[tuple[str, ...]]:
    """Yield the cells for greedy, then for each of the methods."""
    instance = step.with_budget(step.peak * percent // 100)
    bound = lower_bound(instance).bound
    if bound is None:
        yield (name, f"{percent} %", "", "none", "", "", "none", "no schedule fits, which is proven")
        return
    first = solve(instance, "greedy")
    yield cells(name, percent, first, bound, first.runtime)
    for method in methods:
        yield cells(name, percent, solve(instance, method, time_limit=time_limit), bound, first.runtime)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"by default {', '.join(MODELS)}")
    parser.add_argument("--methods", default="auto,cbc,highs,cp-sat")
    parser.add_argument("--budgets", default="50", help="percentages of the unconstrained peak")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each exact method")
    parser.add_argument("--markdown", action="store_true", help="print a table for documents")
    options = parser.parse_args(arguments)
    methods = [method for method in options.methods.split(",") if method]
    print(line(HEAD, markdown=options.markdown))
    if options.markdown:
        print(line(["---"] * len(HEAD), markdown=True))
    for model in options.models or MODELS:
        for name, step in instances(model):
            for percent in map(int, options.budgets.split(",")):
                for row in measured(name, step, percent, methods, options.time_limit):
                    print(line(row, markdown=options.markdown), flush=True)


if __name__ == "__main__":
    main()
