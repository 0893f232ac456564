import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.schedule import Action
from slackswap_opt.simulate import simulate
from slackswap_opt.testing import instances, schedules

LINK = Link(10**9, 10**9)

PECULIARITIES: dict[str, Callable[[Instance], bool]] = {
    "in_place": lambda instance: bool(instance.group_accesses),
    "held": lambda instance: any(tensor.held for tensor in instance.tensors),
    "unswappable": lambda instance: not all(tensor.swappable for tensor in instance.tensors),
    "non_recomputable": lambda instance: not all(operation.recomputable for operation in instance.operations),
    "workspace": lambda instance: any(operation.workspace for operation in instance.operations),
}


def plain(**allowed: bool) -> st.SearchStrategy[Instance]:
    """Instances with no peculiarity but those allowed."""
    flags = dict.fromkeys(PECULIARITIES, False) | allowed
    return instances(
        forward_reads=False,
        in_place=flags["in_place"],
        held=flags["held"],
        unswappable=flags["unswappable"],
        non_recomputable=flags["non_recomputable"],
        workspace=flags["workspace"],
    )


def smallest(strategy: st.SearchStrategy[Any], condition: Callable[[Any], bool], *phases: Phase) -> Any:
    chosen = settings(max_examples=1000, database=None, phases=phases or (Phase.generate, Phase.shrink))
    return find(strategy, condition, settings=chosen, random=random.Random(0))


@given(st.data(), st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))
def test_instances_keep_to_the_largest_numbers(
    data: st.DataObject, tensors: int, operations: int, size: int, duration: int
) -> None:
    instance = data.draw(
        instances(max_tensors=tensors, max_operations=operations, max_size=size, max_duration=duration), label="instance"
    )
    assert len(instance.tensors) <= tensors
    assert 1 <= len(instance.operations) <= operations
    assert all(tensor.size <= size for tensor in instance.tensors)
    assert all(operation.duration <= duration for operation in instance.operations)


@given(plain())
def test_plain_instances_have_no_peculiarity(instance: Instance) -> None:
    assert not [name for name, has in PECULIARITIES.items() if has(instance)]
    assert not any(operation.reads for operation in instance.operations if operation.phase == "forward")
    assert (instance.budget, instance.host_budget) == (None, None)


@pytest.mark.parametrize("name", PECULIARITIES)
def test_each_peculiarity_is_found_where_it_is_allowed(name: str) -> None:
    assert smallest(plain(**{name: True}), PECULIARITIES[name], Phase.generate)


@given(instances(budgets=(0, 100), host_budgets=True))
def test_budgets_lie_between_the_floor_and_the_peak(instance: Instance) -> None:
    assert instance.budget is not None
    assert max(instance.floor) <= instance.budget <= instance.peak
    assert instance.host_budget is None or 0 <= instance.host_budget <= sum(tensor.size for tensor in instance.tensors)


@given(instances(budgets=(100, 100)))
def test_a_budget_of_a_hundred_percent_is_the_peak(instance: Instance) -> None:
    assert instance.budget == instance.peak


def test_instances_shrink_to_the_smallest_of_their_kind() -> None:
    # A tensor that is idle through another operation's workspace: three operations, nothing that could be left out.
    found = smallest(instances(), lambda instance: instance.peak > instance.largest_need)
    assert len(found.operations) == 3
    assert len(found.tensors) <= 2
    assert sum(operation.duration for operation in found.operations) == 0
    assert max(tensor.size for tensor in found.tensors) == 1


def test_schedules_shrink_to_the_smallest_of_their_kind() -> None:
    instance = Instance(
        "step",
        (Tensor("x", 4), Tensor("y", 2)),
        (Operation("f", 5, (), (0,)), Operation("g", 5, (0,), (1,)), Operation("h", 5, (0, 1), ())),
        LINK,
    )
    found = smallest(schedules(instance), lambda schedule: simulate(instance, schedule).prefetched > 0)
    actions = [action for action, _ in found.instructions if action != Action.RUN]
    assert actions == [Action.OFFLOAD, Action.EVICT, Action.PREFETCH]


@given(st.data())
def test_schedules_break_no_rule(data: st.DataObject) -> None:
    instance = data.draw(instances(host_budgets=True), label="instance")
    simulate(instance, data.draw(schedules(instance), label="schedule"))


@pytest.mark.parametrize("strategy", [instances, lambda: schedules(Instance("none", (), (), LINK))])
def test_the_error_without_hypothesis_is_the_line_that_installs_it(
    strategy: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(ImportError, match=r"^pip install 'hypothesis>=6\.100'$"):
        strategy()
