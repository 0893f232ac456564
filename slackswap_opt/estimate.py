r"""How long a step takes under some decisions, estimated in a few array operations instead of placed and judged.

Copies are whole and queue on their lane, first to leave first, latest deadline last:

$$C_n = \max(C_{n-1}, w_n) + o_n, \qquad L_n = \min(L_{n+1}, d_n) - i_n,$$

where $C_n$ is the end of the $n$-th copy out, $w_n$ the time at which its tensor is written, $o_n$ and $i_n$ the lanes' times,
$L_n$ the latest start of the $n$-th copy back, $d_n$ when it is wanted. A tensor holds its bytes until $C_n$ and from $L_n$ on.
Where that exceeds the budget, compute waits for copies out. Left out are the lanes' sharing without duplex, what re-runs hold
while they run, and limits of the host.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.candidates import Integers
from slackswap_opt.drafts import KEEP, RECOMPUTE, SWAP, SlackSwap

MOST_WAITS = 12
"""Operations over budget whose waits are worked out one after the other; later ones are taken to wait no longer."""

Floats = NDArray[np.float64]
Decisions = NDArray[np.int8]


class _Lanes(NamedTuple):
    """What the lanes do: when operations start; what is copied out, until when and gone from which operation on; bytes held."""

    starts: Floats
    out: Integers
    copied: Floats
    gone: Integers
    held: Integers


class Estimate:
    """Estimates for one instance.

    Parameters
    ----------
    search
        The candidates that are decided.
    """

    def __init__(self, search: SlackSwap) -> None:
        self.of = search
        pairs = [(t, c) for c, closure in search.closures.items() for t in sorted(closure)]
        self.rerun = np.array([t for t, _ in pairs], dtype=np.int64)
        self.candidate = np.array([c for _, c in pairs], dtype=np.int64)
        self.in_order = np.lexsort((search.produced, search.start, search.tensor))

    def users(self, decisions: Decisions) -> Integers:
        """Return for each operation how many recomputed candidates need it to run again."""
        needed = self.rerun[decisions[self.candidate] == RECOMPUTE]
        return np.bincount(needed, minlength=len(self.of.durations))

    def rho(self, decisions: Decisions) -> Floats:
        """Return for each operation the nanoseconds of re-runs just before it, each run once, for the first who needs it."""
        durations, operations = self.of.durations, len(self.of.durations)
        chosen = decisions[self.candidate] == RECOMPUTE
        before = np.full(operations, operations, dtype=np.int64)
        np.minimum.at(before, self.rerun[chosen], self.of.end[self.candidate[chosen]])
        run = np.flatnonzero(before < operations)
        return np.bincount(before[run], weights=durations[run], minlength=operations).astype(np.float64)

    def overhead(self, decisions: Decisions) -> float:
        """Return the nanoseconds that the step takes beyond the ideal: re-runs, and waits for memory."""
        rho = self.rho(decisions)
        lanes = self._lanes(decisions, rho)
        return float(rho.sum()) + self._wait(lanes)

    def free(self, decisions: Decisions) -> Integers:
        """Return for each operation the bytes that are left of the budget; negative where compute waits."""
        return self.of.budget - self._lanes(decisions, self.rho(decisions)).held

    def _lanes(self, decisions: Decisions, rho: Floats) -> "_Lanes":
        of = self.of
        ends = np.cumsum(of.durations + rho)
        starts = ends - of.durations
        out, copied = self._copied_out(decisions, ends)
        gone = np.array(of.start + 1)
        gone[out] = np.clip(np.searchsorted(starts, copied), of.start[out] + 1, of.end[out])
        back, fetched = self._fetched(decisions, starts)
        here = np.clip(np.searchsorted(starts, fetched, side="right") - 1, gone[back], of.end[back])
        return _Lanes(starts, out, copied, gone, of.memory + self._absent(decisions, gone, back, here))

    def _wait(self, lanes: "_Lanes") -> float:
        """Return how long compute waits for copies out, until what is over budget has gone."""
        of, (starts, out, copied, gone, held) = self.of, lanes
        wait = 0.0
        for t in np.flatnonzero(held > of.budget)[:MOST_WAITS].tolist():
            lingers = (of.start[out] < t) & (t < gone[out])
            ended = copied[lingers] - starts[t]
            sizes = of.size[out[lingers]]
            missing = int(held[t]) - of.budget - int(sizes[ended <= wait].sum())
            if missing <= 0:
                continue
            late = np.argsort(ended)[np.count_nonzero(ended <= wait) :]
            freed = np.cumsum(sizes[late])
            enough = int(np.searchsorted(freed, missing))
            if late.size:
                wait = float(ended[late[min(enough, late.size - 1)]])
            if enough == late.size:
                # Only copies back that come later help now: they are taken to be late by the time that the bytes need.
                wait += (missing - (int(freed[-1]) if late.size else 0)) * 1e9 / of.instance.link.prefetch_bandwidth
        return wait

    def _copied_out(self, decisions: Decisions, ends: Floats) -> tuple[Integers, Floats]:
        """Return what is copied out, first to leave first, and when each copy ends; a tensor swapped twice, only once."""
        of = self.of
        swapped = self.in_order[decisions[self.in_order] == SWAP]
        first = np.ones(swapped.size, dtype=bool)
        first[1:] = of.tensor[swapped[1:]] != of.tensor[swapped[:-1]]
        out = swapped[first]
        out = out[np.lexsort((of.produced[out], of.start[out]))]
        work = np.cumsum(of.out_work[out])
        written = ends[of.produced[out]]
        return out, work + (np.maximum.accumulate(written - (work - of.out_work[out])) if out.size else 0.0)

    def _fetched(self, decisions: Decisions, starts: Floats) -> tuple[Integers, Floats]:
        """Return what is copied back, last wanted first, and when each copy starts at the latest."""
        of = self.of
        back = np.flatnonzero(decisions == SWAP)
        back = back[np.lexsort((of.tensor[back], of.end[back]))][::-1]
        work = np.cumsum(of.in_work[back])
        wanted = starts[of.end[back]]
        return back, (np.minimum.accumulate(wanted + (work - of.in_work[back])) if back.size else 0.0) - work

    def _absent(self, decisions: Decisions, gone: Integers, back: Integers, here: Integers) -> Integers:
        """Return for each operation the bytes that have left the device, negative."""
        of = self.of
        away = np.flatnonzero(decisions != KEEP)
        until = np.array(of.end)
        until[back] = here
        change = np.zeros(len(of.durations) + 1, dtype=np.int64)
        np.subtract.at(change, gone[away], of.size[away])
        np.add.at(change, until[away], of.size[away])
        return np.cumsum(change[:-1])
