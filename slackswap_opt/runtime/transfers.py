"""Copies between a device and its host: what waits for what, on any device that has three lanes.

There are no locks here but waits between lanes: compute, copies out, copies back. The rules, each with what it prevents:

- a copy out waits for compute, which may still be writing its source;
- compute waits for the end of a copy out before it gives up the source, whose memory it may then use for something else;
- a copy back waits for compute, which may still be using what was in the memory of its destination before;
- a copy back waits for the copy out of the same tensor;
- compute waits for the end of a copy back before it reads the destination;
- a copy out waits for the copy back that last read its part of the host's memory.

The source of a copy under way and its destination are referred to here until compute has waited, so that an allocator which
knows of compute only cannot hand them out too early.
"""

import time
import weakref
from enum import IntEnum
from typing import Any, Protocol

import torch


class Lane(IntEnum):
    """Where work is queued: first in, first out on each."""

    COMPUTE = 0
    OUT = 1
    BACK = 2


class Lanes(Protocol):
    """What a device offers for copies."""

    def mark(self, lane: Lane) -> Any:
        """Return an event that has happened once everything queued on `lane` so far is done."""

    def wait(self, lane: Lane, event: Any) -> None:
        """Let nothing queued on `lane` from now on begin before `event` has happened."""

    def copy(self, lane: Lane, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of bytes."""

    def allocate(self, size: int, device: torch.device) -> torch.UntypedStorage:
        """Return device memory that compute may use from now on."""

    def touch(self, storage: torch.UntypedStorage) -> None:
        """Note that compute has used the storage until now, or that from now on its memory may serve something else."""

    def finish(self, event: Any) -> None:
        """Return once `event` has happened."""

    def stamp(self, lane: Lane) -> Any:
        """Return the moment at which everything queued on `lane` so far is done, or now if that is later."""

    def between(self, first: Any, last: Any) -> int:
        """Return the nanoseconds from one moment to another; waits until both have come."""


class Slot:
    """A part of the host's memory.

    Attributes
    ----------
    contents
        Its bytes.
    shared
        The slots that have some of them too, and are done with them before.
    read
        The end of the copy back that last read it, or None.
    copy
        A weak reference to the copy that is in it, or None.
    """

    __slots__ = ("contents", "copy", "read", "shared")

    def __init__(self, contents: torch.Tensor) -> None:
        self.contents = contents
        self.shared: list[Slot] = []
        self.read: Any = None
        self.copy: weakref.ref[Copy] | None = None


class Copy:
    """What the host has of a storage.

    Attributes
    ----------
    slot
        Where.
    state
        How many of the storage's writers had run.
    out
        The end of the copy out.
    back
        The end of the latest copy back, or None.
    """

    __slots__ = ("__weakref__", "back", "out", "slot", "state")

    def __init__(self, slot: Slot, state: int) -> None:
        self.slot, self.state = slot, state
        self.out: Any = None
        self.back: Any = None


class Transfers:
    """Queues copies and waits.

    Parameters
    ----------
    lanes
        The device's.

    Attributes
    ----------
    offloaded, prefetched
        Bytes moved so far.
    offload_wait, prefetch_wait
        Nanoseconds that the host has spent letting compute wait: all of the waiting where the host computes, none where a
        device waits by itself.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = lanes
        self.offloaded = self.prefetched = self.offload_wait = self.prefetch_wait = 0
        self._leaving: dict[Copy, torch.UntypedStorage] = {}
        self._arriving: dict[Copy, torch.UntypedStorage] = {}

    def offload(self, storage: torch.UntypedStorage, slot: Slot, state: int) -> Copy:
        """Queue a copy of `storage` to the host and return it."""
        copy = Copy(slot, state)
        for earlier in (slot, *slot.shared):
            self._vacate(earlier)
        slot.copy = weakref.ref(copy)
        self.lanes.touch(storage)
        self.lanes.wait(Lane.OUT, self.lanes.mark(Lane.COMPUTE))
        self.lanes.copy(Lane.OUT, slot.contents, all_bytes(storage))
        copy.out = self.lanes.mark(Lane.OUT)
        self._leaving[copy] = storage
        self.offloaded += storage.nbytes()
        return copy

    def left(self, copy: Copy) -> None:
        """Let compute wait until the copy is on the host: its source may go."""
        storage = self._leaving.pop(copy, None)
        if storage is not None:
            began = time.perf_counter_ns()
            self.lanes.wait(Lane.COMPUTE, copy.out)
            self.offload_wait += time.perf_counter_ns() - began
            self.lanes.touch(storage)

    def prefetch(self, copy: Copy, size: int, device: torch.device) -> torch.UntypedStorage:
        """Queue the copy back and return its destination, for `arrived` to be called before anything uses it."""
        storage = self.lanes.allocate(size, device)
        self.lanes.wait(Lane.BACK, self.lanes.mark(Lane.COMPUTE))
        self.lanes.wait(Lane.BACK, copy.out)
        self.lanes.copy(Lane.BACK, all_bytes(storage), copy.slot.contents)
        copy.back = copy.slot.read = self.lanes.mark(Lane.BACK)
        self._arriving[copy] = storage
        self.prefetched += size
        return storage

    def arrived(self, copy: Copy) -> None:
        """Let compute wait until the copy is back."""
        storage = self._arriving.pop(copy, None)
        if storage is not None:
            began = time.perf_counter_ns()
            self.lanes.wait(Lane.COMPUTE, copy.back)
            self.prefetch_wait += time.perf_counter_ns() - began
            self.lanes.touch(storage)

    def settle(self) -> None:
        """Let compute wait for everything under way."""
        for copy in tuple(self._leaving):
            self.left(copy)
        for copy in tuple(self._arriving):
            self.arrived(copy)

    def keep_apart(self, copy: Copy) -> None:
        """Move a copy that outlives its step out of the memory that the next one uses."""
        self.lanes.finish(copy.out)
        copy.slot = Slot(copy.slot.contents.clone())

    def _vacate(self, slot: Slot) -> None:
        """Let copies out wait until nothing reads the slot, and move what is still wanted elsewhere."""
        if slot.read is not None:
            self.lanes.wait(Lane.OUT, slot.read)
        copy = slot.copy() if slot.copy is not None else None
        if copy is not None and copy.slot is slot:
            self.keep_apart(copy)


def all_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return all bytes of a storage as one tensor on it."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
