"""How greedy's time grows with the net: `python tests/benchmarks/bench_greedy.py [budget in percent] [layers ...]`.

GPT-2 XL at half of its peak, with 250 and 1000 layers (25,000 operations) unless told otherwise. Wall time is what a user waits
on an idle machine; processor time is what to compare where other things run. The judge is timed on the schedule that is found.
"""

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from slackswap_opt import Instance, load
from slackswap_opt.greedy import greedy
from slackswap_opt.simulate import simulate

Found = TypeVar("Found")
RUNS = 3


class Seconds(NamedTuple):
    """The least of several runs."""

    wall: float
    processor: float


def timed(calls: Iterable[Callable[[], Found]]) -> tuple[Found, Seconds]:
    """Return what the last of several equal calls returns, and how long they take."""
    walls, processors = [], []
    for call in calls:
        wall, processor = time.perf_counter(), time.process_time()
        found = call()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return found, Seconds(min(walls), min(processors))


def step(layers: int, percent: int) -> Instance:
    """Return a step of which nothing is known yet but its peak."""
    instance = load("gpt2-xl", layers=layers)
    return instance.with_budget(instance.peak * percent // 100)


def main() -> None:
    """Print a line for each size, and how much longer the last takes than the first."""
    numbers = [int(text) for text in sys.argv[1:]]
    percent, layers = (numbers[0], numbers[1:]) if numbers else (50, [])
    times = []
    for count in layers or [250, 1000]:
        found, taken = timed(partial(greedy, step(count, percent)) for _ in range(RUNS))
        schedule, timeline = found.placement
        _, judged = timed([partial(simulate, step(count, percent), schedule)] * RUNS)
        times.append(taken)
        instructions = len(schedule.instructions)
        print(f"{count} layers, {instructions} instructions, retained {timeline.retained:.2%}")
        print(f"    greedy {taken.wall:.2f} s, {taken.processor:.2f} s of the processor")
        print(
            f"    judge {instructions / judged.wall:,.0f} instructions/s, {instructions / judged.processor:,.0f} by processor"
        )
    ratios = (times[-1].wall / times[0].wall, times[-1].processor / times[0].processor)
    print(f"The last takes {ratios[0]:.1f} times as long as the first, {ratios[1]:.1f} times by processor.")


if __name__ == "__main__":
    main()
