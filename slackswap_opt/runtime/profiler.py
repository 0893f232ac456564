"""From a training step as PyTorch runs it to a profile: `profile` a callable, or put a `Profiler` around training steps."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from slackswap_opt.hardware import Hardware
from slackswap_opt.instance import Link
from slackswap_opt.runtime.copies import OnHost
from slackswap_opt.runtime.durations import OnDevice, clocked
from slackswap_opt.runtime.fake import profile_fake
from slackswap_opt.runtime.guard import Leave, Restore, same_random_numbers
from slackswap_opt.runtime.lifetimes import Lifetimes
from slackswap_opt.runtime.passes import Pass, ProfileError, run_once, until_equal
from slackswap_opt.runtime.profile import Profile, device_of_step, profile_of
from slackswap_opt.runtime.trace import Trace

DEFAULT_LINK = Link(25_000_000_000, 25_000_000_000, 10_000)
"""What the link of an instance is until it is measured or chosen: PCIe 4.0 x16 as it is commonly reached."""


def profile(
    step: Callable[[], Any],
    *,
    hardware: str | Hardware | None = None,
    name: str = "step",
    link: Link | None = None,
    timed: bool = True,
) -> Profile:
    """Run a training step a few times and return what it does.

    The step runs with everything that autograd saves swapped to host memory at once, until two runs in a row did the same, so
    that what a first run does once does not count. Gradients, buffers, parameters and random number generators are then put
    back as they were; what the step's Python code changes in its own attributes is not.

    Parameters
    ----------
    step
        Does forward and backward, such as ``lambda: model(batch).loss.backward()``. Without the optimizer.
    hardware
        A device that need not be there: the step then runs on shapes alone, as `profile_fake` says. By default it runs as
        it is.
    name
        Of the instance.
    link
        Of the instance; by default that of `hardware`, else `DEFAULT_LINK`.
    timed
        Whether to measure durations; otherwise they are 0.

    Raises
    ------
    ProfileError
        If the step runs no backward pass, or no two runs in a row are equal: the message names the first difference.
    InputError
        If the model is compiled, sharded or on the meta device.
    """
    if hardware is not None:
        return profile_fake(lambda: step, hardware, name=name, link=link)
    measure = OnDevice(timed=timed)
    restored: tuple[str, ...] = ()
    total = 0

    def run(previous: Trace | None) -> Trace:
        nonlocal restored, total
        guard = Restore()
        try:
            trace = run_once(step, measure, guard, OnHost())
            if timed and previous is not None and not previous.difference(trace):
                total = _measured(step, trace, guard)
        finally:
            restored = guard.put_back()
        return trace

    trace, steps = until_equal(run)
    return profile_of(trace, name, link or DEFAULT_LINK, steps=steps, restored=restored, total=total)


class Profiler:
    """Profiles the steps of a training as they run, without changing their results.

    Backward may run inside of `step`, or after it. Results are those of plain training, bit for bit.

    Parameters
    ----------
    name, link, timed
        As for `profile`.

    Examples
    --------
    >>> profiler = Profiler()  # doctest: +SKIP
    >>> for batch in loader:
    ...     with profiler.step():
    ...         loss = model(batch).loss
    ...     loss.backward()
    ...     optimizer.step()
    >>> profiler.profile().instance.save("step.json")
    """

    def __init__(self, *, name: str = "step", link: Link | None = None, timed: bool = True) -> None:
        self._name, self._link = name, link or DEFAULT_LINK
        self._measure = OnDevice(timed=timed)
        self._pass: Pass | None = None
        self._traces: list[Trace] = []
        self._steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context for the forward pass of a step; what ran before belongs to the step before."""
        self._finish()
        self._pass = Pass(self._measure, Leave(), OnHost())
        self._pass.begin()
        self._steps += 1
        with self._pass.active():
            yield

    def profile(self) -> Profile:
        """End the last step and return its profile.

        Raises
        ------
        ProfileError
            If fewer than two steps ran, or the last two differ.
        """
        self._finish()
        if len(self._traces) < 2:
            raise ProfileError(f"two equal steps make a profile, but only {self._steps} ran; run more of them")
        if difference := self._traces[0].difference(self._traces[1]):
            raise ProfileError(f"the last two steps differ: {difference}; run more steps, or steps on batches of one shape")
        return profile_of(self._traces[1], self._name, self._link, steps=self._steps)

    def _finish(self) -> None:
        if self._pass is not None:
            self._traces = [*self._traces[-1:], self._pass.end()]
            self._pass = None


def _measured(step: Callable[[], Any], trace: Trace, guard: Restore) -> int:
    """Return the nanoseconds of a plain step, the shorter of two, or 0 if there is no room for it."""
    device = device_of_step(trace)
    if Lifetimes(trace, device).instance("", DEFAULT_LINK).peak * 5 // 4 > _free(device):
        return 0
    durations = []
    for _ in range(2):
        guard.put_back(keep=True)
        with same_random_numbers():
            durations.append(clocked(step, device)[1])
    return min(durations)


def _free(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
