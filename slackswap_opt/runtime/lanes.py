"""Lanes of the host itself, where a step runs on the CPU: copies that are done at once, or that take as long as on a link."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from slackswap_opt.instance import Link
from slackswap_opt.runtime.transfers import Lane


class Immediate:
    """Copies at once: nothing ever has to wait."""

    def mark(self, lane: Lane) -> None:
        """Return nothing: all is done."""

    def wait(self, lane: Lane, event: None) -> None:
        """Do not wait."""

    def copy(self, lane: Lane, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes."""
        destination.copy_(source)

    def allocate(self, size: int, device: torch.device) -> torch.UntypedStorage:
        """Return new memory."""
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    def touch(self, storage: torch.UntypedStorage) -> None:
        """Note nothing."""

    def finish(self, event: None) -> None:
        """Do not wait."""

    def stamp(self, lane: Lane) -> int:
        """Return the time."""
        return time.perf_counter_ns()

    def between(self, first: int, last: int) -> int:
        """Return the nanoseconds between two times."""
        return last - first


class Passage(NamedTuple):
    """A copy on a lane: its bytes, and its start and end in nanoseconds of the clock in use."""

    lane: Lane
    size: int
    start: int
    end: int


class Rated:
    """Copies at once, and then lets compute wait as long as the copy would have taken on a link.

    Parameters
    ----------
    link
        Bandwidths, latency, and whether both directions share one lane.
    now, sleep
        The clock in nanoseconds, and what lets as many of them pass.

    Attributes
    ----------
    passages
        The copies so far.
    """

    def __init__(
        self,
        link: Link,
        *,
        now: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[int], None] = lambda nanoseconds: time.sleep(nanoseconds / 1e9),
    ) -> None:
        self.passages: list[Passage] = []
        self._link, self._now, self._sleep = link, now, sleep
        self._free = [0, 0]

    def mark(self, lane: Lane) -> int:
        """Return when everything queued on `lane` so far is done."""
        return self._now() if lane is Lane.COMPUTE else self._free[self._queue(lane)]

    def wait(self, lane: Lane, event: int) -> None:
        """Let compute sleep until `event`, or a lane begin nothing before."""
        if lane is not Lane.COMPUTE:
            self._free[self._queue(lane)] = max(event, self._free[self._queue(lane)])
        elif (delay := event - self._now()) > 0:
            self._sleep(delay)

    def copy(self, lane: Lane, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes, and keep the lane busy."""
        size = source.nbytes
        start = max(self._free[self._queue(lane)], self._now())
        duration = self._link.offload_time(size) if lane is Lane.OUT else self._link.prefetch_time(size)
        destination.copy_(source)
        self._free[self._queue(lane)] = start + duration
        self.passages.append(Passage(lane, size, start, start + duration))

    def allocate(self, size: int, device: torch.device) -> torch.UntypedStorage:
        """Return new memory."""
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    def touch(self, storage: torch.UntypedStorage) -> None:
        """Note nothing."""

    def finish(self, event: int) -> None:
        """Sleep until `event`."""
        self.wait(Lane.COMPUTE, event)

    def stamp(self, lane: Lane) -> int:
        """Return when everything queued on `lane` so far is done, or now if that is later."""
        return max(self._now(), 0 if lane is Lane.COMPUTE else self._free[self._queue(lane)])

    def between(self, first: int, last: int) -> int:
        """Return the nanoseconds between two times."""
        return last - first

    def _queue(self, lane: Lane) -> int:
        return 1 if lane is Lane.BACK and self._link.duplex else 0
