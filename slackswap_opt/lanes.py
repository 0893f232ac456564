"""When swapped tensors travel: offloads as early as the lane allows, prefetches as late as is in time, within the budget."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.instance import Instance
from slackswap_opt.plan import Decision
from slackswap_opt.runlist import PlacementError, RunList, Stay


@dataclass(slots=True)
class Swap:
    """A tensor's way to the host and back. Positions are numbers of events: at position `e` means just before event `e`.

    Attributes
    ----------
    tensor, size
        Its number and its bytes.
    out, back
        The stay that it leaves and the one that it comes back for.
    copies
        Whether an offload is needed; not if an older copy on the host is still good.
    gone_by
        The position by which it must be gone, since a re-run writes it there; `back.first` if none does.
    back_after
        The first position at which it may be fetched.
    successor
        The next swap of the same tensor that needs no offload of its own, or None.
    host_until
        The last event that waits for this host copy.
    issue, evict, fetch
        The chosen positions of offload, eviction and prefetch.
    kept
        Whether there was no time or need to leave: the tensor stays through.
    """

    tensor: int
    size: int
    out: Stay
    back: Stay
    copies: bool
    gone_by: int
    back_after: int
    successor: "Swap | None" = None
    host_until: int = 0
    issue: int = -1
    evict: int = -1
    fetch: int = -1
    kept: bool = False


def swaps_of(instance: Instance, runs: RunList) -> list[Swap]:
    """Return every swap of a run list, with no positions chosen yet, by the event after which it leaves."""
    swaps: list[Swap] = []
    for stays in runs.stays:
        out: Stay | None = None
        gone_by = back_after = 0
        earlier: Swap | None = None
        for stay in stays:
            if stay.fetched and out is not None:
                several = len(instance.writers[stay.tensor]) > 1
                copies = earlier is None or (several and out.dirty)
                swap = Swap(
                    stay.tensor,
                    instance.tensors[stay.tensor].size,
                    out,
                    stay,
                    copies,
                    gone_by or stay.first,
                    max(back_after, out.last + 1),
                )
                if earlier is not None and not copies:
                    earlier.successor = swap
                swaps.append(swap)
                earlier = swap
            if stay.leaves is Decision.SWAP:
                out, gone_by, back_after = stay, 0, 0
            elif out is not None:
                gone_by, back_after = gone_by or stay.first, stay.last + 1
    for swap in swaps:
        last = swap
        while last.successor is not None:
            last = last.successor
        swap.host_until = last.back.first
    return sorted(swaps, key=lambda swap: (swap.out.last, swap.tensor))


class OffloadLane:
    """One sweep over the events that issues copies out, first to leave first, and evicts what is done or must give way.

    Attributes
    ----------
    starts
        For each event when it starts (ns), with the waits for copies out that the budget forces.
    """

    def __init__(
        self, instance: Instance, runs: RunList, swaps: list[Swap], memory: NDArray[np.int64], axis: list[int]
    ) -> None:
        self.instance = instance
        self.runs = runs
        self.swaps = swaps
        self.memory = memory
        self.axis = axis
        self.durations = [instance.operations[t].duration for t in runs.events]
        self.starts: list[int] = []
        self.lane = self.clock = 0
        self.lingering = 0
        """Bytes of tensors past their last use that are not evicted yet."""
        self.ready: list[tuple[int, int]] = []
        """Offloads that may be issued, by the event after which they leave, then by number."""
        self.leaving: list[tuple[int, int]] = []
        """Lingering tensors whose offload is issued, by its end."""
        self.finish: list[int] = [-1] * len(swaps)
        self.host = 0
        self.host_ends: list[tuple[int, int]] = []
        self.number = {id(swap): n for n, swap in enumerate(swaps)}

    def sweep(self) -> None:
        """Choose issue and eviction of every swap, or that it is kept."""
        events = len(self.durations)
        agenda: dict[int, list[int]] = defaultdict(list)
        for n, swap in enumerate(self.swaps):
            for e in {swap.out.written + 1, swap.out.last + 1, swap.gone_by, swap.back.first}:
                agenda[e].append(n)
        limit = self.instance.budget
        held = self.memory.tolist()
        for e in range(events):
            self.clock = max(self.clock, self.axis[e])
            while self.host_ends and self.host_ends[0][0] < e:
                self.host -= heappop(self.host_ends)[1]
            for n in agenda.get(e, ()):
                self.attend(n, e)
            self.issue_before_end(e)
            while self.leaving and self.leaving[0][0] <= self.clock:
                self.evict(heappop(self.leaving)[1], e)
            while limit is not None and held[e] + self.lingering > limit:
                self.make_room(e)
                self.issue_before_end(e)
            self.starts.append(self.clock)
            self.clock += self.durations[e]
        self.starts.append(self.clock)

    def attend(self, n: int, e: int) -> None:
        """What position `e` means for swap `n`: its copy may start, its last use is over, it must be gone, it comes back."""
        swap = self.swaps[n]
        if swap.kept or swap.evict >= 0:
            return
        if e == swap.out.written + 1 and swap.copies:
            heappush(self.ready, (swap.out.last, n))
        if e == swap.out.last + 1:
            if not swap.copies:
                swap.evict = e
                return
            self.lingering += swap.size
            if self.finish[n] >= 0:
                heappush(self.leaving, (self.finish[n], n))
        if e == swap.back.first:
            self.keep(n, e)
        elif e == swap.gone_by:
            self.wait(n, e)

    def keep(self, n: int, e: int) -> None:
        """Let swap `n` stay through, since it is wanted before it has left; a later swap must then copy for itself."""
        swap = self.swaps[n]
        swap.kept = True
        self.lingering -= swap.size
        if swap.successor is not None:
            swap.successor.copies = True
            if swap.successor.out.written < e:
                heappush(self.ready, (swap.successor.out.last, self.number[id(swap.successor)]))

    def issue_before_end(self, e: int) -> None:
        """Issue the ready offloads that would start before event `e` ends."""
        while self.ready and self.lane < self.clock + self.durations[e] and self.issue_next(e):
            pass

    def issue_next(self, e: int) -> bool:
        """Issue the first of the ready offloads at position `e`; return False if the host has no room for it."""
        while self.ready and not self.waits(self.ready[0][1]):
            heappop(self.ready)
        if not self.ready:
            return False
        _, n = self.ready[0]
        if not self.host_has_room(self.swaps[n].size):
            return False
        heappop(self.ready)
        self.issue(n, e)
        return True

    def waits(self, n: int) -> bool:
        """Whether the offload of swap `n` is still to be issued."""
        return self.swaps[n].issue < 0 and not self.swaps[n].kept

    def host_has_room(self, size: int) -> bool:
        """Whether the host budget allows another copy of `size` bytes now."""
        return self.instance.host_budget is None or self.host + size <= self.instance.host_budget

    def issue(self, n: int, e: int) -> None:
        """Queue the offload of swap `n` on the lane."""
        swap = self.swaps[n]
        swap.issue = e
        self.host += swap.size
        heappush(self.host_ends, (swap.host_until, swap.size))
        self.lane = self.finish[n] = max(self.lane, self.clock) + self.instance.link.offload_time(swap.size)
        if e > swap.out.last:
            heappush(self.leaving, (self.finish[n], n))

    def evict(self, n: int, e: int) -> None:
        """Free the tensor of swap `n`, if it has not left yet."""
        swap = self.swaps[n]
        if not swap.kept and swap.evict < 0:
            swap.evict = e
            self.lingering -= swap.size

    def wait(self, n: int, e: int) -> None:
        """Stall compute until swap `n` is on the host, and evict it."""
        swap = self.swaps[n]
        if swap.issue < 0:
            if not self.host_has_room(swap.size):
                name, limit = self.instance.tensors[swap.tensor].name, self.instance.host_budget
                raise PlacementError(f"tensor '{name}' must leave, but the host's budget of {limit} bytes has no room")
            self.issue(n, e)
        self.clock = max(self.clock, self.finish[n])
        self.evict(n, e)

    def make_room(self, e: int) -> None:
        """Wait for the offload that ends first among the lingering tensors."""
        while self.leaving:
            _, n = heappop(self.leaving)
            if not self.swaps[n].kept and self.swaps[n].evict < 0:
                self.wait(n, e)
                return
        for _, n in sorted(self.ready):
            swap = self.swaps[n]
            if swap.out.last < e and self.waits(n) and self.host_has_room(swap.size):
                self.wait(n, e)
                return
        name, limit = self.instance.operations[self.runs.events[e]].name, self.instance.host_budget
        raise PlacementError(f"tensors must leave for operation '{name}', but the host's budget of {limit} bytes has no room")


def fetch_in_time(instance: Instance, swaps: list[Swap], memory: NDArray[np.int64], starts: list[int]) -> None:
    """Choose when each swapped tensor is fetched, and add what copies hold to `memory`.

    The latest starts are found backwards from the last deadline; each fetch is issued at the last event that starts by then, or
    later where the budget has no room for the tensor all the way to its use.
    """
    for swap in swaps:
        end = swap.back.first if swap.kept else swap.evict
        memory[swap.out.last + 1 : end] += swap.size
    fetched = sorted((swap for swap in swaps if not swap.kept), key=lambda swap: (swap.back.first, swap.tensor))
    latest: list[int] = []
    lane = starts[-1]
    for swap in reversed(fetched):
        lane = min(lane, starts[swap.back.first]) - instance.link.prefetch_time(swap.size)
        latest.append(lane)
    for swap, start in zip(fetched, reversed(latest), strict=True):
        need = swap.back.first
        wished = bisect_right(starts, start, hi=need) - 1
        fetch = min(max(wished, swap.evict, swap.back_after), need)
        if instance.budget is not None:
            full = np.flatnonzero(memory[fetch:need] > instance.budget - swap.size)
            if full.size:
                fetch += int(full[-1]) + 1
        memory[fetch:need] += swap.size
        swap.fetch = fetch
        on_host = not swap.copies or swap.successor is None
        swap.kept = fetch == swap.evict and swap.gone_by == need and on_host
