"""Which kinds of steps a training has: steps are profiled as they run, and two that were alike make a profile."""

import logging
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from slackswap_opt.runtime.copies import OnHost
from slackswap_opt.runtime.durations import OnDevice
from slackswap_opt.runtime.guard import Leave
from slackswap_opt.runtime.passes import Pass
from slackswap_opt.runtime.profile import Profile, profile_of
from slackswap_opt.runtime.profiler import DEFAULT_LINK
from slackswap_opt.runtime.trace import Trace

REMEMBERED = 8
"""How many steps that came once are remembered."""

PATIENCE = 16
"""How many steps are profiled in vain before no more are, if there is a plan already."""

log = logging.getLogger(__name__)


class Lesson(NamedTuple):
    """A profile, and whether leaves had gradients when its step began, or None if that was not seen.

    Steps that only differ in that have the same forward pass: nothing else tells them apart in time.
    """

    profile: Profile
    had_gradients: bool | None


class _FirstLeaf(Leave):
    """Notes a leaf that gets a gradient."""

    def __init__(self) -> None:
        self.leaf: weakref.ref[torch.Tensor] | None = None

    def before_gradient(self, leaf: torch.Tensor) -> None:
        """Note the first one."""
        if self.leaf is None:
            self.leaf = weakref.ref(leaf)


class Learner:
    """Profiles steps of a training.

    Parameters
    ----------
    timed
        Whether to measure durations; otherwise they are 0.

    Attributes
    ----------
    steps
        How many were profiled.
    """

    def __init__(self, *, timed: bool = True) -> None:
        self.steps = 0
        self._wanted = self._surprises = 0
        self._measure = OnDevice(timed=timed)
        self._pass: Pass | None = None
        self._guard = _FirstLeaf()
        self._had_gradients: bool | None = None
        self._traces: deque[Trace] = deque(maxlen=REMEMBERED)
        self._in_vain = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context for the forward pass of a step to be profiled."""
        self._had_gradients = self.sees_gradients()
        traced = self._pass = Pass(self._measure, self._guard, OnHost())
        traced.begin()
        completed = False
        try:
            with traced.active():
                yield
            completed = True
        finally:
            if not completed:
                self.discard()

    @property
    def wants_another(self) -> bool:
        """Whether the next step should be profiled, since some did not fit what is known."""
        return self._wanted > 0

    @property
    def patient(self) -> bool:
        """Whether not too many steps were profiled in vain."""
        return self._in_vain < PATIENCE

    def sees_gradients(self) -> bool | None:
        """Return whether leaves have gradients now, or None if none is known yet."""
        leaf = self._guard.leaf() if self._guard.leaf is not None else None
        return None if leaf is None else leaf.grad is not None

    def wonder(self) -> None:
        """Note that a step did not fit what is known."""
        # One more at each surprise: else kinds of steps that take turns could hide behind those that are known.
        self._surprises += 1
        self._wanted = min(self._surprises, PATIENCE - self._in_vain)

    def discard(self) -> None:
        """Forget the step that is being profiled."""
        if self._pass is not None:
            self._pass.end()
            self._pass = None

    def learned(self, known: frozenset[str]) -> Lesson | None:
        """End the step that was profiled, if any, and return its profile if it is new and there was one like it before.

        Parameters
        ----------
        known
            Fingerprints that are not new.
        """
        if self._pass is None:
            return None
        trace, self._pass = self._pass.end(), None
        self.steps += 1
        self._wanted -= 1
        self._in_vain += 1
        twin = next((earlier for earlier in self._traces if not earlier.difference(trace)), None)
        profile = profile_of(trace, f"step of {len(trace.calls)} operations", DEFAULT_LINK, steps=self.steps)
        if profile.instance.fingerprint in known:
            return None
        if twin is None:
            difference = self._traces[-1].difference(trace) if self._traces else ""
            log.info("step %d was profiled%s", self.steps, f"; unlike the one before: {difference}" if difference else "")
            self._traces.append(trace)
            return None
        self._traces.remove(twin)
        self._wanted = self._surprises = self._in_vain = 0
        return Lesson(profile, self._had_gradients)
