"""Host memory for the copies of a program: one block, in which every copy has its place before the first step runs.

A copy needs its place from its offload to the arrival of its last prefetch. Copies whose times do not overlap may share bytes.
"""

import weakref
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from slackswap_opt.instance import Instance
from slackswap_opt.runtime.transfers import Slot
from slackswap_opt.schedule import Action, Schedule

ALIGNMENT = 256
"""Bytes: places begin at multiples, where copies by direct memory access are fastest."""


class Stay(NamedTuple):
    """A copy on the host: the instructions from which and to which it is there, and its bytes."""

    offload: int
    end: int
    size: int


def stays(instance: Instance, schedule: Schedule) -> list[Stay]:
    """Return the copies on the host under a schedule, in the order of their offloads."""
    offloaded: dict[int, int] = {}
    ends: dict[int, int] = {}
    arriving: set[int] = set()
    next_run = 0
    for n, (action, target) in enumerate(schedule.instructions):
        arrived: Iterator[int] = iter(())
        if action is Action.OFFLOAD:
            offloaded[target] = n
            ends[n] = len(schedule.instructions)
        elif action is Action.PREFETCH:
            arriving.add(target)
            ends[offloaded[target]] = len(schedule.instructions)
        elif action is Action.RUN:
            wanted = instance.wanted[target] if target == next_run else instance.operations[target].reads
            next_run += target == next_run
            arrived = (i for i in wanted if i in arriving)
        elif action is Action.DROP and target in arriving:
            arrived = iter((target,))
        for i in tuple(arrived):
            arriving.remove(i)
            ends[offloaded[i]] = n
    targets = schedule.instructions
    return [Stay(n, end, instance.tensors[targets[n].target].size) for n, end in ends.items()]


def pack(copies: list[Stay], alignment: int = ALIGNMENT) -> list[int]:
    """Return an offset in bytes for each copy, so that no two overlap in time and in place.

    The largest are placed first, each at the lowest offset where it fits.
    """
    first, last, size = (np.array([copy[k] for copy in copies], dtype=np.int64) for k in range(3))
    offsets = np.full(len(copies), -1, dtype=np.int64)
    for k in sorted(range(len(copies)), key=lambda k: (-copies[k].size, k)):
        beside = np.flatnonzero((offsets >= 0) & (first <= last[k]) & (first[k] <= last))
        offset = 0
        for j in beside[np.argsort(offsets[beside], kind="stable")]:
            if offset + size[k] <= offsets[j]:
                break
            offset = max(offset, -(-int(offsets[j] + size[j]) // alignment) * alignment)
        offsets[k] = offset
    return offsets.tolist()


class Layout(NamedTuple):
    """Where copies go: the copies, their offsets, and the bytes of all."""

    copies: list[Stay]
    offsets: list[int]
    size: int


def layout(instance: Instance, schedule: Schedule) -> Layout:
    """Return where the copies of a schedule go in one block of host memory."""
    copies = stays(instance, schedule)
    offsets = pack(copies)
    size = max((offset + copy.size for offset, copy in zip(offsets, copies, strict=True)), default=0)
    return Layout(copies, offsets, size)


class Pool:
    """The block, and where in it each copy goes.

    Parameters
    ----------
    layouts
        Of the schedules that use it, one at a time.
    device
        Where the step runs: for a CUDA device the block is locked in physical memory, so that copies can overlap.

    Attributes
    ----------
    size
        Bytes of the block.
    slots
        For each layout the place of each copy, by the position of its offload in the schedule.
    """

    def __init__(self, layouts: Sequence[Layout], device: torch.device) -> None:
        self.size = max((layout.size for layout in layouts), default=0)
        self._block = torch.empty(self.size, dtype=torch.uint8)
        if device.type == "cuda" and self.size:
            _lock(self._block)
        self.slots: tuple[Mapping[int, Slot], ...] = tuple(_slots(layout, self._block) for layout in layouts)


def _slots(layout: Layout, block: torch.Tensor) -> dict[int, Slot]:
    slots: dict[int, Slot] = {}
    tenants = _Tenants()
    for copy, offset in zip(layout.copies, layout.offsets, strict=True):
        slot = Slot(block[offset : offset + copy.size])
        slot.shared = tenants.replace(offset, offset + copy.size, slot)
        slots[copy.offload] = slot
    return slots


class _Tenants:
    """The latest slot at each byte, as stretches: `starts[k]` to `starts[k + 1]` is `latest[k]`'s."""

    def __init__(self) -> None:
        self.starts = [0]
        self.latest: list[Slot | None] = [None]

    def replace(self, start: int, end: int, slot: Slot) -> list[Slot]:
        """Put `slot` at some bytes and return those that were there."""
        if start == end:
            return []
        low, high = (self._split(at) for at in (start, end))
        before = {id(tenant): tenant for tenant in self.latest[low:high] if tenant is not None}
        self.starts[low:high], self.latest[low:high] = [start], [slot]
        return list(before.values())

    def _split(self, at: int) -> int:
        """Return the stretch that begins at byte `at`, made if there is none."""
        k = bisect_right(self.starts, at) - 1
        if self.starts[k] < at:
            k += 1
            self.starts.insert(k, at)
            self.latest.insert(k, self.latest[k - 1])
        return k


def _lock(block: torch.Tensor) -> None:
    """Lock a block of ordinary memory, of which exactly its bytes are charged: pinning allocators round to powers of two."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address = block.data_ptr()
    torch.cuda.check_error(runtime.cudaHostRegister(address, block.nbytes, 0))
    weakref.finalize(block.untyped_storage(), lambda: runtime.cudaHostUnregister(address))
