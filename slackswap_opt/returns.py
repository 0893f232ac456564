r"""What comes back early: operands of a re-run that are gone too.

Let a candidate be recomputed at the end of its idle interval. What its re-runs read there, and is recomputed as well, comes
back with it and stays until its own interval ends, since it would have to run again otherwise. On a plain chain of operations
that is ruinous: if neighbours are recomputed, the first re-run brings all of them back at once. So there must be room for what
comes back early,

$$E_t \le \alpha B \, (1 - m_t / \max_u m_u),$$

where $E_t$ are its bytes at operation $t$ and $m_t$ what keeping everything holds: for $\alpha = 1$ the right side is what is
left of the budget $B$ if as large a share of everything is kept at any time as fits at the worst. Tensors that are copied back
need some of that room, and so do the re-runs themselves: where they get too little, a smaller $\alpha$ does better.
"""

import copy
from collections.abc import Mapping

import numpy as np

from slackswap_opt.candidates import Candidates

LONGEST = 200
"""Candidates that one re-run may bring back early: keeps the search near-linear."""


class Companions:
    """Which candidates the re-runs of each candidate read while they are idle, and the other way round."""

    def __init__(self, candidates: Candidates) -> None:
        of_tensor: dict[int, list[int]] = {}
        for c, i in enumerate(candidates.tensor.tolist()):
            of_tensor.setdefault(i, []).append(c)
        self.of: dict[int, tuple[int, ...]] = {}
        self.needed_by: dict[int, list[int]] = {}
        start, end = candidates.start.tolist(), candidates.end.tolist()
        for c, closure in candidates.closures.items():
            read = {i for t in closure for i in candidates.instance.operations[t].reads}
            idle = (g for i in read for g in of_tensor.get(i, ()) if g != c and start[g] < end[c] < end[g])
            self.of[c] = tuple(sorted(idle))
            for g in self.of[c]:
                self.needed_by.setdefault(g, []).append(c)


class EarlyReturns:
    """The recomputed candidates so far, and the bytes of those that come back early.

    Parameters
    ----------
    candidates, companions
        All there are, and which of them come back with which.
    share
        The factor alpha of the room that there is.

    Attributes
    ----------
    back
        For each recomputed candidate the operation before which it is back.
    bytes
        For each operation the bytes that are back before their interval ends.
    """

    def __init__(self, candidates: Candidates, companions: Companions, share: float) -> None:
        self.candidates, self.companions = candidates, companions
        worst = max(1, int(candidates.memory.max(initial=0)))
        self.room = share * candidates.budget * (1.0 - candidates.memory / worst)
        self.back: dict[int, int] = {}
        self.bytes = np.zeros(len(candidates.memory), dtype=np.int64)

    def copy(self) -> "EarlyReturns":
        """Return a copy of its own."""
        twin = copy.copy(self)
        twin.back, twin.bytes = dict(self.back), self.bytes.copy()
        return twin

    def add(self, c: int) -> None:
        """Take candidate `c` in, whether or not there is room."""
        self._note(self._moved(c))

    def take(self, c: int) -> bool:
        """Take candidate `c` in, if there is room for all that comes back early then; return whether there is."""
        moved = self._moved(c)
        if len(moved) > LONGEST:
            return False
        before = {g: self.back[g] for g in moved if g in self.back}
        first, last = self._note(moved)
        if (self.bytes[first:last] <= self.room[first:last]).all():
            return True
        self._note({g: before.get(g, int(self.candidates.end[g])) for g in moved})
        for g in moved.keys() - before.keys():
            del self.back[g]
        return False

    def _moved(self, c: int) -> dict[int, int]:
        """Return where candidates are back that come back earlier once `c` is recomputed, itself among them."""
        needed_by = self.companions.needed_by.get(c, ())
        moved = {c: min((self.back[g] for g in needed_by if g in self.back), default=int(self.candidates.end[c]))}
        waiting = [c]
        while waiting and len(moved) <= LONGEST:
            g = waiting.pop()
            for other in self.companions.of.get(g, ()):
                back = moved.get(other, self.back.get(other))
                if back is not None and back > moved[g]:
                    moved[other] = moved[g]
                    waiting.append(other)
        return moved

    def _note(self, moved: Mapping[int, int]) -> tuple[int, int]:
        """Write down where candidates are back, and return the operations between which memory has changed."""
        first, last = len(self.bytes), 0
        for c, back in moved.items():
            old, size = self.back.get(c, int(self.candidates.end[c])), int(self.candidates.size[c])
            self.bytes[min(old, back) : max(old, back)] += size if back < old else -size
            self.back[c] = back
            first, last = min(first, old, back), max(last, old, back)
        return first, last
