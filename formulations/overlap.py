r"""Overlap slack: which copies fit into the time that computation takes, and what is on the device meanwhile.

At the start of operation $t$, $Q_t$ bytes of swapped tensors are inside their interval but not copied out yet, and $H_t$ are
copied ahead of it. At its end, $P_t$ bytes have come back for later operations. Copies may split; those due first go first.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from slackswap_opt.formulations.linear import Sense
from slackswap_opt.formulations.rounding import Rate

if TYPE_CHECKING:
    from slackswap_opt.formulations.slack import SlackModel

Terms = list[tuple[int, int]]
AT_MOST, AT_LEAST = Sense.AT_MOST, Sense.AT_LEAST


class _Out(NamedTuple):
    """Bytes to be copied out, `size` times column, from `release` on; until then they stay, between `opens` and `until`."""

    column: int
    size: int
    release: int
    opens: int
    until: int


class _Back(NamedTuple):
    """Bytes to be copied back: `size` times column, wanted at `by`, none before the end of `after`."""

    column: int
    size: int
    after: int
    by: int


class Load(NamedTuple):
    """What a row has a lane move: its place in the program, the lane (out, or back), and the terms, weighed as in that row."""

    row: int
    out: bool
    terms: tuple[tuple[int, int], ...]


class Lanes:
    """The rows of both lanes of a model, over its marks.

    Attributes
    ----------
    waiting, ahead, back
        Columns of $Q$, $H$ and $P$ by mark, where they can be more than 0.
    pools
        Columns of what is written but not opened, which bounds $H$, by the mark at which they apply.
    arrived
        Without duplex, columns of what has come back when a mark starts.
    opening, wanted
        Bytes that the intervals which open before a mark want copied out, and those wanted back at it, as terms.
    copies
        Columns that say whether an interval is the first for which this state of its tensor is copied, with the terms that they
        are at least.
    rate_out, rate_back
        The lanes' rates, or None if nothing can be swapped.
    loads
        What each row that speaks of a rate has the lanes move.
    """

    def __init__(self, model: "SlackModel") -> None:
        self.model = model
        self.program = model.program
        self.waiting: dict[int, int] = {}
        self.ahead: dict[int, int] = {}
        self.back: dict[int, int] = {}
        self.pools: dict[int, int] = {}
        self.arrived: dict[int, int] = {}
        self.elapsed = (*accumulate((o.duration for o in model.instance.operations), initial=0),)
        self.copies: list[tuple[int, Terms]] = []
        self.loads: list[Load] = []
        self.outs = self._outs()
        self.backs = self._backs()
        self.opening = self._by_mark([(out.opens + 1, (out.column, out.size)) for out in self.outs])
        self.wanted = self._by_mark([(back.by, (back.column, back.size)) for back in self.backs])
        link = model.instance.link
        sizes = {model.instance.tensors[i].size for i in self.moving()}
        self.rate_out = model.scale.rate((size, link.offload_time(size)) for size in sizes)
        self.rate_back = model.scale.rate((size, link.prefetch_time(size)) for size in sizes)
        if self.rate_out and self.rate_back:
            self._columns()
            self._copied_ahead()
            if link.duplex:
                self.offload_lane(self.rate_out)
                self.prefetch_lane(self.rate_back)
            else:
                self.shared_lane(self.rate_out, self.rate_back)

    def moving(self) -> Iterator[int]:
        """Yield the tensors that may be swapped, in an interval or in their tail."""
        model = self.model
        yield from (model.reduced.intervals[g].tensor for g in model.s)
        yield from (n for n, tail in model.reruns.tails.items() if tail.swap)

    def _outs(self) -> list[_Out]:
        """Copies out: one for each state of a tensor, wanted by the first of its swapped intervals, or by its tail."""
        model, states = self.model, dict[tuple[int, int], list[tuple[int, int, int, int]]]()
        for g, column in model.s.items():
            i, size, start, end = (getattr(model.reduced.intervals[g], field) for field in ("tensor", "size", "start", "end"))
            states.setdefault((i, bisect_right(model.instance.writers[i], start)), []).append((start, end, size, column))
        for n, tail in model.reruns.tails.items():
            if tail.swap:
                entry = (tail.start, tail.deadlines[-1], tail.size, model.chains.fetched[n])
                states.setdefault((n, len(model.instance.writers[n])), []).append(entry)
        outs = []
        for (i, state), entries in states.items():
            release, earlier = model.instance.writers[i][state - 1], list[int]()
            for start, end, size, column in sorted(entries):
                first = column
                if earlier:
                    first = self.program.variable(f"copy_{i}_{start}", 1)
                    self.copies.append((first, [(column, 1), *((f, -1) for f in earlier)]))
                    self.program.row(f"copied_{i}_{start}", [(first, 1), (column, -1), *((f, 1) for f in earlier)], AT_LEAST, 0)
                earlier.append(first)
                outs.append(_Out(first, size, release, start, end))
        return outs

    def _backs(self) -> list[_Back]:
        """Copies back of swapped intervals, by their end; those of tails are left out, which loosens the model."""
        intervals = self.model.reduced.intervals
        return [_Back(column, intervals[g].size, intervals[g].first, intervals[g].end) for g, column in self.model.s.items()]

    def _by_mark(self, entries: list[tuple[int, tuple[int, int]]]) -> dict[int, Terms]:
        """Group terms by the first mark at or after their operation; those after the last mark are left out."""
        marks, grouped = self.model.marks, dict[int, Terms]()
        for t, term in entries:
            if (k := bisect_left(marks, t)) < len(marks):
                grouped.setdefault(marks[k], []).append(term)
        return grouped

    def _columns(self) -> None:
        """Add $Q$, $H$ and $P$ at each mark with the most that they can be; where that is 0, none."""
        last = max(self.model.reduced.critical)
        waiting = self._most((out.size, out.opens, min(out.until, last + 1)) for out in self.outs)
        ahead = self._most((out.size, out.release, min(out.opens, last) + 1) for out in self.outs)
        back = self._most((back.size, back.after, back.by) for back in self.backs)
        columns = [("Q", self.waiting, waiting), ("H", self.ahead, ahead), ("P", self.back, back)]
        if not self.model.instance.link.duplex:
            columns.append(("Y", self.arrived, back))
        for name, column, most in columns:
            for t, size in zip(self.model.marks, most, strict=True):
                if size:
                    column[t] = self.program.variable(f"{name}_{t}", size, scale=self.model.size_scale)

    def _most(self, stretches: Iterable[tuple[int, int, int]]) -> list[int]:
        """For each mark the sum of the sizes whose stretch (after, by), ends excluded, it lies in."""
        marks = self.model.marks
        change = [0] * (len(marks) + 1)
        for size, after, by in stretches:
            if (low := bisect_right(marks, after)) < (high := bisect_left(marks, by)):
                change[low] += size
                change[high] -= size
        return list(accumulate(change[:-1]))

    def _copied_ahead(self) -> None:
        r"""Only what is written is copied ahead: $H_t \le N_t = \sum m_g f_g$ over $w_g < t \le a_g$, brought up to date."""
        written = [(out.release + 1, (out.column, out.size)) for out in self.outs]
        opened = [(out.opens + 1, (out.column, -out.size)) for out in self.outs]
        changes = self._by_mark([*written, *opened])
        pool: Terms = []
        now = -1
        for t in self.model.marks:
            pool += changes.get(t, ())
            if t not in self.ahead:
                continue
            ahead = self.ahead[t]
            if now < 0 or len(pool) > 1:
                now = self.program.variable(f"N_{t}", self.program.variables[ahead].upper, scale=self.model.size_scale)
                self.program.define(now, f"written_{t}", pool)
                pool = [(now, 1)]
            self.pools[t] = now
            self.program.row(f"ahead_{t}", [(ahead, 1), (now, -1)], AT_MOST, 0)

    def _moved_out(self, before: int | None, t: int) -> Terms:
        """Return the bytes copied out between the starts of two marks, as terms: what opens, and what is ahead or waits."""
        terms = list(self.opening.get(t, ()))
        for columns, sign in ((self.ahead, 1), (self.waiting, -1)):
            for mark, side in ((t, sign), (before, -sign)):
                if mark in columns:
                    terms.append((columns[mark], side))
        return terms

    def offload_lane(self, rate: Rate) -> None:
        r"""The queue out: $Q_t - H_t \ge Q_{t-1} - H_{t-1} + \sum_{a_g = t-1} m_g f_g - \beta (p_{t-1} + \delta_t)$."""
        last = max(self.model.reduced.critical)
        for k, t in enumerate(self.model.marks):
            before = self.model.marks[k - 1] if k else None
            if t <= last and (moved := self._moved_out(before, t)):
                time = self.elapsed[t] - self.elapsed[before or 0]
                self._within(f"out_{t}", moved, rate, time, k)

    def _within(self, name: str, moved: Terms, rate: Rate, time: int, k: int | None) -> None:
        """Add the row that a lane moves no more than it can in `time` ns and, if given, the delay before mark `k`."""
        terms = [(column, rate.denominator * size) for column, size in moved]
        self.loads.append(Load(len(self.program.rows), rate is self.rate_out, tuple(terms)))
        if k is not None:
            terms.append((self.model.delay[k], -rate.numerator))
        self.program.row(name, terms, AT_MOST, self.model.scale.capacity(rate, time))

    def prefetch_lane(self, rate: Rate) -> None:
        r"""The way back, due first: $P_{t-1} \ge \max(0, P_t - \beta p_t) + \sum_{b_g = t} m_g s_g - \beta \delta_t$."""
        for k, (before, t) in enumerate(pairwise(self.model.marks), 1):
            between = self.elapsed[t] - self.elapsed[before + 1]
            wanted = [*self.wanted.get(t, ()), *self._column(self.back, before, -1)]
            if t in self.wanted:
                self._within(f"back_{t}", wanted, rate, between, k)
            if t in self.back:
                later = between + self.elapsed[t + 1] - self.elapsed[t]
                self._within(f"arrive_{t}", [*wanted, (self.back[t], 1)], rate, later, k)

    def shared_lane(self, rate_out: Rate, rate_back: Rate) -> None:
        r"""Without duplex the lanes share their time: what moves out and back, each at its rate, fits into it.

        $Y_t$ has come back when $t$ starts: $Y_t \le P_t \le Y_t + \beta p_t$.
        """
        last = max(self.model.reduced.critical)
        for k, t in enumerate(self.model.marks):
            before = self.model.marks[k - 1] if k else None
            out = self._moved_out(before, t) if t <= last else []
            came = [*self.wanted.get(t, ()), *self._column(self.arrived, t, 1)]
            back = [*came, *(self._column(self.arrived, before, -1) if k else ())]
            self._share(f"share_{t}", out, rate_out, back, rate_back, k)
            for name, moved in (("out", out), ("back", back)):
                if moved:
                    self.program.row(f"{name}_{t}", moved, AT_LEAST, 0)
            if before is not None and came:
                between = self.elapsed[t] - self.elapsed[before + 1]
                self._within(f"arrive_{t}", [*came, *self._column(self.back, before, -1)], rate_back, between, k)
            if t in self.back:
                during = [(self.back[t], 1), (self.arrived[t], -1)]
                self._within(f"during_{t}", during, rate_back, self.elapsed[t + 1] - self.elapsed[t], None)
                self.program.row(f"stays_{t}", during, AT_LEAST, 0)

    def _share(self, name: str, out: Terms, rate_out: Rate, back: Terms, rate_back: Rate, k: int) -> None:
        """Add the row that both directions together take no longer than the time from mark `k - 1` to mark `k`."""
        both, per_out, per_back = self.model.scale.shared_rate(rate_out, rate_back)
        loads = [Load(len(self.program.rows), True, tuple((column, size * per_out) for column, size in out))]
        loads.append(Load(len(self.program.rows), False, tuple((column, size * per_back) for column, size in back)))
        if out or back:
            self.loads += loads
            before = self.elapsed[self.model.marks[k - 1]] if k else 0
            terms = [*loads[0].terms, *loads[1].terms, (self.model.delay[k], -both.numerator)]
            capacity = self.model.scale.capacity(both, self.elapsed[self.model.marks[k]] - before)
            self.program.row(name, terms, AT_MOST, capacity)

    def _column(self, columns: dict[int, int], t: int | None, sign: int) -> Terms:
        return [(columns[t], sign)] if t in columns else []

    def present(self, t: int) -> Terms:
        """Return the terms of what copies under way hold on the device while operation `t` runs, negative."""
        return [*self._column(self.waiting, t, -1), *self._column(self.back, t, -1)]
