"""From a plan to what runs: the step's operations with re-runs in between, and the stays of every tensor on the device.

A re-run happens just before the operation that wants its output. What it rebuilds stays until its idle interval ends, what it
rebuilds only for other re-runs leaves after the last of them in the same batch, the re-runs before one operation.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Set
from dataclasses import dataclass
from itertools import accumulate

from slackswap_opt.instance import Instance
from slackswap_opt.plan import Decision, Plan

MOST_EVENTS, EVENTS_PER_OPERATION = 10_000, 5
"""A plan with more re-runs than come to the larger of these many events is refused: re-runs of re-runs can be quadratic."""


class PlacementError(Exception):
    """A plan that no schedule carries out: its message names the operation and the tensor or the bytes at fault.

    Attributes
    ----------
    operation
        The operation that needs more than the budget, with the re-runs just before it; -1 if something else is at fault.
    excess
        By how many bytes.
    """

    def __init__(self, message: str, operation: int = -1, excess: int = 0) -> None:
        super().__init__(message)
        self.operation = operation
        self.excess = excess


@dataclass(slots=True)
class Stay:
    """A stretch of events through which a tensor must be on the device.

    Attributes
    ----------
    tensor
        Its number.
    first, last
        The first and the last event that need it.
    fetched
        Whether it comes from the host; otherwise event `first` writes it.
    leaves
        What the plan decides after `last`: SWAP where its bytes must be on the host by then.
    written
        The last event that writes the tensor or a second copy of it, or `first - 1`.
    dirty
        Whether an event of this stay wrote its bytes, so that an older host copy is stale.
    early
        The interval that it came back in before its end, as (tensor, start); None if it did not.
    """

    tensor: int
    first: int
    last: int
    fetched: bool
    leaves: Decision
    written: int
    dirty: bool
    early: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class RunList:
    """What runs, and what it needs.

    Attributes
    ----------
    events
        The operation of each event, in order; the second and later ones of an operation are re-runs.
    stays
        The stays of each tensor, in order.
    extra
        For each event the bytes that only it needs: workspace and second copies.
    """

    events: tuple[int, ...]
    stays: tuple[tuple[Stay, ...], ...]
    extra: tuple[int, ...]

    def wanted_by(self, event: int) -> int:
        """Return the operation before whose first run an event stands, or whose first run it is."""
        return max(self.events[: event + 1]) + (self.events[event] < max(self.events[: event + 1]))

    def memory(self, instance: Instance) -> list[int]:
        """For each event the bytes that must be on the device while it runs, copies under way left out."""
        change = [0] * (len(self.events) + 1)
        for stays in self.stays:
            for stay in stays:
                change[stay.first] += instance.tensors[stay.tensor].size
                change[stay.last + 1] -= instance.tensors[stay.tensor].size
        return [live + extra for live, extra in zip(accumulate(change), self.extra, strict=False)]


def run_list(instance: Instance, plan: Plan) -> RunList:
    """Return what runs under `plan`; early returns that the budget does not allow are given up and rebuilt again later.

    Raises
    ------
    PlacementError
        If the events need more than the budget, a re-run needs a tensor that is gone and cannot be rebuilt, or there are far
        too many re-runs.
    """
    budget = instance.budget
    passing: set[tuple[int, int]] = set()
    while True:
        runs = _Walk(instance, plan, passing).runs()
        if budget is None:
            return runs
        memory = runs.memory(instance)
        if max(memory, default=0) <= budget:
            return runs
        worst = {e for e, held in enumerate(memory) if held > budget}
        given_up = {
            stay.early
            for stays in runs.stays
            for stay in stays
            if stay.early and not worst.isdisjoint(range(stay.first, stay.last + 1))
        }
        if given_up <= passing:
            e = min(worst, key=lambda event: (-memory[event], event))
            name = instance.operations[runs.events[e]].name
            message = f"operation '{name}' needs {memory[e]} bytes under this plan, over the budget of {budget}"
            raise PlacementError(message, runs.wanted_by(e), memory[e] - budget)
        passing |= {early for early in given_up if early}


class _Walk:
    """One walk through the step: opens and closes stays, and inserts re-runs where the plan dropped what is wanted."""

    def __init__(self, instance: Instance, plan: Plan, passing: Set[tuple[int, int]]) -> None:
        tensors = len(instance.tensors)
        self.instance = instance
        self.passing = passing
        self.tails = plan.tails
        self.leaving = _leaving(instance, plan)
        self.wanted = instance.wanted
        self.most = max(MOST_EVENTS, EVENTS_PER_OPERATION * len(instance.operations))
        self.events: list[int] = []
        self.extra: list[int] = []
        self.stays: list[list[Stay]] = [[] for _ in range(tensors)]
        self.here: list[Stay | None] = [None] * tensors
        self.away = [Decision.KEEP] * tensors
        self.since = [-1] * tensors
        """The operation after which each tensor left, the start of its interval or its last access."""
        self.state = [0] * tensors
        """How many of its writers have run on the bytes that are here: differs from all of them for in-place groups only."""
        self.rebuilt: list[int] = []
        """What the re-runs of the current batch wrote anew."""

    def runs(self) -> RunList:
        """Walk through all operations."""
        for t, wanted in enumerate(self.wanted):
            for i in wanted:
                if self.away[i] is not Decision.SWAP and not self.usable(i, t):
                    self.rebuild(i)
            self.append(t, rerun=False)
            self.end_batch(t)
            for i, decision in self.leaving[t]:
                self.leave(i, t, decision)
        for stay in self.here:
            if stay is not None:
                self.stays[stay.tensor].append(stay)
        return RunList(tuple(self.events), tuple(map(tuple, self.stays)), tuple(self.extra))

    def leave(self, i: int, t: int, decision: Decision) -> None:
        """Close the stay of tensor `i` after operation `t`, unless it is a tail that is kept."""
        stay = self.here[i]
        self.away[i], self.since[i] = decision, t
        if stay is not None:
            stay.last = len(self.events) - 1
            if decision is not Decision.KEEP:
                stay.leaves = decision
                self.close(stay)

    def close(self, stay: Stay) -> None:
        self.stays[stay.tensor].append(stay)
        self.here[stay.tensor] = None
        self.state[stay.tensor] = 0

    def end_batch(self, t: int) -> None:
        """Close what this batch rebuilt, as of its last use, unless operation `t` wanted it or the plan holds it now."""
        for i in self.rebuilt:
            stay = self.here[i]
            if stay is None or stay.fetched or i in self.wanted[t]:
                continue
            interval = (i, self.since[i])
            if self.away[i] is not Decision.RECOMPUTE or interval in self.passing:
                self.close(stay)
            elif self.since[i] < self.instance.accesses[i][-1]:
                stay.early = interval
        self.rebuilt.clear()

    def rebuild(self, tensor: int) -> None:
        """Append the re-runs that bring `tensor` back, parents before children (depth first, on a stack of our own)."""
        stack = [(tensor, False)]
        while stack:
            i, parents_done = stack.pop()
            if self.ready(i):
                continue
            writers = self.instance.writers[i]
            if parents_done:
                for t in writers[self.state[i] if self.here[i] else 0 :]:
                    self.append(t, rerun=True)
                continue
            if not self.instance.rebuildable[i]:
                name, after = self.instance.tensors[i].name, self.instance.operations[self.since[i]].name
                raise PlacementError(
                    f"tensor '{name}' is wanted again after '{after}', where the plan drops it, but cannot be rebuilt"
                )
            stack.append((i, True))
            stack.extend(
                (j, False)
                for t in reversed(writers)
                for j in reversed(self.instance.operations[t].reads)
                if j != i and not self.ready(j)
            )

    def ready(self, i: int) -> bool:
        """Whether a re-run may read tensor `i` now, or after a prefetch."""
        return self.away[i] is Decision.SWAP or (self.here[i] is not None and self.state[i] == len(self.instance.writers[i]))

    def usable(self, i: int, t: int) -> bool:
        """Whether tensor `i` is here in the state that operation `t` reads: after the writers before it."""
        return self.here[i] is not None and (
            len(self.instance.writers[i]) == 1 or self.state[i] == bisect_left(self.instance.writers[i], t)
        )

    def append(self, t: int, *, rerun: bool) -> None:
        """Add an event for operation `t`: its reads are used, its writes come to be."""
        operation, event = self.instance.operations[t], len(self.events)
        if event >= self.most:
            raise PlacementError(f"re-runs set off re-runs: more than {self.most} events by operation '{operation.name}'")
        self.events.append(t)
        extra = operation.workspace
        for i in operation.reads if rerun else self.wanted[t]:
            stay = self.here[i]
            if stay is None or not self.usable(i, t):
                if stay is not None:
                    self.close(stay)
                stay = self.open(i, event, fetched=True)
                self.state[i] = bisect_right(self.instance.writers[i], self.since[i])
            stay.last = event
        for i in operation.writes:
            stay = self.here[i]
            if stay is None:
                stay = self.open(i, event, fetched=False)
                self.state[i] = 1
                if rerun and self.away[i] is Decision.SWAP:
                    self.close(stay)  # the plan wants it from the host, and no re-run counts on it here
                elif rerun:
                    self.rebuilt.append(i)
            else:
                stay.written = stay.last = event
                if i in operation.reads:
                    stay.dirty = True
                    self.state[i] += 1
                else:
                    extra += self.instance.tensors[i].size
        self.extra.append(extra)

    def open(self, i: int, event: int, *, fetched: bool) -> Stay:
        """Begin a stay of tensor `i`."""
        written = event - 1 if fetched else event
        stay = Stay(i, event, event, fetched, Decision.DISCARD, written, dirty=not fetched)
        self.here[i] = stay
        return stay


def _leaving(instance: Instance, plan: Plan) -> list[list[tuple[int, Decision]]]:
    """For each operation the tensors that leave after it, with the decision on how."""
    leaving: list[list[tuple[int, Decision]]] = [[] for _ in instance.operations]
    for interval, decision in zip(instance.idle_intervals, plan.intervals, strict=True):
        if decision is Decision.RECOMPUTE and not instance.can_recompute(interval):
            raise PlacementError(_cannot(instance, interval.tensor, interval.start, "rebuilt", "its writers cannot run again"))
        if decision is not Decision.KEEP:
            leaving[interval.start].append((interval.tensor, decision))
    for i, decision in enumerate(plan.tails):
        leaving[instance.accesses[i][-1]].append((i, decision))
    for t, left in enumerate(leaving):
        for i, decision in left:
            if decision is Decision.SWAP and not instance.tensors[i].swappable:
                raise PlacementError(_cannot(instance, i, t, "swapped", "it is not swappable"))
    return leaving


def _cannot(instance: Instance, i: int, t: int, what: str, why: str) -> str:
    name, after = instance.tensors[i].name, instance.operations[t].name
    return f"tensor '{name}' cannot be {what} after operation '{after}': {why}"
