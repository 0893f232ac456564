import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slackswap_opt.files import LARGEST
from slackswap_opt.instance import GroupAccess, IdleInterval, Instance, Link, Operation, Tensor
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from slackswap_opt.testing import instances

DERIVED = (
    "writers",
    "accesses",
    "group_accesses",
    "wanted",
    "idle_intervals",
    "rebuildable",
    "need",
    "keep_all_memory",
    "peak",
    "ideal",
    "largest_need",
    "floor",
    "fingerprint",
)


@given(instances(budgets=(0, 100), host_budgets=True) | instances())
def test_an_instance_comes_back_from_json_the_same(instance: Instance) -> None:
    assert Instance.from_json(instance.to_json()) == instance


@given(st.text().filter(str.isprintable), st.text().filter(str.isprintable), st.integers(0, LARGEST // 4))
def test_any_names_and_numbers_come_back(name: str, block: str, number: int) -> None:
    instance = Instance(
        name,
        (Tensor(name, number, kind=block),),
        (Operation(name, number, (), (0,), number, phase="backward", block=block),),
        Link(number + 1, LARGEST, LARGEST, duplex=False),
        budget=number,
        host_budget=LARGEST,
    )
    assert Instance.from_json(instance.to_json()) == instance


@given(instances())
def test_figures_are_in_order(instance: Instance) -> None:
    for t, operation in enumerate(instance.operations):
        assert operation.workspace <= instance.need[t] <= instance.floor[t] <= instance.keep_all_memory[t]
    assert instance.largest_need <= max(instance.floor) <= instance.peak
    assert instance.largest_need == max(instance.need)
    assert instance.peak <= sum(tensor.size for tensor in instance.tensors) + max(o.workspace for o in instance.operations)


@given(instances())
def test_accesses_are_what_operations_say_and_what_is_held(instance: Instance) -> None:
    for i, (tensor, accesses) in enumerate(zip(instance.tensors, instance.accesses, strict=True)):
        for t, operation in enumerate(instance.operations):
            held = any(first <= t <= last for first, last in tensor.held)
            assert (t in accesses) == (i in operation.reads or i in operation.writes or held)
        assert list(accesses) == sorted(set(accesses))
        assert accesses[0] == instance.writers[i][0]


@given(instances())
def test_idle_intervals_are_the_gaps_between_accesses(instance: Instance) -> None:
    gaps = []
    for i, accesses in enumerate(instance.accesses):
        for start in accesses:
            later = [t for t in accesses if t > start]
            if later and later[0] > start + 1:
                gaps.append(IdleInterval(i, start, later[0]))
    assert list(instance.idle_intervals) == gaps


@given(instances(), st.data())
def test_a_tensor_is_rebuildable_if_its_writers_alone_bring_it_back(instance: Instance, data: st.DataObject) -> None:
    # Everything is kept to the end. Then the tensor is dropped, its writers run again, and one more operation reads it.
    i = data.draw(st.integers(0, max(len(instance.tensors) - 1, 0)), label="tensor")
    assume(i < len(instance.tensors))
    end = len(instance.operations)
    longer = replace(instance, operations=(*instance.operations, Operation("reader", 0, (i,))))
    runs = [*range(end), -1, *instance.writers[i], end]
    schedule = Schedule.of(longer, (Instruction(Action.RUN, t) if t >= 0 else Instruction(Action.DROP, i) for t in runs))
    if instance.rebuildable[i]:
        assert simulate(longer, schedule).recomputed == len(instance.writers[i])
    else:
        with pytest.raises(ScheduleError):
            simulate(longer, schedule)


@given(instances(), st.integers(0, 99), st.booleans())
def test_a_changed_budget_or_link_changes_nothing_else(instance: Instance, budget: int, derived_before: bool) -> None:
    before = [getattr(instance, name) for name in DERIVED] if derived_before else []
    link = Link(5, 6, 7, duplex=False)
    for changed in (instance.with_budget(budget).with_link(link), instance.with_link(link).with_budget(budget)):
        afresh = Instance(instance.name, instance.tensors, instance.operations, link, budget, instance.host_budget)
        assert changed == afresh
        assert hash(changed) == hash(afresh)
        for name in DERIVED:
            assert getattr(changed, name) == getattr(afresh, name)
    assert instance.with_budget(budget).with_budget(None).budget is None
    assert instance.link != link
    assert before == ([getattr(instance, name) for name in DERIVED] if derived_before else [])


@given(instances(), instances())
def test_the_fingerprint_ignores_names_times_link_and_budgets(instance: Instance, other: Instance) -> None:
    renamed = Instance(
        "another name",
        tuple(replace(tensor, name=f"renamed {i}", kind="kind") for i, tensor in enumerate(instance.tensors)),
        tuple(
            replace(operation, name=f"renamed {t}", duration=operation.duration + 1, phase="backward", block="block")
            for t, operation in enumerate(instance.operations)
        ),
        other.link,
        budget=1,
        host_budget=2,
    )
    assert renamed.fingerprint == instance.fingerprint


def with_tensor(instance: Instance, **changes: Any) -> Instance:
    return replace(instance, tensors=(replace(instance.tensors[0], **changes), *instance.tensors[1:]))


def with_operation(instance: Instance, t: int, **changes: Any) -> Instance:
    operations = list(instance.operations)
    operations[t] = replace(operations[t], **changes)
    return replace(instance, operations=tuple(operations))


# Sizes 4, 2 and 1; `i` adds to x in place.
#
#   w: -> x    f: x -> y    i: x -> x, z    g: y, z    h: x
STEP = Instance(
    name="step",
    tensors=(Tensor("x", 4), Tensor("y", 2), Tensor("z", 1)),
    operations=(
        Operation("w", 10, (), (0,)),
        Operation("f", 20, (0,), (1,), workspace=8),
        Operation("i", 30, (0,), (0, 2)),
        Operation("g", 40, (1, 2), (), phase="backward"),
        Operation("h", 50, (0,), (), workspace=1, phase="backward", block="layer"),
    ),
    link=Link(10**9, 10**9),
    budget=14,
)


def test_what_follows_from_a_step_by_hand() -> None:
    assert STEP.writers == ((0, 2), (1,), (2,))
    assert STEP.accesses == ((0, 1, 2, 4), (1, 3), (2, 3))
    assert STEP.idle_intervals == (IdleInterval(0, 2, 4), IdleInterval(1, 1, 3))
    assert STEP.wanted == ((), (0,), (0,), (1, 2), (0,))
    assert STEP.group_accesses == {
        0: (GroupAccess(0, 0, True),),
        1: (GroupAccess(0, 1, False),),
        2: (GroupAccess(0, 1, True),),
        4: (GroupAccess(0, 2, False),),
    }
    assert STEP.need == (4, 14, 5, 3, 5)
    assert STEP.keep_all_memory == (4, 14, 7, 7, 5)
    assert (STEP.peak, STEP.largest_need, STEP.ideal) == (14, 14, 150)
    assert STEP.floor == STEP.need


def test_what_is_held_is_wanted_where_that_begins() -> None:
    held = with_tensor(STEP, held=((3, 3),))
    assert held.wanted == ((), (0,), (0,), (1, 2, 0), (0,))
    assert held.need == (4, 14, 5, 7, 5)


def test_what_is_rebuildable_by_hand() -> None:
    # x: w and i in order. y: f read x before i changed it. z: i changes x too.
    assert STEP.rebuildable == (True, False, False)
    assert with_operation(STEP, 0, recomputable=False).rebuildable == (False, False, False)
    assert with_operation(STEP, 2, writes=(2,)).rebuildable == (True, True, True)
    # i changes y as well, so that neither x nor y can be brought back alone.
    assert with_operation(STEP, 2, reads=(0, 1), writes=(0, 1, 2)).rebuildable == (False, False, False)


def test_a_tensor_can_be_recomputed_once_all_its_writers_have_run() -> None:
    assert STEP.can_recompute(IdleInterval(0, 2, 4))
    assert not STEP.can_recompute(IdleInterval(0, 0, 2))
    assert not STEP.can_recompute(IdleInterval(1, 1, 3))


def test_the_floor_holds_what_can_neither_leave_nor_run_again() -> None:
    # x is idle in 2 until i changes it in 3, and in 4 until h reads it.
    operations = list(STEP.operations)
    operations[2:3] = [Operation("pause", 0), operations[2]]
    operations.insert(4, Operation("another pause", 0))
    instance = with_tensor(replace(STEP, operations=tuple(operations)), swappable=False)
    assert instance.idle_intervals[:2] == (IdleInterval(0, 1, 3), IdleInterval(0, 3, 6))
    assert instance.floor == instance.need
    # i cannot run again: what it leaves must stay, but in 2 x may still be dropped and written by w again.
    assert with_operation(instance, 3, recomputable=False).floor == (4, 14, 0, 5, 0 + 4, 3 + 4, 5)
    assert with_operation(instance, 0, recomputable=False).floor == (4, 14, 0 + 4, 5, 0 + 4, 3 + 4, 5)
    runs = [(Action.RUN, 0), (Action.RUN, 1), (Action.DROP, 0), (Action.RUN, 2), (Action.RUN, 0), (Action.RUN, 3)]
    schedule = [Instruction(*pair) for pair in (*runs, (Action.RUN, 4), (Action.RUN, 5), (Action.RUN, 6))]
    once = with_operation(instance, 3, recomputable=False)
    assert simulate(once.with_budget(None), Schedule.of(once, schedule)).resident[2] == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda instance: with_tensor(instance, size=5),
        lambda instance: with_tensor(instance, swappable=False),
        lambda instance: with_tensor(instance, held=((0, 1),)),
        lambda instance: with_operation(instance, 1, workspace=9),
        lambda instance: with_operation(instance, 1, recomputable=False),
        lambda instance: with_operation(instance, 4, reads=(0, 1)),
        lambda instance: with_operation(instance, 2, writes=(2,)),
        lambda instance: replace(instance, operations=(*instance.operations, Operation("more", 0))),
        lambda instance: replace(
            instance,
            tensors=(*instance.tensors, Tensor("more", 0)),
            operations=(*instance.operations, Operation("more", 0, (), (3,))),
        ),
    ],
)
def test_the_fingerprint_changes_with_the_structure(change: Callable[[Instance], Instance]) -> None:
    assert change(STEP).fingerprint != STEP.fingerprint


