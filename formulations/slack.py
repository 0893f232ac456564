r"""The slack formulation: keep, swap or recompute within a memory budget and the link time that computation hides.

Symbols, here and in the code: operation $t$ takes $p_t$ and, with everything kept, exceeds the budget by $e_t$. A decided
idle interval $g$ of a tensor of $m_g$ bytes lies between operations $a_g$ and $b_g$. $\delta_t \ge 0$ is the delay just
before operation $t$ (re-runs and waits). `docs/formulation.md` has the plan space and the proof that this relaxes it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from slackswap_opt.formulations.chains import Chains
from slackswap_opt.formulations.completion import complete
from slackswap_opt.formulations.linear import LinearProgram, Sense
from slackswap_opt.formulations.overlap import Lanes
from slackswap_opt.formulations.presolve import Reductions, reduce
from slackswap_opt.formulations.reruns import Step, find_reruns
from slackswap_opt.formulations.rounding import Rounding, Scale, Units
from slackswap_opt.instance import Instance
from slackswap_opt.plan import Decision, Plan

Terms = list[tuple[int, int]]
AT_MOST, AT_LEAST = Sense.AT_MOST, Sense.AT_LEAST


class SlackModel:
    """The formulation of one instance: variables, rows and objective as integers, for any solver.

    Parameters
    ----------
    instance
        What is planned; without a budget there is nothing to decide.
    rounding
        OUTER for lower bounds, INNER for plans.
    units
        What sizes and times are counted in; by default bytes and nanoseconds.
    reductions
        What presolve may do.

    Attributes
    ----------
    program
        The linear program; its objective is the overhead in units of time.
    s, r
        Columns of the decisions, by place in `reduced.intervals`; absent where the choice is.
    rebuilt
        Columns that say whether the last re-run of a step's interval or tail has happened by the end of that step.
    marks, delay, ahead
        Where the model's time steps begin, the delay before each, and re-run work done before it that is due later.
    memory
        Columns of the bytes gone, by operation with a memory row.
    chains, lanes
        The re-runs' and the copies' part of the model.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        rounding: Rounding = Rounding.OUTER,
        units: Units | None = None,
        reductions: Reductions | None = None,
    ) -> None:
        self.instance = instance
        self.rounding = rounding
        self.units = units or Units()
        self.reductions = reductions or Reductions()
        self.scale = Scale(self.units, rounding)
        self.reduced = reduce(instance, self.scale, self.reductions)
        self.reruns = find_reruns(instance, self.reduced)
        self.program = LinearProgram()
        self.s: dict[int, int] = {}
        self.r: dict[int, int] = {}
        self.rebuilt: dict[Step, int] = {}
        self.delay: list[int] = []
        self.ahead: dict[int, int] = {}
        self.memory: dict[int, int] = {}
        self.marks = self._marks()
        self.horizon = self._horizon()
        self.size_scale = _power(max((interval.size for interval in self.reduced.intervals), default=1))
        self.time_scale = _power(self.instance.ideal // (self.units.time * (len(self.marks) + 1)))
        self.decisions()
        self.chains = Chains(self)
        self.delays()
        self.lanes = Lanes(self)
        self.peak_memory()
        self.program.minimise((column, 1) for column in self.delay)

    def _marks(self) -> list[int]:
        """The operations at which a step of the model's time begins.

        Those with a memory row, and where intervals end, or begin and their tensors are written; of the others at most as many
        as `Reductions.rows` allows.
        """
        ends = {interval.end for interval in self.reduced.intervals}
        ends.update(d for tail in self.reruns.tails.values() for d in tail.deadlines)
        openings: set[int] = set()
        if not self.reductions.merge:
            entries = [(interval.tensor, interval.start) for interval in self.reduced.intervals]
            for i, a in (*entries, *((n, tail.start) for n, tail in self.reruns.tails.items())):
                writers = self.instance.writers[i]
                openings.update((a + 1, writers[bisect_right(writers, a) - 1]))
        marks = {*self.reduced.critical}
        if self.reductions.rows is None:
            return sorted((marks | ends | openings) & {*range(len(self.instance.operations))})
        marks.update(_thinned(openings, self.reductions.rows))
        marks.update(_thinned((t for t in ends if t > max(marks)), self.reductions.rows))
        return sorted(marks & {*range(len(self.instance.operations))})

    def _horizon(self) -> int:
        """More delay than a sensible schedule has, in units of time: everything runs twice, each copy waits for the last."""
        link, total = self.instance.link, self.instance.ideal
        for i in (*(g.tensor for g in self.reduced.intervals), *self.reruns.tails):
            total += link.offload_time(self.instance.tensors[i].size) + link.prefetch_time(self.instance.tensors[i].size)
        return total // self.units.time + 1

    def decisions(self) -> None:
        r"""Each interval is kept, swapped or recomputed: $k_g + s_g + r_g = 1$, written without $k_g$ as $s_g + r_g \le 1$."""
        for g, interval in enumerate(self.reduced.intervals):
            name = f"{interval.tensor}_{interval.start}_{interval.end}"
            if interval.swap:
                self.s[g] = self.program.variable(f"s_{name}", 1, integer=True)
            for step in self.reruns.steps[g]:
                end = "r" if step.by == interval.end else "y"
                suffix = "" if step.by == interval.end else f"_{step.by}"
                # A plan cannot say that a re-run comes early, so with inner rounding none does.
                possible = int(self.scale.outer or step.by == interval.end)
                self.rebuilt[step] = self.program.variable(f"{end}_{name}{suffix}", possible, integer=True)
            if interval.recompute:
                self.r[g] = self.rebuilt[self.reruns.steps[g][-1]]
            if interval.swap and interval.recompute:
                self.program.row(f"one_{name}", [(self.s[g], 1), (self.r[g], 1)], AT_MOST, 1)
            self.program.rise(f"back_{name}", [self.rebuilt[step] for step in self.reruns.steps[g]])

    def delays(self) -> None:
        r"""Re-runs delay: $\delta_t \ge \text{due}_t + A_t - A_{t-1}$, and nothing is ahead, $A_t = 0$, at checkpoints.

        Inner rounding does nothing ahead.
        """
        first, last = min(self.reduced.critical, default=0), max(self.chains.due, default=0)
        ahead = -1
        for t in self.marks:
            delay = self.program.variable(f"delay_{t}", self.horizon, scale=self.time_scale)
            terms = [(delay, 1), *((column, -cost) for column, cost in self.chains.due.get(t, ()))]
            terms += [(ahead, 1)] if ahead >= 0 else []
            ahead = -1
            if self.scale.outer and first < t < last and t not in self.reduced.checkpoints:
                ahead = self.ahead[t] = self.program.variable(f"ahead_{t}", self.horizon, scale=self.time_scale)
                terms.append((ahead, -1))
            if len(terms) > 1:
                self.program.row(f"work_{t}", terms, AT_LEAST, 0)
            self.delay.append(delay)

    def peak_memory(self) -> None:
        r"""What is over budget must be gone: $\sum_g m_g (s_g + r_g - y_{g,t}) - K_t - Q_t - P_t \ge e_t$.

        The sum less the tails kept, $K_t$, changes only where an interval opens or ends: a variable that is brought up to date.
        """
        changes = sorted([*self._leaving(), *self._tails_kept()])
        held: dict[int, int] = {}
        gone, n = -1, 0
        for t in self.reduced.critical:
            update: Terms = []
            while n < len(changes) and changes[n][0] <= t:
                _, column, size = changes[n]
                held[column] = held.get(column, 0) + size
                update.append((column, size))
                n += 1
            if update or gone < 0:
                sizes = held.values()
                most, least = sum(z for z in sizes if z > 0), sum(z for z in sizes if z < 0)
                now = self.program.variable(f"gone_{t}", most, lower=least, scale=self.size_scale)
                self.program.define(now, f"update_{t}", [*update, *([(gone, 1)] if gone >= 0 else [])])
                gone = now
            self.memory[t] = gone
            self.program.row(f"memory_{t}", [(gone, 1), *self.lanes.present(t)], AT_LEAST, self.reduced.excess[t])

    def _leaving(self) -> Iterator[tuple[int, int, int]]:
        """Yield (from operation, column, change of its coefficient in the bytes gone) for every interval."""
        for g, interval in enumerate(self.reduced.intervals):
            for column in (self.s.get(g), self.r.get(g)):
                if column is not None:
                    yield interval.start + 1, column, interval.size
                    yield interval.end, column, -interval.size
            for step, later in pairwise(self.reruns.steps[g]):
                yield step.by, self.rebuilt[step], -interval.size
                yield later.by, self.rebuilt[step], interval.size

    def _tails_kept(self) -> Iterator[tuple[int, int, int]]:
        """Yield the same for tails: whole until the first re-run that may read them, then what they cover."""
        for n, tail in self.reruns.tails.items():
            begin = tail.start + 1
            for d in tail.deadlines:
                column = self.chains.kept[n, d]
                whole = min(demand.after for demands in tail.demands for demand in demands if demand.by >= d) + 1
                for start, end, size in ((begin, min(whole, d), tail.size), (max(begin, whole), d, tail.cover)):
                    if start < end:
                        yield start, column, -size
                        yield end, column, size
                begin = d
            for step in tail.steps[:-1]:
                yield step.by, self.chains.held[n, step.by], -tail.size
                yield step.by + 1, self.chains.held[n, step.by], tail.size

    def plan_to_values(self, plan: Plan) -> tuple[int, ...] | None:
        """Return values of all columns that carry out `plan`, feasible, or None if none are found; see `completion`."""
        return complete(self, plan)

    def values_to_plan(self, values: Sequence[float]) -> Plan:
        """Return the plan that 0/1 values of the columns spell; what is not decided is kept, tails are discarded.

        With outer rounding a column may stand for a rebuilding that no plan can ask for; the plan then swaps or keeps.
        """
        intervals = [Decision.KEEP] * len(self.instance.idle_intervals)
        tails = [Decision.DISCARD] * len(self.instance.tensors)
        for columns, decision in ((self.s, Decision.SWAP), (self.r, Decision.RECOMPUTE)):
            for g, column in columns.items():
                if values[column] > 0.5:
                    number, swap = self.reduced.intervals[g].number, self.reduced.intervals[g].swap
                    possible = decision is Decision.SWAP or self.instance.can_recompute(self.instance.idle_intervals[number])
                    intervals[number] = decision if possible else (Decision.SWAP if swap else Decision.KEEP)
        for n, column in (*((n, column) for (n, _), column in self.chains.kept.items()), *self.chains.fetched.items()):
            if values[column] > 0.5:
                tails[n] = Decision.SWAP if column == self.chains.fetched.get(n) else Decision.KEEP
        return Plan(tuple(intervals), tuple(tails))


def _thinned(operations: Iterable[int], number: int) -> list[int]:
    """Return about `number` of some operations, evenly, the last among them."""
    ordered = sorted(operations)
    return ordered[:: -max(1, len(ordered) // number)]


def _power(value: int) -> int:
    """Return the largest power of two up to `value`, at least 1."""
    return 1 << max(0, value.bit_length() - 1)
