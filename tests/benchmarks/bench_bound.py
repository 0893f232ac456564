"""How long certified bounds take and how near greedy is: `python tests/benchmarks/bench_bound.py [NAME ...] [--budgets 20,50]`.

Without names: the three transformers, ResNet-50, and the profiled steps of the library (up to 7,786 operations). Each line has
the retained throughput that greedy reaches, the bound that no schedule exceeds, the gap, and the time that it took to build and
solve the model and to verify the certificate. With `--switches`, what each reduction of presolve gains and costs instead.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from slackswap_opt import Instance, load, solve
from slackswap_opt.formulations.certificate import lower_bound, verify
from slackswap_opt.formulations.presolve import Reductions
from slackswap_opt.formulations.slack import SlackModel

Value = TypeVar("Value")
NAMES = ["bert-large", "gpt2-xl", "llama-7b", "resnet-50"]
NAMES += [f"library/{name}" for name in ("bert-large", "gpt2-xl", "llama-7b", "moe", "resnet-50", "unet")]


def timed(call: Callable[[], Value]) -> tuple[Value, str]:
    """Return what a call returns, and its wall and processor time."""
    wall, processor = time.perf_counter(), time.process_time()
    value = call()
    return value, f"{time.perf_counter() - wall:5.2f} s ({time.process_time() - processor:5.2f} of the processor)"


def bound_of(instance: Instance, name: str, percent: int) -> None:
    """Print greedy's result, the bound, and the times."""
    result = solve(instance, budget=f"{percent}%")
    certificate, solving = timed(partial(lower_bound, result.instance))
    _, verifying = timed(partial(verify, result.instance, certificate))
    if certificate.bound is None or result.makespan is None:
        print(f"{name:20} {percent:3} %: {result.status}, bound {certificate.bound}; {solving}", flush=True)
        return
    gap = (result.makespan - certificate.bound) / result.makespan
    bound = result.ideal / certificate.bound
    print(
        f"{name:20} {percent:3} %: greedy {result.retained:8.4%}, bound {bound:8.4%}, gap {gap:7.4%}; "
        f"{len(instance.operations)} operations, {solving}, verified in {verifying}",
        flush=True,
    )


def switches_of(instance: Instance, name: str, percent: int) -> None:
    """Print the size, the time and the bound of the model under different reductions."""
    instance = instance.with_budget(instance.peak * percent // 100)
    usual = Reductions.for_bound(instance)
    small = usual.negligible
    for reductions in (
        Reductions(merge=False),
        Reductions(),
        Reductions(negligible=small),
        *(Reductions(negligible=small, rows=rows) for rows in (512, 256, 128, 64)),
        *(Reductions(negligible=small, rows=256, checkpoints=checkpoints) for checkpoints in (0, 4)),
    ):
        model, building = timed(partial(SlackModel, instance, reductions=reductions))
        certificate, solving = timed(partial(lower_bound, instance, reductions=reductions))
        program = model.program
        retained = "none fits" if certificate.bound is None else f"{instance.ideal / certificate.bound:.4%}"
        print(
            f"{name} {percent} % {reductions}\n    {len(program.variables)} columns, {len(program.rows)} rows, "
            f"{sum(len(row.columns) for row in program.rows)} coefficients; built in {building}, in all {solving}: {retained}",
            flush=True,
        )


def main() -> None:
    """Read the arguments and print a line for each bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--budgets", default="50", help="percent of the unconstrained peak")
    parser.add_argument("--switches", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.names:
        for percent in map(int, arguments.budgets.split(",")):
            (switches_of if arguments.switches else bound_of)(load(name), name, percent)


if __name__ == "__main__":
    main()
