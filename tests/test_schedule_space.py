"""That the exhaustive search leaves nothing out, and that the plan space is what it says."""

import random
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt.instance import Instance
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from tests.brute_force import best_schedule, instructions, optimum, plan_optimum, search
from tests.plan_space import PlanRules
from tests.schedule_space import ABSENT, ARRIVING, RESIDENT, Node, Rules
from tests.tiny_instances import tiny_instances


class Loose(Rules):
    """The rules of schedules with nothing left out as needless: one instruction at a time, and any at any time."""

    def _wanted(self, t: int) -> frozenset[int]:
        return frozenset(self.tensors)

    def bound(self, node: Node) -> int:
        return self.makespan(node)

    def may_offload(self, node: Node, i: int) -> bool:
        return self.instance.tensors[i].swappable and node.cells[i].place == RESIDENT

    def may_prefetch(self, node: Node, i: int) -> bool:
        return node.cells[i].copy > 0 and node.cells[i].place == ABSENT

    def may_rerun(self, node: Node, o: int) -> bool:
        return self.instance.operations[o].recomputable

    def removable(self, node: Node, i: int) -> bool:
        return node.cells[i].place != ABSENT and not self.held(node, i)

    def remove(self, node: Node, i: int) -> Node:
        after, cell = super().remove(node, i), node.cells[i]
        copy = 0 if cell.place == ARRIVING and cell.last else cell.copy
        gone = after.cells[i]._replace(copy=copy, last=False)
        return replace(after, cells=(*after.cells[:i], gone, *after.cells[i + 1 :]))

    def cleared(self, node: Node, extra: int, *other: object) -> Iterator[Node]:
        if sum(self.size[i] for i in self.tensors if node.cells[i].place != ABSENT) + extra <= self.budget:
            yield node

    def moves(self, node: Node) -> Iterator[Node]:
        yield from super().moves(node)
        start = replace(node, issued=(), parent=node)
        yield from (self.remove(start, i) for i in self.tensors if self.removable(node, i))


class LoosePlan(PlanRules):
    """The plan space likewise, as far as its rules allow."""

    def _wanted(self, t: int) -> frozenset[int]:
        return frozenset(self.tensors)

    def bound(self, node: Node) -> int:
        return self.makespan(node)

    def cleared(self, node: Node, extra: int, stay: object, forced: set[int], free: object) -> Iterator[Node]:
        held = sum(self.size[i] for i in self.tensors if node.cells[i].place != ABSENT)
        if not forced and held + extra <= self.budget:
            yield node

    def moves(self, node: Node) -> Iterator[Node]:
        yield from super().moves(node)
        start = replace(node, issued=(), parent=node)
        yield from (self.remove(start, i) for i in self.tensors if self.removable(node, i))


@settings(max_examples=60, deadline=None)
@given(tiny_instances(tensors=3, operations=6), st.none() | st.integers(0, 12))
def test_what_is_left_out_as_needless_is_needless(instance: Instance, host_budget: int | None) -> None:
    instance = replace(instance, host_budget=host_budget)
    loose = search(Loose(instance), limit=2_000_000)
    assert optimum(instance) == (loose and Loose(instance).makespan(loose))


@settings(max_examples=60, deadline=None)
@given(tiny_instances(tensors=3, operations=6), st.none() | st.integers(0, 2))
def test_what_is_left_out_of_the_plan_space_is_needless(instance: Instance, W: int | None) -> None:
    loose = search(LoosePlan(instance, W), limit=2_000_000)
    assert plan_optimum(instance, W) == (loose and simulate(instance, Schedule.of(instance, instructions(loose))).makespan)


@settings(max_examples=100, deadline=None)
@given(tiny_instances(), st.randoms(use_true_random=False))
def test_no_random_change_that_the_judge_accepts_makes_a_schedule_shorter(instance: Instance, choice: random.Random) -> None:
    found = best_schedule(instance) or best_schedule(instance, space="all")
    if found and (least := optimum(instance)) is not None:
        issued = list(found[1].instructions)
        for _ in range(60):
            changed = edited(instance, issued, choice)
            if accepted(instance, changed):
                issued = changed
                assert least <= simulate(instance, Schedule.of(instance, issued)).makespan


