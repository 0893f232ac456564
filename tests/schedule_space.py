"""The rules of schedules as moves from state to state: what the exhaustive search goes through where all schedules are allowed.

Nothing here calls a method, a formulation, the placement or the judge: the rules are written out again.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, combinations
from typing import NamedTuple

from slackswap_opt.instance import Instance
from slackswap_opt.schedule import Action, Instruction

ABSENT, RESIDENT, LEAVING, ARRIVING = range(4)
FREE, HELD, AWAY, BACK, MOMENT, TAIL_AWAY, TAIL_HELD, GONE = range(8)
"""What a plan has in mind for a tensor; FREE where no plan restricts it, and before it is written.

HELD: accessed, or kept through its idle interval. AWAY, then BACK: it leaves for the interval, and has come back inside it.
After the last access MOMENT: discarded, rebuilt for a moment; TAIL_AWAY, then TAIL_HELD: it left and has come back (or was kept
from the start); GONE: no re-run reads it any more.
"""


class Cell(NamedTuple):
    """One tensor: where it is, how many of its writers the copies on device and host have seen, and what a plan wants of it.

    `last` says of a prefetch under way that the host copy goes when it arrives (only where the host's budget is limited).
    """

    place: int = ABSENT
    version: int = 0
    copy: int = 0
    last: bool = False
    role: int = FREE


@dataclass(frozen=True, slots=True)
class Node:
    """What some instructions lead to: the next first run, the compute clock, the tensors, and when each copy under way ends.

    Both lanes end with the last copy under way on them, or not after the compute clock: a copy that ended is one that compute
    has waited for. Ends before the clock are raised to it, since nothing can tell the difference.
    """

    next: int
    clock: int
    cells: tuple[Cell, ...]
    times: tuple[int, ...]
    issued: tuple[Instruction, ...] = ()
    parent: "Node | None" = None

    def dominates(self, other: "Node") -> bool:
        """Return whether every clock is as early as in `other`; asked of nodes that differ in nothing else."""
        return self.clock <= other.clock and all(a <= b for a, b in zip(self.times, other.times, strict=True))


class Rules:
    """What each instruction does, and which are worth trying where every valid schedule is allowed.

    Some shortest schedule has these forms, so no others are tried. `evict` and `drop` stand right before a `run` or `prefetch`
    that does not fit without them or writes that very tensor: until then, later is as good. A prefetch is read by some run
    before its tensor leaves again: otherwise it can be left out, and the offload too if no other prefetch uses it. A copy that
    the host has already is not made again: `drop` does. A re-run gives something that is absent, or goes back to an earlier
    state of a tensor written in place, for the sake of a later first run.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.size = tuple(tensor.size for tensor in instance.tensors)
        self.tensors = range(len(self.size))
        self.budget = sum(self.size) + sum(instance.need) if instance.budget is None else instance.budget
        self.fresh = tuple(tuple(i for i in o.writes if i not in o.reads) for o in instance.operations)
        self.extra = tuple(
            o.workspace + sum(self.size[i] for i in fresh) for o, fresh in zip(instance.operations, self.fresh, strict=True)
        )
        self.touched = tuple(
            tuple(i for i in self.tensors if t in instance.accesses[i]) for t in range(len(instance.operations))
        )
        self.remaining = (*accumulate((o.duration for o in reversed(instance.operations)), initial=0),)[::-1]
        self.first_writer = tuple(instance.operations[writers[0]] for writers in instance.writers)
        places = range(len(instance.operations) + 1)
        self.wanted = tuple(self._wanted(t) for t in places)
        self._versions = tuple(tuple(bisect_left(writers, t) for t in places) for writers in instance.writers)
        self._accesses = tuple(tuple(min((*a[bisect_left(a, t) :], places[-1])) for t in places) for a in instance.accesses)
        self._forced: dict[tuple[int, tuple[bool, ...]], int | None] = {}

    def _wanted(self, t: int) -> frozenset[int]:
        """The tensors that are accessed from operation `t` on, or read by re-runs for the sake of those."""
        operations = self.instance.operations
        wanted = {i for i in self.tensors if self.instance.accesses[i][-1] >= t}
        for o in reversed(operations[:t]):
            if o.recomputable and wanted.intersection(o.writes):
                wanted.update(o.reads)
        return frozenset(wanted)

    def root(self) -> Node:
        """Return the start of the step."""
        return Node(0, 0, (Cell(),) * len(self.size), (0,) * len(self.size))

    def version(self, i: int, t: int) -> int:
        """Return how many writers of tensor `i` come before operation `t`."""
        return self._versions[i][t]

    def next_access(self, i: int, t: int) -> int:
        """Return the first access of tensor `i` at operation `t` or later, or the number of operations."""
        return self._accesses[i][t]

    def lanes(self, node: Node) -> tuple[int, int]:
        """Return when the offload and the prefetch lane are free."""
        out = back = node.clock
        for cell, time in zip(node.cells, node.times, strict=True):
            if cell.place == LEAVING and time > out:
                out = time
            elif cell.place == ARRIVING and time > back:
                back = time
        return (out, back) if self.instance.link.duplex else (max(out, back),) * 2

    def makespan(self, node: Node) -> int:
        """Return when the last thing under way ends."""
        return max(node.clock, *self.lanes(node))

    def bound(self, node: Node) -> int | None:
        """Return a lower bound on the makespan of what may follow, or None if the step cannot be finished.

        All first runs are still to come, and so are re-runs of what is absent without a copy on the host. What arrives, or has
        still to be fetched, holds up its next first run, unless what is to be fetched can be made again.
        """
        lost = tuple(c.place == ABSENT and not c.copy for c in node.cells)
        if (node.next, lost) not in self._forced:
            self._forced[node.next, lost] = self._forced_time(node.next, lost)
        forced = self._forced[node.next, lost]
        if forced is None:
            return None
        out, back = self.lanes(node)
        compute = node.clock + self.remaining[node.next]
        least = max(compute + forced, out, back)
        for i, cell in enumerate(node.cells):
            if cell.place == ARRIVING:
                least = max(least, node.times[i] + self.remaining[self.next_access(i, node.next)])
            elif cell.place == ABSENT and cell.copy and (t := self.next_access(i, node.next)) < len(self.remaining) - 1:
                fetched = back + self.instance.link.prefetch_time(self.size[i]) + self.remaining[t]
                first = self.first_writer[i]
                least = max(least, min(fetched, compute + first.duration) if first.recomputable else fetched)
        return least

    def _forced_time(self, t: int, lost: tuple[bool, ...]) -> int | None:
        operations, again = self.instance.operations, set[int]()
        pending = [(i, t) for i in self.tensors if lost[i] and self.next_access(i, t) < len(operations)]
        while pending:
            i, before = pending.pop()
            for o in set(self.instance.writers[i]) - again:
                if o < before:
                    again.add(o)
                    pending.extend((j, o) for j in operations[o].reads if lost[j])
        return sum(operations[o].duration for o in again) if all(operations[o].recomputable for o in again) else None

    def changed(self, node: Node, i: int, cell: Cell, time: int, instruction: Instruction) -> Node:
        """Return `node` after an instruction that moves tensor `i` alone."""
        cells, times = list(node.cells), list(node.times)
        cells[i], times[i] = cell, time
        return Node(node.next, node.clock, tuple(cells), tuple(times), (*node.issued, instruction), node.parent)

    def at(self, node: Node, clock: int) -> Node:
        """Return `node` with compute waiting until `clock`."""
        if clock <= node.clock:
            return node
        moving = zip(node.cells, node.times, strict=True)
        times = tuple(max(t, clock) if c.place in (LEAVING, ARRIVING) else 0 for c, t in moving)
        return Node(node.next, clock, node.cells, times, node.issued, node.parent)

    def offload(self, node: Node, i: int) -> Node:
        """Return `node` after the offload of tensor `i`, which is resident."""
        end = self.lanes(node)[0] + self.instance.link.offload_time(self.size[i])
        cell = node.cells[i]._replace(place=LEAVING, copy=node.cells[i].version)
        return self.changed(node, i, cell, end, Instruction(Action.OFFLOAD, i))

    def prefetch(self, node: Node, i: int, *, last: bool = False) -> Node:
        """Return `node` after the prefetch of tensor `i`, which is absent and has a copy on the host."""
        end = self.lanes(node)[1] + self.instance.link.prefetch_time(self.size[i])
        cell = node.cells[i]._replace(place=ARRIVING, version=node.cells[i].copy, last=last)
        return self.changed(node, i, cell, end, Instruction(Action.PREFETCH, i))

    def remove(self, node: Node, i: int) -> Node:
        """Return `node` after tensor `i`, resident or leaving, has left the device: by `drop`, or by `evict`, which waits."""
        action = Action.EVICT if node.cells[i].place == LEAVING else Action.DROP
        cell = node.cells[i]._replace(place=ABSENT, version=0)
        return self.changed(self.at(node, node.times[i]), i, cell, 0, Instruction(action, i))

    def run(self, node: Node, o: int) -> Node | None:
        """Return `node` after operation `o`, or None if it cannot run now; memory is not looked at."""
        operation, cells, clock = self.instance.operations[o], list(node.cells), node.clock
        unwritten = (i for i in self.touched[o] if i not in operation.writes)
        for i in (*operation.reads, *unwritten) if o == node.next else operation.reads:
            if cells[i].version != self.version(i, o):
                return None
            if cells[i].place == ARRIVING:
                clock = max(clock, node.times[i])
                cells[i] = cells[i]._replace(place=RESIDENT, copy=0 if cells[i].last else cells[i].copy, last=False)
        for i in operation.writes:
            if cells[i].place in (LEAVING, ARRIVING):
                return None
            if cells[i].place == ABSENT:
                cells[i] = cells[i]._replace(place=RESIDENT, version=1)
            elif i in operation.reads:
                cells[i] = cells[i]._replace(version=cells[i].version + 1)
        times = tuple(time if c.place in (LEAVING, ARRIVING) else 0 for c, time in zip(cells, node.times, strict=True))
        issued = (*node.issued, Instruction(Action.RUN, o))
        moved = Node(max(node.next, o + 1), node.clock, tuple(cells), times, issued, node.parent)
        return self.at(moved, clock + operation.duration)

    def cleared(self, node: Node, extra: int, stay: Collection[int], forced: set[int], free: set[int]) -> Iterator[Node]:
        """Yield `node` after each smallest set of removals that makes room for `extra` bytes without touching `stay`.

        Those in `forced` are always removed; those in `free` may be, needed or not.
        """
        over = sum(self.size[i] for i in self.tensors if node.cells[i].place != ABSENT) + extra - self.budget
        over -= sum(self.size[i] for i in forced)
        others = [i for i in self.tensors if i not in forced and i not in stay and self.removable(node, i)]
        for chosen in chain.from_iterable(combinations(others, count) for count in range(len(others) + 1)):
            freed = sum(self.size[i] for i in chosen)
            if freed >= over and all(i in free or freed - self.size[i] < over for i in chosen):
                after = node
                for i in (*sorted(forced), *chosen):
                    after = self.remove(after, i)
                yield after

    def moves(self, node: Node) -> Iterator[Node]:
        """Yield what may follow `node`, by one copy, or by one run with the removals before it and the drops after it."""
        node = Node(node.next, node.clock, node.cells, node.times, (), node)
        for i in self.tensors:
            if self.may_offload(node, i) and self._fits_host(node, i):
                yield self.offload(node, i)
            if self.may_prefetch(node, i) and (node.cells[i].place == ABSENT or self.removable(node, i)):
                own = {i} if node.cells[i].place != ABSENT else set[int]()
                for ready in self.cleared(node, self.size[i], (), own, set()):
                    for last in (False, True) if self.instance.host_budget is not None else (False,):
                        yield self.prefetch(ready, i, last=last)
        for o in (node.next, *filter(lambda o: self.may_rerun(node, o), range(node.next))):
            forced = {i for i in self.fresh[o] if node.cells[i].place == LEAVING} | self.ending(node, o)
            if all(self.removable(node, i) for i in forced):
                resets = {i for i in self.fresh[o] if len(self.instance.writers[i]) > 1}
                stay = self.touched[o] if o == node.next else self.instance.operations[o].reads
                for ready in self.cleared(node, self.extra[o], set(stay) - set(self.fresh[o]), forced, resets):
                    if after := self.run(ready, o):
                        yield from self.settled(ready, after, o)

    def _fits_host(self, node: Node, i: int) -> bool:
        held = sum(self.size[j] for j in self.tensors if node.cells[j].copy and j != i)
        return self.instance.host_budget is None or held + self.size[i] <= self.instance.host_budget

    def may_offload(self, node: Node, i: int) -> bool:
        """Return whether an offload of tensor `i` is worth trying."""
        cell = node.cells[i]
        swappable = self.instance.tensors[i].swappable and i in self.wanted[node.next]
        return swappable and cell.place == RESIDENT and cell.copy != cell.version

    def may_prefetch(self, node: Node, i: int) -> bool:
        """Return whether a prefetch of tensor `i`, after its removal if need be, is worth trying."""
        cell = node.cells[i]
        stale = cell.place == LEAVING or (cell.place == RESIDENT and cell.copy != cell.version)
        return cell.copy > 0 and i in self.wanted[node.next] and (cell.place == ABSENT or stale)

    def may_rerun(self, node: Node, o: int) -> bool:
        """Return whether another run of operation `o` is worth trying."""
        return self.instance.operations[o].recomputable and any(
            i in self.wanted[node.next] and (node.cells[i].place == ABSENT or len(self.instance.writers[i]) > 1)
            for i in self.instance.operations[o].writes
        )

    def removable(self, node: Node, i: int) -> bool:
        """Return whether tensor `i` may leave the device now; one that is still arriving never needs to."""
        return node.cells[i].place in (RESIDENT, LEAVING) and not self.held(node, i)

    def held(self, node: Node, i: int) -> bool:
        """Return whether something outside the plan holds tensor `i`."""
        return any(first < node.next <= last for first, last in self.instance.tensors[i].held)

    def ending(self, node: Node, o: int) -> set[int]:
        """Return the tensors that must have left before operation `o` runs."""
        return set()

    def settled(self, before: Node, after: Node, o: int) -> Iterator[Node]:
        """Yield what may come of operation `o` having run: here what nothing can want any more is dropped."""
        for i in self.tensors:
            if after.cells[i].place == RESIDENT and i not in self.wanted[after.next]:
                after = self.remove(after, i)
        yield after
