"""Certified gaps of exact methods and of greedy: `python tests/benchmarks/bench_solvers.py [--methods M,...] [--models ...]`.

A row a model, budget and method: the gap in percentage points of the makespan against a bound that is certified once for all
methods, the time that the method took as a multiple of greedy's, and what the solver said. Methods run one after the other.
"""

import argparse
from collections.abc import Sequence

from slackswap_opt import Result, load, solve
from slackswap_opt.formulations.certificate import lower_bound
from slackswap_opt.instance import Instance

MODELS = ("bert-large", "gpt2-xl", "llama-7b", "resnet-50")


def row(instance: Instance, percent: int, result: Result, bound: int, unit: int) -> str:
    """Return the line for one result; `unit` is the nanoseconds that greedy took."""
    gap = f"{100 * (result.makespan - bound) / result.makespan:8.4f}" if result.makespan else "    none"
    times = f"{result.runtime / unit:7.1f}x"
    return f"{instance.name:12} {percent:4d}% {result.method:8} {gap} {times}  {result.solver_status or ''} {result.message}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--methods", default="auto,cbc,highs,cp-sat")
    parser.add_argument("--budgets", default="50", help="percentages of the unconstrained peak")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each exact method")
    options = parser.parse_args(arguments)
    print("model       budget method        gap    time  solver")
    for name in options.models.split(","):
        step = load(name)
        for percent in map(int, options.budgets.split(",")):
            instance = step.with_budget(step.peak * percent // 100)
            bound = lower_bound(instance).bound
            first = solve(instance, "greedy")
            if bound is None:
                print(f"{name:12} {percent:4d}%: no plan fits")
                continue
            print(row(instance, percent, first, bound, first.runtime), flush=True)
            for method in options.methods.split(","):
                result = solve(instance, method, time_limit=options.time_limit)
                print(row(instance, percent, result, bound, first.runtime), flush=True)


if __name__ == "__main__":
    main()
