"""The largest batch that a budget holds: planned on shapes, not tried."""

from collections.abc import Callable
from typing import Any

from slackswap_opt.files import InputError
from slackswap_opt.hardware import Hardware
from slackswap_opt.result import Result
from slackswap_opt.runtime.fake import profile_fake
from slackswap_opt.solve import solve

MOST = 2**16
"""The batch beyond which none is looked for."""


def largest_batch(
    build: Callable[[int], Callable[[], Any]],
    budget: int,
    *,
    hardware: str | Hardware = "a100-40gb",
    retained: float = 0.0,
    method: str = "greedy",
) -> tuple[int, Result]:
    """Return the largest batch whose step can be planned into a budget, and its plan.

    Batches are doubled until one fails, and halved in between; a batch is taken to fit if a larger one does.

    Parameters
    ----------
    build
        Makes the step for a batch, as for `profile_fake`.
    budget
        Bytes that the step may hold.
    hardware
        The device that durations are for.
    retained
        The share of ideal throughput, from 0 to 1, that the plan must keep.
    method
        Plans each step.

    Raises
    ------
    InputError
        If even a batch of one does not fit: the message says what it needs.
    """
    if not 0 <= retained <= 1:
        raise InputError(f"'retained' is a share from 0 to 1, got {retained}")

    def plan(batch: int) -> Result:
        instance = profile_fake(lambda: build(batch), hardware, name=f"batch {batch}").instance
        return solve(instance, method, budget=budget)

    def fits(result: Result) -> bool:
        return result.retained is not None and result.retained >= retained

    best, answer = 1, plan(1)
    if not fits(answer):
        why = answer.message or f"the best plan found keeps {answer.retained} of ideal throughput, not {retained}"
        raise InputError(f"not even a batch of one fits: {why}")
    beyond = 2
    while beyond <= MOST and fits(larger := plan(beyond)):
        best, answer, beyond = beyond, larger, min(2 * beyond, MOST + 1)
    while beyond - best > 1:
        middle = (best + beyond) // 2
        if fits(result := plan(middle)):
            best, answer = middle, result
        else:
            beyond = middle
    return best, answer
