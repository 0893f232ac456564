"""The rules of the plan space on top of those of schedules: see `tests.brute_force.best_schedule` for what they say."""

from collections.abc import Iterator
from itertools import product

from slackswap_opt.instance import Instance
from tests.schedule_space import (
    ABSENT,
    AWAY,
    BACK,
    GONE,
    HELD,
    LEAVING,
    MOMENT,
    RESIDENT,
    TAIL_AWAY,
    TAIL_HELD,
    Node,
    Rules,
)


class PlanRules(Rules):
    """The same for the schedules of the plan space alone; see `best_schedule`."""

    def __init__(self, instance: Instance, W: int | None) -> None:
        super().__init__(instance)
        self.W = len(instance.operations) if W is None else W
        self.intervals = {(g.tensor, g.start): g for g in instance.idle_intervals}
        self.open = {
            key: any(instance.keep_all_memory[t] > self.budget for t in range(g.start + 1, g.end))
            for key, g in self.intervals.items()
        }

    def _within(self, i: int, t: int) -> bool:
        return self.next_access(i, t) - t <= self.W

    def _may_return(self, i: int, role: int, t: int) -> bool:
        """Whether a re-run just before operation `t` may give tensor `i` back."""
        if role == AWAY:
            return self._within(i, t) and self._all_written(i, t) and self.instance.rebuildable[i]
        return role in (MOMENT, TAIL_AWAY) and self.instance.rebuildable[i]

    def _all_written(self, i: int, t: int) -> bool:
        return self.instance.writers[i][-1] < t

    def _in_progress(self, node: Node, i: int) -> bool:
        """Whether tensor `i` is being rebuilt: some of its writers have run again, and others have not yet."""
        return 0 < node.cells[i].version < self.version(i, node.next)

    def may_offload(self, node: Node, i: int) -> bool:
        return super().may_offload(node, i) and node.cells[i].role in (HELD, AWAY, BACK, TAIL_AWAY) and self._sound(node, i)

    def _sound(self, node: Node, i: int) -> bool:
        return not self._in_progress(node, i)

    def may_prefetch(self, node: Node, i: int) -> bool:
        cell = node.cells[i]
        good = cell.copy == self.version(i, node.next) > 0 and cell.place in (ABSENT, LEAVING)
        return good and cell.role in (AWAY, TAIL_AWAY) and i in self.wanted[node.next]

    def prefetch(self, node: Node, i: int, *, last: bool = False) -> Node:
        after = super().prefetch(node, i, last=last)
        return self._with_role(after, i, BACK if node.cells[i].role == AWAY else TAIL_HELD)

    def remove(self, node: Node, i: int) -> Node:
        after = super().remove(node, i)
        return self._with_role(after, i, GONE) if node.cells[i].role == TAIL_HELD else after

    def _with_role(self, node: Node, i: int, role: int) -> Node:
        cells = (*node.cells[:i], node.cells[i]._replace(role=role), *node.cells[i + 1 :])
        return Node(node.next, node.clock, cells, node.times, node.issued, node.parent)

    def removable(self, node: Node, i: int) -> bool:
        cell = node.cells[i]
        if cell.place == LEAVING:
            return cell.role in (AWAY, TAIL_AWAY)
        return cell.place == RESIDENT and cell.role in (TAIL_HELD, MOMENT) and self._sound(node, i)

    def ending(self, node: Node, o: int) -> set[int]:
        if o < node.next:
            return set()
        return {i for i in self.tensors if node.cells[i].role == MOMENT and node.cells[i].place == RESIDENT}

    def may_rerun(self, node: Node, o: int) -> bool:
        operation = self.instance.operations[o]
        return (
            operation.recomputable
            and any(i in self.wanted[node.next] and self._gives(node, i) for i in operation.writes)
            and all(self._readable(node, i) or (i in operation.writes and self._in_progress(node, i)) for i in operation.reads)
        )

    def _gives(self, node: Node, i: int) -> bool:
        absent = node.cells[i].place == ABSENT or self._in_progress(node, i)
        return absent and self._may_return(i, node.cells[i].role, node.next)

    def _readable(self, node: Node, i: int) -> bool:
        """Whether a re-run may read tensor `i` now: it is there to stay, or for the moment, and in its last state."""
        role = node.cells[i].role
        there = role in (HELD, TAIL_HELD) or (role == BACK and self._within(i, node.next))
        return (there or (role == MOMENT and node.cells[i].place == RESIDENT)) and self._sound(node, i)

    def settled(self, before: Node, after: Node, o: int) -> Iterator[Node]:
        if o < before.next:
            yield from self._returned(before, after, o)
        elif not any(self._in_progress(before, i) for i in self.tensors):
            for choice in product(*(self._opened(after, i, o) for i in self.touched[o])):
                node = after
                for i, (role, stays) in zip(self.touched[o], choice, strict=True):
                    node = self._with_role(node, i, role)
                    node = node if stays else self._with_role(super().remove(node, i), i, role)
                yield node

    def _returned(self, before: Node, after: Node, o: int) -> Iterator[Node]:
        """Yield what may be held and what is dropped at once after a re-run."""
        came = [
            i
            for i in self.instance.operations[o].writes
            if before.cells[i].place == ABSENT or (i in self.instance.operations[o].reads and self._in_progress(before, i))
        ]
        options = [(True, False) if self._may_return(i, after.cells[i].role, after.next) else (False,) for i in came]
        for choice in product(*options):
            node = after
            for i, stays in zip(came, choice, strict=True):
                role = node.cells[i].role
                if not stays:
                    node = super().remove(node, i)
                elif role != MOMENT and not self._in_progress(node, i):
                    node = self._with_role(node, i, BACK if role == AWAY else TAIL_HELD)
            yield node

    def _opened(self, node: Node, i: int, t: int) -> Iterator[tuple[int, bool]]:
        """Yield the role of tensor `i` after its access at operation `t`, and whether it stays on the device for now."""
        tail = t == self.instance.accesses[i][-1]
        leaving = node.cells[i].place == LEAVING
        if tail and i not in self.wanted[t + 1]:
            # A copy that nothing will use need not have been made: another branch has the same without it.
            if not leaving:
                yield GONE, False
            return
        if not tail and not self.open.get((i, t), False):
            yield HELD, True
            return
        away = TAIL_AWAY if tail else AWAY
        good = node.cells[i].copy == node.cells[i].version
        if not (tail and leaving):
            yield TAIL_HELD if tail else HELD, True
        if self.instance.tensors[i].swappable and (leaving or not good):
            yield away, True
        if not leaving and (good or (self.instance.rebuildable[i] and self._all_written(i, t + 1))):
            yield away, False
        if tail and not leaving:
            yield MOMENT, False
