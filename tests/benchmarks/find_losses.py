"""The smallest steps on which a plan is longer than it need be: `python -m tests.benchmarks.find_losses [KIND ...]`.

A kind of loss at a time, with budget and makespans, and rows that `tests.handmade.step` reads. With `--survey N`, how often and
by how much plans are longer on so many random tiny steps.
"""

import argparse
import time
from collections.abc import Sequence

from slackswap_opt import solve
from tests.small_steps import spelled
from tests.smallest_losses import KINDS, makespans, smallest, summary, survey


def print_survey(number: int) -> None:
    """Print how often and by how much greedy, `auto` and the best plans are longer than need be."""
    steps = survey(number)
    rows = [row for _, row in steps]
    # Where greedy's plan is the best, so is that of `auto`, which begins from it.
    auto = [row.greedy if row.greedy == row.plans else solve(step, "auto").makespan for step, row in steps]
    print(f"{len(rows)} of {number} steps searched, the ideal out of reach in {sum(row.ideal != row.all for row in rows)}")
    print(f"greedy against the best plan: {summary((row.greedy, row.plans) for row in rows)}")
    print(f"auto against the best plan: {summary((makespan, row.plans) for makespan, row in zip(auto, rows, strict=True))}")
    print(f"the best plan against the best schedule: {summary((row.plans, row.all) for row in rows)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print an instance of each kind, with what its makespans are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"one of {', '.join(KINDS)}; by default all")
    parser.add_argument("--examples", type=int, default=1000, help="of each size, by default 1000")
    parser.add_argument("--survey", type=int, metavar="N", help="look at so many random tiny steps instead")
    options = parser.parse_args(arguments)
    if unknown := set(options.kinds) - set(KINDS):
        parser.error(f"unknown kind {min(unknown)!r}; choose from {', '.join(KINDS)}")
    if options.survey:
        print_survey(options.survey)
        return
    for kind in options.kinds or KINDS:
        began = time.monotonic()
        instance = smallest(kind, options.examples)
        print(f"{kind}, in {time.monotonic() - began:.0f} s: {instance and (instance.budget, *makespans(instance))}")
        if instance:
            print(*(f"    {line}" for line in spelled(instance)), sep="\n", flush=True)


if __name__ == "__main__":
    main()
