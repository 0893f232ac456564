"""A plan that can be placed can be completed, feasibly, to what the judge then says."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt.formulations.presolve import Reductions
from slackswap_opt.formulations.rounding import Rounding, Units
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.instances import load
from slackswap_opt.place import PlacementError, place
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.solve import solve
from tests.tiny_instances import tiny_instances

KEEP, SWAP, RECOMPUTE, DISCARD = Decision


def random_plan(instance: Instance, random: Random) -> Plan:
    intervals = tuple(random.choice((KEEP, SWAP, RECOMPUTE)) for _ in instance.idle_intervals)
    return Plan(intervals, tuple(random.choice((KEEP, SWAP, RECOMPUTE, DISCARD)) for _ in instance.tensors))


@given(tiny_instances(tensors=6, operations=11), st.randoms(use_true_random=False), st.sampled_from(Rounding))
def test_what_can_be_placed_can_be_completed(instance: Instance, random: Random, rounding: Rounding) -> None:
    plan = random_plan(instance, random)
    model = SlackModel(instance, rounding=rounding)
    values = model.plan_to_values(plan)
    if values is not None:
        assert model.program.broken(values) is None
        assert all(isinstance(value, int) for value in values)
    else:
        with pytest.raises(PlacementError):
            place(instance, plan)


@pytest.mark.parametrize("name", ["bert-large", "llama-7b"])
@pytest.mark.parametrize("duplex", [True, False])
def test_greedy_plans_are_completed(name: str, duplex: bool) -> None:
    link = Link(25 * 10**9, 25 * 10**9, 10_000, duplex)
    result = solve(load(name, layers=4).with_link(link), budget="50%")
    assert result.plan is not None
    assert result.makespan is not None
    for rounding, units in (
        (Rounding.OUTER, None),
        (Rounding.INNER, None),
        (Rounding.INNER, Units.coarse(result.instance, 24)),
    ):
        model = SlackModel(result.instance, rounding=rounding, units=units)
        values = model.plan_to_values(result.plan)
        assert values is not None
        overhead = model.program.value(values) * model.units.time
        if duplex:
            assert result.ideal + overhead == pytest.approx(result.makespan, rel=0.02)


def test_the_delays_of_a_step_worked_out_by_hand() -> None:
    # 8 bytes leave between operations 0 and 2 at a byte a nanosecond, gone before 1 begins: 8 ns less the 4 ns of operation 0,
    # during which the model lets the copy begin; back before 2 begins: 8 ns, none of it during 1, where there is no room.
    tensors = (Tensor("x", 8), Tensor("y", 8))
    operations = (Operation("o0", 4, (), (0,)), Operation("o1", 20, (), (1,)), Operation("o2", 3, (0,), ()))
    instance = Instance("step", tensors, operations, Link(10**9, 10**9), 8)
    model = SlackModel(instance, rounding=Rounding.INNER)
    values = model.plan_to_values(Plan((SWAP,), (DISCARD, DISCARD)))
    assert values is not None
    assert [values[column] for column in model.delay] == [4, 8]
    rebuilt = model.plan_to_values(Plan((RECOMPUTE,), (DISCARD, DISCARD)))
    assert rebuilt is not None
    assert [rebuilt[column] for column in model.delay] == [0, 4]
    assert model.plan_to_values(Plan((KEEP,), (DISCARD, DISCARD))) is None


def test_a_plan_that_rebuilds_what_cannot_be_rebuilt_is_not_completed() -> None:
    tensors = (Tensor("x", 8), Tensor("y", 8))
    operations = (Operation("o0", 4, (), (0,), recomputable=False), Operation("o1", 9, (), (1,)), Operation("o2", 3, (0,), ()))
    model = SlackModel(Instance("step", tensors, operations, Link(10**9, 10**9), 8), reductions=Reductions())
    assert model.plan_to_values(Plan((RECOMPUTE,), (DISCARD, DISCARD))) is None
