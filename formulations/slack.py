r"""The slack formulation: keep, swap or recompute within a memory budget and the link time that computation hides.

Symbols, here and in the code: operation $t$ takes $p_t$ and, with everything kept, exceeds the budget by $e_t$. A decided
idle interval $g$ of a tensor of $m_g$ bytes lies between operations $a_g$ and $b_g$. $\delta_t \ge 0$ is the delay just
before operation $t$ (re-runs and waits). `docs/formulation.md` has the plan space and the proof that this relaxes it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from slackswap_opt.formulations.completion import complete
from slackswap_opt.formulations.linear import LinearProgram, Sense
from slackswap_opt.formulations.overlap import Lanes
from slackswap_opt.formulations.presolve import Reductions, reduce
from slackswap_opt.formulations.reruns import Step, Tail, find_reruns
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
        What is planned; its budget must be set.
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
    tail_kept, tail_fetched
        Columns of tails kept until a deadline, by (tensor, deadline), and of tails fetched, by tensor.
    rebuilt
        Columns that say whether the last re-run of a step's interval or tail has happened by the end of that step.
    runs
        For operations that serve several intervals or tails, (position, column) of how often they have run again by then.
    marks, delay, ahead
        Where the model's time steps begin, the delay before each, and re-run work done before it that is due later.
    memory
        Columns of the bytes gone, by operation with a memory row.
    due
        Re-run work due at each mark, as terms.
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
        self.tail_kept: dict[tuple[int, int], int] = {}
        self.tail_fetched: dict[int, int] = {}
        self.rebuilt: dict[Step, int] = {}
        self.held: dict[tuple[int, int], int] = {}
        self.runs: dict[int, list[tuple[int, int]]] = {}
        self.delay: list[int] = []
        self.ahead: dict[int, int] = {}
        self.due: dict[int, Terms] = {}
        self.memory: dict[int, int] = {}
        self.marks = self._marks()
        self.horizon = self._horizon()
        self.size_scale = _power(max((interval.size for interval in self.reduced.intervals), default=1))
        self.time_scale = _power(self.instance.ideal // (self.units.time * (len(self.marks) + 1)))
        self.decisions()
        self.tails()
        self.operands()
        self.work()
        self.delays()
        self.lanes = Lanes(self)
        self.peak_memory()
        self.program.minimise((column, 1) for column in self.delay)

    def _marks(self) -> list[int]:
        """The operations at which a step of the model's time begins: those with a memory row, and others in the same number."""
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
                self.rebuilt[step] = self.program.variable(f"{end}_{name}{suffix}", 1, integer=True)
            if interval.recompute:
                self.r[g] = self.rebuilt[self.reruns.steps[g][-1]]
            if interval.swap and interval.recompute:
                self.program.row(f"one_{name}", [(self.s[g], 1), (self.r[g], 1)], AT_MOST, 1)
            self._monotone(f"back_{name}", [self.rebuilt[step] for step in self.reruns.steps[g]])

    def _monotone(self, name: str, columns: Sequence[int]) -> None:
        for n, (earlier, later) in enumerate(pairwise(columns)):
            self.program.row(f"{name}_{n}", [(later, 1), (earlier, -1)], AT_LEAST, 0)

    def tails(self) -> None:
        r"""After its last access a tensor is kept until a deadline, fetched from the host, or rebuilt, once and for all.

        Kept until $d$ falls with the deadline $d$; rebuilt by the end of a step rises.
        """
        for n, tail in self.reruns.tails.items():
            for d in tail.deadlines:
                self.tail_kept[n, d] = self.program.variable(f"keep_{n}_{d}", 1, integer=True)
            if tail.swap:
                self.tail_fetched[n] = self.program.variable(f"fetch_{n}", 1, integer=True)
            for step in tail.steps:
                self.rebuilt[step] = self.program.variable(f"rebuild_{n}_{step.by}", 1, integer=True)
            self._monotone(f"keep_on_{n}", [self.tail_kept[n, d] for d in reversed(tail.deadlines)])
            self._monotone(f"rebuild_on_{n}", [self.rebuilt[step] for step in tail.steps])
            for step in tail.steps[:-1]:
                held = self.held[n, step.by] = self.program.variable(f"hold_{n}_{step.by}", 1)
                self.program.row(f"holds_{n}_{step.by}", [(held, 1), (self.rebuilt[step], -1)], AT_MOST, 0)

    def operands(self) -> None:
        r"""A re-run finds its operands: one that is past its last access was kept, fetched or rebuilt for it.

        For every step of every chain that reads $n$: $y_{last} - y_{before} \le \kappa_{n,d} + \phi_n + \rho_n$, where $\rho_n$
        is rebuilding after the step before, or holding over its end what was rebuilt by then.
        """
        for n, tail in self.reruns.tails.items():
            for demands in tail.demands:
                chain = self._chain(demands[0].step)
                for step, _, by in demands:
                    terms = [(self.last(step), -1), (self.tail_kept[n, by], 1)]
                    terms += [(self.rebuilt[chain[step.number - 1]], 1)] if step.number else []
                    terms += [(self.tail_fetched[n], 1)] if tail.swap else []
                    terms += self._rebuilt_for(tail, step) if tail.recompute else []
                    self.program.row(f"operand_{n}_of_{_name(step)}", terms, AT_LEAST, 0)

    def _rebuilt_for(self, tail: Tail, step: Step) -> Terms:
        """Whether a tail is rebuilt after `step` begins, or was before and is held there, as terms."""
        terms = [(self.rebuilt[tail.steps[-1]], 1)]
        before = [earlier for earlier in tail.steps[:-1] if step.number and earlier.by == step.after]
        for earlier in before:
            terms += [(self.rebuilt[earlier], -1), (self.held[tail.tensor, earlier.by], 1)]
        return terms

    def last(self, step: Step) -> int:
        """Return the column that says whether the tensor of `step` is rebuilt at all in that interval or tail."""
        return self.rebuilt[self._chain(step)[-1]]

    def _chain(self, step: Step) -> tuple[Step, ...]:
        return self.reruns.tails[step.tensor].steps if step.interval is None else self.reruns.steps[step.interval]

    def work(self) -> None:
        r"""Operation $o$ has run again $x_{o,d}$ times before $d$, once a step in which something it writes comes back.

        $x_{o,d} - x_{o,d'} \ge y_d - y_{d'}$ for all that it writes; where it serves one interval only, $x$ is $y$.
        """
        for o, chains in sorted(self.reruns.by_operation.items()):
            cost = self.scale.work(self.instance.operations[o].duration)
            if len(chains) == 1:
                runs = [(step.by, self.rebuilt[step]) for step in chains[0]]
            else:
                runs = self.runs[o] = self._counted(o, chains)
            before = -1
            for d, column in runs:
                mark = self.marks[bisect_left(self.marks, d)]
                self.due.setdefault(mark, []).extend([(column, cost)] + ([(before, -cost)] if before >= 0 else []))
                before = column

    def _counted(self, o: int, chains: Sequence[tuple[Step, ...]]) -> list[tuple[int, int]]:
        ends = sorted({step.by for chain in chains for step in chain})
        runs = [self.program.variable(f"x_{o}_{d}", len(chains), integer=True) for d in ends]
        self._monotone(f"runs_{o}", runs)
        for chain in chains:
            before: Terms = []
            for step in chain:
                opened = bisect_right(ends, step.after)
                terms = [(runs[bisect_left(ends, step.by)], 1), (self.rebuilt[step], -1), *before]
                terms += [(runs[opened - 1], -1)] if opened else []
                self.program.row(f"run_{o}_for_{_name(step)}", terms, AT_LEAST, 0)
                before = [(self.rebuilt[step], 1)]
        return list(zip(ends, runs, strict=True))

    def delays(self) -> None:
        r"""Re-runs delay: $\delta_t \ge \text{due}_t + A_t - A_{t-1}$, and nothing is ahead, $A_t = 0$, at checkpoints.

        Inner rounding does nothing ahead. A tail that is rebuilt before a checkpoint for use after it is there, or what was
        rebuilt from it is.
        """
        first, last = min(self.reduced.critical, default=0), max(self.due, default=0)
        ahead = -1
        for t in self.marks:
            delay = self.program.variable(f"delay_{t}", self.horizon, scale=self.time_scale)
            terms = [(delay, 1), *((column, -cost) for column, cost in self.due.get(t, ()))]
            terms += [(ahead, 1)] if ahead >= 0 else []
            ahead = -1
            if self.scale.outer and first < t < last and t not in self.reduced.checkpoints:
                ahead = self.ahead[t] = self.program.variable(f"ahead_{t}", self.horizon, scale=self.time_scale)
                terms.append((ahead, -1))
            if len(terms) > 1:
                self.program.row(f"work_{t}", terms, AT_LEAST, 0)
            self.delay.append(delay)
        for n, tail in self.reruns.tails.items():
            for step in tail.steps[:-1]:
                terms = [(self.held[n, step.by], 1), (self.rebuilt[step], -1), *self._readers_done(tail, step.by)]
                self.program.row(f"held_{n}_{step.by}", terms, AT_LEAST, 0)

    def _readers_done(self, tail: Tail, q: int) -> Terms:
        done: Terms = []
        for demands in tail.demands:
            chain = [step for step in self._chain(demands[0].step) if step.by <= q]
            done += [(self.rebuilt[chain[-1]], 1)] if chain else []
        return done

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
                column = self.tail_kept[n, d]
                whole = min(demand.after for demands in tail.demands for demand in demands if demand.by >= d) + 1
                for start, end, size in ((begin, min(whole, d), tail.size), (max(begin, whole), d, tail.cover)):
                    if start < end:
                        yield start, column, -size
                        yield end, column, size
                begin = d
            for step in tail.steps[:-1]:
                yield step.by, self.held[n, step.by], -tail.size
                yield step.by + 1, self.held[n, step.by], tail.size

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
        for n, column in (*((n, column) for (n, _), column in self.tail_kept.items()), *self.tail_fetched.items()):
            if values[column] > 0.5:
                tails[n] = Decision.SWAP if column == self.tail_fetched.get(n) else Decision.KEEP
        return Plan(tuple(intervals), tuple(tails))


def _thinned(operations: Iterable[int], number: int) -> list[int]:
    """Return about `number` of some operations, evenly, the last among them."""
    ordered = sorted(operations)
    return ordered[:: -max(1, len(ordered) // number)]


def _power(value: int) -> int:
    """Return the largest power of two up to `value`, at least 1."""
    return 1 << max(0, value.bit_length() - 1)


def _name(step: Step) -> str:
    return f"{step.tensor}_{step.by}"
