"""What a plan decides: the idle intervals that matter, as arrays, what recomputing each takes, and the cheapest first."""

from collections.abc import Set
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.instance import Instance

Integers = NDArray[np.int64]

CLOSURE_LIMIT = 500
"""Operations in a closure beyond which recomputation is not considered: keeps the method near-linear on long dead chains."""


class Candidates:
    """The idle intervals of an instance that are to be decided, as arrays.

    Parameters
    ----------
    instance
        What is planned.
    swap, recompute
        Whether plans may swap, and whether they may recompute.

    Attributes
    ----------
    memory, durations
        For each operation the bytes that are alive if everything is kept, and its nanoseconds.
    numbers
        For each candidate its place among the instance's idle intervals.
    tensor, start, end, size, produced
        For each candidate its tensor, its interval, its bytes, and the operation that first writes the tensor.
    can_swap
        For each candidate whether it may be swapped.
    closures, using
        For each candidate that can be recomputed the operations to run again; for each operation the candidates whose closure
        has it.
    out_work, in_work
        For each candidate the nanoseconds of its copies.
    small
        For each candidate whether a copy takes longer to start than to move: such tensors are swapped last.
    """

    def __init__(self, instance: Instance, *, swap: bool, recompute: bool) -> None:
        self.instance = instance
        self.budget = instance.budget if instance.budget is not None else instance.peak
        self.memory = np.array(instance.keep_all_memory, dtype=np.int64)
        self.durations = np.array([operation.duration for operation in instance.operations], dtype=np.int64)
        over = np.concatenate(([0], np.cumsum(self.memory > self.budget)))
        self.numbers = [
            g
            for g, (tensor, start, end) in enumerate(instance.idle_intervals)
            if over[end] > over[start + 1] and instance.tensors[tensor].size > 0
        ]
        chosen = [instance.idle_intervals[g] for g in self.numbers]
        self.tensor = np.array([interval.tensor for interval in chosen], dtype=np.int64)
        self.start = np.array([interval.start for interval in chosen], dtype=np.int64)
        self.end = np.array([interval.end for interval in chosen], dtype=np.int64)
        self.size = np.array([instance.tensors[interval.tensor].size for interval in chosen], dtype=np.int64)
        self.produced = np.array([instance.writers[interval.tensor][0] for interval in chosen], dtype=np.int64)
        self.can_swap = np.array([swap and instance.tensors[interval.tensor].swappable for interval in chosen], dtype=bool)
        self.closures: dict[int, frozenset[int]] = {}
        for c, interval in enumerate(chosen):
            if recompute and instance.can_recompute(interval):
                closure = _closure(instance, interval.tensor, interval.end)
                if closure is not None:
                    self.closures[c] = closure
        self.out_work = np.array([instance.link.offload_time(int(m)) for m in self.size], dtype=np.float64)
        self.in_work = np.array([instance.link.prefetch_time(int(m)) for m in self.size], dtype=np.float64)
        self.small = self.out_work <= 2.0 * instance.link.latency
        self.using: dict[int, list[int]] = {}
        for c, closure in self.closures.items():
            for t in closure:
                self.using.setdefault(t, []).append(c)


class RecomputeCosts:
    """What recomputing each candidate adds, given what is taken already: a heap with stale entries.

    The cost falls when a candidate that shares operations with it is taken.

    Parameters
    ----------
    candidates
        All there are.
    reruns
        Operations that run again already.
    among
        Those to choose from.
    """

    def __init__(self, candidates: Candidates, reruns: Set[int], among: Integers) -> None:
        self.candidates, self.rerun = candidates, set(reruns)
        self.later: list[int] = []
        self.of = {c: self._sum(c) for c in among.tolist() if c in candidates.closures}
        self.heap = [self._key(c) for c in self.of]
        heapify(self.heap)

    def _sum(self, c: int) -> int:
        return sum(int(self.candidates.durations[t]) for t in self.candidates.closures[c] if t not in self.rerun)

    def _key(self, c: int) -> tuple[float, int, int, int]:
        return self.of[c] / int(self.candidates.size[c]), -int(self.candidates.produced[c]), c, self.of[c]

    def cheapest(self) -> int | None:
        """Return the candidate that adds least a byte, ties to the later produced, or None if none is left."""
        while self.heap:
            *_, c, nanoseconds = heappop(self.heap)
            if self.of.get(c) == nanoseconds:
                return c
        return None

    def take(self, c: int) -> int:
        """Take a candidate, and return what it adds."""
        nanoseconds = self.of.pop(c)
        for t in self.candidates.closures[c] - self.rerun:
            self.rerun.add(t)
            for other in self.candidates.using[t]:
                if other in self.of:
                    self.of[other] -= int(self.candidates.durations[t])
                    heappush(self.heap, self._key(other))
        return nanoseconds

    def put_off(self, c: int) -> None:
        """Leave a candidate out until `bring_up`."""
        del self.of[c]
        self.later.append(c)

    def bring_up(self) -> None:
        """Put what was put off among the candidates again."""
        self.of = {c: self._sum(c) for c in self.later}
        self.heap = [self._key(c) for c in self.of]
        heapify(self.heap)


def _closure(instance: Instance, tensor: int, end: int) -> frozenset[int] | None:
    """Return the operations to run again for `tensor` just before operation `end`, if what is alive there is on the device.

    Operands whose life has ended by then are rebuilt too. None if one of them cannot be, or there are more than CLOSURE_LIMIT.
    """
    accesses, operations, writers, rebuildable = instance.accesses, instance.operations, instance.writers, instance.rebuildable
    closure: set[int] = set()
    wanted = [tensor]
    while wanted:
        i = wanted.pop()
        if not rebuildable[i] or len(closure) > CLOSURE_LIMIT:
            return None
        for t in writers[i]:
            if t not in closure:
                closure.add(t)
                for j in operations[t].reads:
                    if accesses[j][-1] < end and j != i:
                        wanted.append(j)
    return frozenset(closure)
