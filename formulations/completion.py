"""From a plan to values of every column: a feasible point for a solver to start from, found without one.

Re-runs happen just before they are due. Copies back are as late as the bare durations allow; the delays are those that one pass
over the marks finds necessary, which need not be the least.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackswap_opt.formulations.linear import evaluate
from slackswap_opt.formulations.reruns import Step, Tail
from slackswap_opt.formulations.rounding import Rate
from slackswap_opt.plan import Decision, Plan

if TYPE_CHECKING:
    from slackswap_opt.formulations.slack import SlackModel


def complete(model: "SlackModel", plan: Plan) -> tuple[int, ...] | None:
    """Return a feasible value of each column under the decisions of `plan`, or None if none is found."""
    values = [0] * len(model.program.variables)
    if not (_decide(model, plan, values) and _rebuild(model, plan, values)):
        return None
    for column, terms in model.program.definitions:
        values[column] = evaluate(terms, values)
    if not _Lanes(model, values).fill():
        return None
    return tuple(values) if model.program.broken(values) is None else None


def _decide(model: "SlackModel", plan: Plan, values: list[int]) -> bool:
    """Set the decisions on intervals; return False if one is impossible."""
    for g, interval in enumerate(model.reduced.intervals):
        decision = plan.intervals[interval.number]
        columns = {Decision.SWAP: model.s, Decision.RECOMPUTE: model.r}.get(decision)
        if columns is not None:
            if g not in columns:
                return False
            values[columns[g]] = 1
    return True


def _rebuild(model: "SlackModel", plan: Plan, values: list[int]) -> bool:
    """Set tails, operands after their readers, and how often operations run; return False if an operand cannot be had."""
    # Readers come before their operands in `tails`, where a tensor is entered once a reader has asked for it.
    for n in sorted(model.reruns.tails, key=lambda n: -model.instance.writers[n][-1]):
        tail = model.reruns.tails[n]
        asked = [demands for demands in tail.demands if values[model.chains.last(demands[0].step)]]
        wanted = [demand.by for demands in asked for demand in demands]
        if wanted and not _hold(model, plan.tails[n], tail, max(wanted), values):
            return False
    for o, runs in model.chains.runs.items():
        _count(model, model.reruns.by_operation[o], runs, values)
    for column, terms in model.lanes.copies:
        values[column] = max(0, evaluate(terms, values))
    return True


def _hold(model: "SlackModel", decision: Decision, tail: Tail, until: int, values: list[int]) -> bool:
    if decision is Decision.SWAP and tail.swap:
        values[model.chains.fetched[tail.tensor]] = 1
    elif decision is not Decision.KEEP and tail.recompute:
        values[model.rebuilt[tail.steps[-1]]] = 1
    elif decision is Decision.KEEP:
        for d in tail.deadlines:
            values[model.chains.kept[tail.tensor, d]] = int(d <= until)
    else:
        return False
    return True


def _count(model: "SlackModel", chains: list[tuple[Step, ...]], runs: list[tuple[int, int]], values: list[int]) -> None:
    """Set how often an operation has run again by each position: as often as its intervals and tails ask for."""
    count = [0]
    ends = [end for end, _ in runs]
    for end, column in runs:
        needs = (chain[-1].after for chain in chains if chain[-1].by == end and values[model.rebuilt[chain[-1]]])
        count.append(max([count[-1], *(count[sum(e <= after for e in ends)] + 1 for after in needs)]))
        values[column] = count[-1]


class _Lanes:
    """One pass over the marks that fills both lanes' columns and the delays.

    Attributes
    ----------
    room
        For each mark the units of size that copies under way may hold there; None where no row says so.
    time, between, during
        For each mark the nanoseconds of bare operations since the mark before it, those after the mark before it, and its own.
    """

    def __init__(self, model: "SlackModel", values: list[int]) -> None:
        self.model, self.lanes, self.values = model, model.lanes, values
        marks, lanes = model.marks, model.lanes
        self.due = [evaluate(model.chains.due.get(t, ()), values) for t in marks]
        self.wanted = [evaluate(lanes.wanted.get(t, ()), values) for t in marks]
        self.opening = [evaluate(lanes.opening.get(t, ()), values) for t in marks]
        self.room = [self._room(t) for t in marks]
        befores = (-1, *marks)
        self.time = [lanes.elapsed[t] - lanes.elapsed[max(before, 0)] for before, t in zip(befores, marks, strict=False)]
        self.between = [lanes.elapsed[t] - lanes.elapsed[before + 1] for before, t in zip(befores, marks, strict=False)]
        self.during = [lanes.elapsed[t + 1] - lanes.elapsed[t] for t in marks]

    def _room(self, t: int) -> int | None:
        gone = self.model.memory.get(t)
        return None if gone is None else self.values[gone] - self.model.reduced.excess[t]

    def fill(self) -> bool:
        """Set the columns of both lanes and the delays; return False if the decisions do not free enough memory."""
        if any(room is not None and room < 0 for room in self.room):
            return False
        rate_out, rate_back = self.lanes.rate_out, self.lanes.rate_back
        if rate_out and rate_back and self.model.instance.link.duplex:
            self._fill_lanes(_Lane(self, rate_out), _Lane(self, rate_back))
        elif rate_out and rate_back:
            self._fill_shared_lane(rate_out, rate_back)
        else:
            self._store(self.model.delay, self.due)
        return True

    def _store(self, columns: Sequence[int], values: Sequence[int]) -> None:
        for column, value in zip(columns, values, strict=True):
            self.values[column] = value

    def _fill_lanes(self, out: "_Lane", back: "_Lane") -> None:
        """Copies out as early, copies back as late as they can be; delays where either would be too late."""
        targets = self._targets(back)
        net = came = 0
        for k, t in enumerate(self.model.marks):
            room = self._most_waiting(k, t)
            delay = max(self.due[k], back.delay(self.between[k], self.wanted[k] - came) if k else 0)
            if t <= self.model.reduced.critical[-1]:
                delay = max(delay, out.delay(self.time[k], self.opening[k] - net - room))
                net = min(self._pool(t), net - self.opening[k] + out.moves(self.time[k], delay))
            reach = came - self.wanted[k] + back.moves(self.between[k] + self.during[k], delay)
            came = min(targets[k], reach) if k else targets[k]
            if (room_here := self.room[k]) is not None:
                came = min(came, room_here - max(0, -net))
            came = max(came, 0)
            self._set(k, t, delay, net, came)

    def _targets(self, back: "_Lane") -> list[int]:
        """For each mark what should have come back when its operation ends, if nothing but re-runs delays."""
        marks, target = self.model.marks, 0
        targets = [0] * len(marks)
        for k in range(len(marks) - 1, 0, -1):
            short = self.wanted[k] - back.moves(self.between[k], self.due[k])
            later = self.wanted[k] + target - back.moves(self.between[k] + self.during[k], self.due[k])
            target = min(max(0, short, later), self._upper(self.lanes.back, marks[k - 1]))
            targets[k - 1] = target
        return targets

    def _fill_shared_lane(self, rate_out: Rate, rate_back: Rate) -> None:
        """Copies out as early as they can be, copies back just before their use, while compute waits."""
        both, per_out, per_back = self.model.scale.shared_rate(rate_out, rate_back)
        shared, back, net = _Lane(self, both), _Lane(self, rate_back), 0
        for k, t in enumerate(self.model.marks):
            delay = max(self.due[k], back.delay(self.between[k], self.wanted[k]) if k else 0)
            need = max(0, self.opening[k] - net - self._most_waiting(k, t)) if t <= self.model.reduced.critical[-1] else 0
            delay = max(delay, shared.delay(self.time[k], per_out * need + per_back * self.wanted[k]))
            if t <= self.model.reduced.critical[-1]:
                spare = shared.moves(self.time[k], delay) - per_back * self.wanted[k]
                net = min(self._pool(t), net - self.opening[k] + spare // per_out)
            self._set(k, t, delay, net, 0)

    def _most_waiting(self, k: int, t: int) -> int:
        most = self._upper(self.lanes.waiting, t)
        return most if self.room[k] is None else min(most, self.room[k] or 0)

    def _upper(self, columns: dict[int, int], t: int) -> int:
        return self.model.program.variables[columns[t]].upper if t in columns else 0

    def _pool(self, t: int) -> int:
        return self.values[self.lanes.pools[t]] if t in self.lanes.pools else 0

    def _set(self, k: int, t: int, delay: int, net: int, came: int) -> None:
        """Store what holds at mark `k`: `net` units copied ahead, less those waiting, and `came` come back."""
        self.values[self.model.delay[k]] = delay
        for columns, value in ((self.lanes.ahead, max(0, net)), (self.lanes.waiting, max(0, -net)), (self.lanes.back, came)):
            if t in columns:
                self.values[columns[t]] = value


class _Lane:
    """How much a lane moves in some nanoseconds and a delay, and which delay it takes to move some units of size."""

    def __init__(self, lanes: _Lanes, rate: Rate) -> None:
        self.scale, self.rate = lanes.model.scale, rate

    def moves(self, time: int, delay: int) -> int:
        """Return the units of size moved, rounded down."""
        return (self.scale.capacity(self.rate, time) + self.rate.numerator * delay) // self.rate.denominator

    def delay(self, time: int, size: int) -> int:
        """Return the least delay in which `size` units are moved."""
        lacking = self.rate.denominator * size - self.scale.capacity(self.rate, time)
        return max(0, -(-lacking // self.rate.numerator))
