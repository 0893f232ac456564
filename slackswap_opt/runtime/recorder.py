"""Lanes that check what waits for what: a stand-in for streams and events, on which a forgotten wait is an error.

Every lane counts its work, and knows how much of the others' it has waited for (vector clocks). Two uses of the same bytes, at
least one of which writes, must be ordered: the later one's lane has waited for the earlier one.
"""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from slackswap_opt.runtime.transfers import Lane

Clock = tuple[int, ...]


class RaceError(AssertionError):
    """Two uses of the same bytes in no order: the message names both."""


class Use(NamedTuple):
    """Work that uses bytes: its lane, its number there, and what it does."""

    lane: Lane
    number: int
    what: str


@dataclass(slots=True)
class Region:
    """Bytes from `start` to `end`, who wrote them last, and who has read them since."""

    start: int
    end: int
    write: Use | None = None
    reads: dict[Lane, Use] = field(default_factory=dict)


class Recorded:
    """Copies at once, and raises `RaceError` where lanes of a device could not be trusted to get the same.

    Attributes
    ----------
    checks
        How many pairs of uses on different lanes were found in order.
    """

    def __init__(self) -> None:
        self.checks = 0
        self._clocks = [[0] * len(Lane) for _ in Lane]
        self._regions: list[Region] = []

    def mark(self, lane: Lane) -> Clock:
        """Return what `lane` has done, and what it has waited for."""
        return tuple(self._clocks[lane])

    def wait(self, lane: Lane, event: Clock) -> None:
        """Put `lane` after `event`."""
        self._clocks[lane] = [max(pair) for pair in zip(self._clocks[lane], event, strict=True)]

    def copy(self, lane: Lane, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes and check both ends."""
        self._clocks[lane][lane] += 1
        self._use(lane, source.data_ptr(), source.nbytes, "reads the source of", writes=False)
        self._use(lane, destination.data_ptr(), destination.nbytes, "writes the destination of", writes=True)
        destination.copy_(source)

    def allocate(self, size: int, device: torch.device) -> torch.UntypedStorage:
        """Return memory that compute may have used for something else until now."""
        storage = torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
        self.touch(storage)
        return storage

    def touch(self, storage: torch.UntypedStorage) -> None:
        """Let compute use the storage."""
        self._clocks[Lane.COMPUTE][Lane.COMPUTE] += 1
        self._use(Lane.COMPUTE, storage.data_ptr(), storage.nbytes(), "uses", writes=True)

    def finish(self, event: Clock) -> None:
        """Put compute, which waits with the host, after `event`."""
        self.wait(Lane.COMPUTE, event)

    def stamp(self, lane: Lane) -> int:
        """Return the time."""
        return time.perf_counter_ns()

    def between(self, first: int, last: int) -> int:
        """Return the nanoseconds between two times."""
        return last - first

    def _use(self, lane: Lane, start: int, size: int, how: str, *, writes: bool) -> None:
        use = Use(lane, self._clocks[lane][lane], how)
        for region in self._regions:
            if region.start < start + size and start < region.end:
                self._check(region.write, use, size)
                for read in region.reads.values() if writes else ():
                    self._check(read, use, size)
        if writes:
            self._regions = [r for r in self._regions if not (start <= r.start and r.end <= start + size)]
            self._regions.append(Region(start, start + size, use))
        else:
            same = [r for r in self._regions if r.start == start and r.end == start + size]
            if not same:
                same.append(Region(start, start + size))
                self._regions += same
            same[0].reads[lane] = use

    def _check(self, earlier: Use | None, later: Use, size: int) -> None:
        if earlier is None or earlier.lane is later.lane:
            return
        if self._clocks[later.lane][earlier.lane] < earlier.number:
            raise RaceError(
                f"{later.lane.name} {later.what} {size} bytes without waiting for {earlier.lane.name}, "
                f"which {earlier.what} them"
            )
        self.checks += 1