def test_the_fingerprint_is_the_same_everywhere() -> None:
    assert STEP.fingerprint == "2a04b850aec4c425e590a74220c80321"


def test_copy_times_are_rounded_up() -> None:
    link = Link(offload_bandwidth=3 * 10**9, prefetch_bandwidth=10**9, latency=7)
    assert [link.offload_time(size) for size in (0, 1, 3, 4)] == [7, 8, 8, 9]
    assert [link.prefetch_time(size) for size in (0, 1, 3, 4)] == [7, 8, 10, 11]
    assert Link(3, 10**18).offload_time(2**61) == -(-(2**61) * 10**9 // 3)
    assert Link(3, 10**18).prefetch_time(1) == 1


def test_the_file_is_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    STEP.save(path)
    assert Instance.load(path) == STEP
    members = json.loads(path.read_text())
    assert list(members) == ["format", "version", "name", "budget", "host_budget", "link", "tensors", "operations"]
    assert (members["format"], members["version"], members["budget"], members["host_budget"]) == (
        "slackswap-instance",
        1,
        14,
        None,
    )
    assert members["link"] == {"offload_bandwidth": 10**9, "prefetch_bandwidth": 10**9, "latency": 0, "duplex": True}
    assert members["tensors"][1] == {"name": "y", "size": 2, "swappable": True, "kind": ""}
    assert members["operations"][4] == {
        "name": "h",
        "duration": 50,
        "reads": [0],
        "writes": [],
        "workspace": 1,
        "recomputable": True,
        "phase": "backward",
        "block": "layer",
    }


def test_members_with_a_default_may_be_absent() -> None:
    text = """{"format": "slackswap-instance", "version": 1, "name": "step", "tensors": [{"name": "x", "size": 4}],
        "link": {"offload_bandwidth": 1, "prefetch_bandwidth": 1, "latency": 0, "duplex": true},
        "operations": [{"name": "f", "duration": 1, "reads": [], "writes": [0]}]}"""
    expected = Instance(
        "step", (Tensor("x", 4, True, ""),), (Operation("f", 1, (), (0,), 0, True, "forward", None),), Link(1, 1)
    )
    assert Instance.from_json(text) == expected


def test_an_instance_of_nothing_is_one() -> None:
    empty = Instance("", (), (), Link(1, 1))
    assert Instance.from_json(empty.to_json()) == empty
    assert (empty.peak, empty.largest_need, empty.ideal, empty.floor, empty.idle_intervals) == (0, 0, 0, (), ())