def edited(instance: Instance, issued: list[Instruction], choice: random.Random) -> list[Instruction]:
    """The instructions with one or two left out, moved or added."""
    changed = list(issued)
    for _ in range(choice.randint(1, 2)):
        kind, place = choice.randrange(3), choice.randrange(len(changed))
        moved = changed.pop(place) if kind < 2 else random_instruction(instance, choice)
        if kind > 0:
            changed.insert(choice.randint(max(0, place - 4), min(len(changed), place + 4)), moved)
    return changed


def random_instruction(instance: Instance, choice: random.Random) -> Instruction:
    """Any instruction of the instance."""
    action = choice.choice(list(Action))
    return Instruction(action, choice.randrange(len(instance.operations if action is Action.RUN else instance.tensors)))


def accepted(instance: Instance, issued: list[Instruction]) -> bool | None:
    """Whether the judge finds the step finished by these instructions; None if one of them breaks a rule."""
    try:
        simulate(instance, Schedule.of(instance, issued))
    except ScheduleError as error:
        return False if "the schedule ends before" in str(error) else None
    return True


@settings(max_examples=80, deadline=None)
@given(tiny_instances(), st.none() | st.integers(0, 1))
def test_a_schedule_of_the_plan_space_obeys_its_rules(instance: Instance, W: int | None) -> None:
    if found := best_schedule(instance, W=W):
        for i in range(len(instance.tensors)):
            obeys(instance, found[1], i, len(instance.operations) if W is None else W)


def obeys(instance: Instance, schedule: Schedule, i: int, W: int) -> None:
    """Check the history of tensor `i` against the rules of the plan space, stretch by stretch between its accesses."""
    accesses, stretches, position = instance.accesses[i], dict[int, list[tuple[str, int]]](), 0
    here, opened = False, -1
    for action, target in schedule.instructions:
        if action is Action.RUN:
            operation = instance.operations[target]
            if target == position:
                position, opened = position + 1, target if target in accesses else opened
                here = here or i in operation.writes
                continue
            events = ["read"] if i in operation.reads and i not in operation.writes else []
            events += ["rebuilt"] if i in operation.writes and not here else []
            here = here or "rebuilt" in events
        elif target != i or action is Action.OFFLOAD:
            continue
        else:
            events, here = ["back" if action is Action.PREFETCH else "gone"], action is Action.PREFETCH
        stretches.setdefault(opened, []).extend((event, position) for event in events)
    for start, history in stretches.items():
        (tail if start == accesses[-1] else inside)(instance, i, start, history, W)


def inside(instance: Instance, i: int, start: int, history: list[tuple[str, int]], W: int) -> None:
    """Kept throughout, or gone and back for good once, and read by re-runs only while it is kept or back."""
    end = next(a for a in instance.accesses[i] if a > start)
    assert instance.budget is not None
    opens = any(instance.keep_all_memory[t] > instance.budget for t in range(start + 1, end))
    without = [event for event, _ in history if event != "read"]
    if "gone" not in without:
        assert not without
        return
    assert opens
    assert without[-1] in ("back", "rebuilt")
    assert without.count("back") <= 1
    returned = max(n for n, (event, _) in enumerate(history) if event in ("back", "rebuilt"))
    for n, (event, position) in enumerate(history):
        if event == "read":
            assert n > returned
            assert end - position <= W
        if event == "rebuilt" and n == returned:
            assert end - position <= W


def tail(instance: Instance, i: int, start: int, history: list[tuple[str, int]], W: int) -> None:
    """Read in one stay only, kept or come back; or else in as many as there are rebuilds, each for one position."""
    stays: list[list[tuple[str, int]]] = [[("rebuilt", start)]]
    for event, position in history:
        if event in ("back", "rebuilt"):
            stays.append([])
        stays[-1].append((event, position))
    useful = [stay for stay in stays if any(event == "read" for event, _ in stay)]
    if len(useful) > 1:
        for stay in useful:
            assert stay[0][0] == "rebuilt"
            assert stay is not stays[0]
            assert len({position for _, position in stay}) == 1
            assert stay[-1][0] == "gone"
