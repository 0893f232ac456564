"""What presolve leaves out loosens a model, or changes nothing."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt.files import InputError
from slackswap_opt.formulations.presolve import Reductions, reduce
from slackswap_opt.formulations.rounding import Rounding, Scale, Units
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.instances import load
from tests.integer_optimum import integer_optimum
from tests.tiny_instances import tiny_instances

OUTER = Scale(Units(), Rounding.OUTER)


@settings(max_examples=80)
@given(
    tiny_instances(tensors=5, operations=9), st.sampled_from(("negligible", "rows", "merge", "checkpoints")), st.integers(1, 3)
)
def test_every_switch_loosens(instance: Instance, switch: str, value: int) -> None:
    # Other numbers of rows or of checkpoints put checkpoints elsewhere, which makes some models looser and others tighter.
    plain = Reductions(merge=False, checkpoints=0)
    tight, loose = {
        "negligible": (plain, replace(plain, negligible=value)),
        "rows": (plain, replace(plain, rows=value)),
        "merge": (plain, replace(plain, merge=True)),
        "checkpoints": (replace(plain, checkpoints=value), plain),
    }[switch]
    exact, less = (integer_optimum(SlackModel(instance, reductions=reductions).program) for reductions in (tight, loose))
    if exact is not None:
        assert less is not None
        assert less <= exact


def test_every_operation_over_budget_has_a_row_and_every_interval_there_a_decision() -> None:
    instance = load("bert-large", layers=2)
    instance = instance.with_budget(instance.peak * 2 // 3)
    reduced = reduce(instance, OUTER, Reductions())
    over = {t for t, memory in enumerate(instance.keep_all_memory) if memory > instance.peak * 2 // 3}
    assert set(reduced.critical) == over
    assert [reduced.excess[t] for t in over] == [instance.keep_all_memory[t] - instance.peak * 2 // 3 for t in over]
    decided = {interval.number for interval in reduced.intervals}
    for number, (_, start, end) in enumerate(instance.idle_intervals):
        assert (number in decided) == any(start < t < end for t in over)


def test_shares_keep_the_worst_operation_of_each() -> None:
    instance = load("bert-large", layers=6)
    instance = instance.with_budget(instance.peak // 2)
    full, few = (reduce(instance, OUTER, Reductions(rows=rows)) for rows in (None, 5))
    assert len(few.critical) == 5
    assert set(few.critical) < set(full.critical)
    worst = max(full.excess[t] for t in full.critical)
    assert max(few.excess[t] for t in few.critical) == worst
    assert few.intervals == full.intervals
    assert few.checkpoints == full.checkpoints


def test_an_interval_begins_to_count_at_its_first_operation_over_budget() -> None:
    # Kept, 3, 7, 5, 5, 3 bytes: over 6 only during operation 1.
    tensors = tuple(Tensor(f"x{i}", size) for i, size in enumerate((3, 4, 2)))
    rows = [((), (0,)), ((), (1,)), ((), (2,)), ((2,), ()), ((0,), ())]
    operations = tuple(Operation(f"o{t}", 1, *row) for t, row in enumerate(rows))
    instance = Instance("step", tensors, operations, Link(10**9, 10**9), 6)
    reduced = reduce(instance, OUTER, Reductions())
    assert reduced.critical == (1,)
    assert [(g.tensor, g.first, g.swap, g.recompute) for g in reduced.intervals] == [(0, 1, True, (0,))]


def test_tiny_tensors_count_as_nothing() -> None:
    tensors = tuple(Tensor(f"x{i}", size) for i, size in enumerate((3, 4, 4)))
    rows = [((), (0,)), ((), (1,)), ((), (2,)), ((1,), ()), ((0,), ())]
    operations = tuple(Operation(f"o{t}", 1, *row) for t, row in enumerate(rows))
    instance = Instance("step", tensors, operations, Link(10**9, 10**9), 8)
    reduced = reduce(instance, OUTER, Reductions(negligible=4))
    assert reduced.sizes == (0, 4, 4)
    assert reduced.excess[2] == 0
    assert [g.tensor for g in reduced.intervals] == [1]


def test_outer_rounding_alone_allows_for_states_between_writers_in_place() -> None:
    # Operation 2 changes tensor 0 in place. Before it, running 0 again gives the tensor as it was; no plan asks for that.
    tensors = tuple(Tensor(f"x{i}", 4) for i in range(2))
    rows = [((), (0,)), ((), (1,)), ((0,), (0,)), ((0,), ())]
    operations = tuple(Operation(f"o{t}", 1, *row) for t, row in enumerate(rows))
    instance = Instance("step", tensors, operations, Link(10**9, 10**9), 4)
    outer, inner = (reduce(instance, Scale(Units(), rounding), Reductions()) for rounding in Rounding)
    assert [g.recompute for g in outer.intervals] == [(0,)]
    assert [g.recompute for g in inner.intervals] == [()]
    assert outer.rebuild[0] == inner.rebuild[0] == (0, 2)


@pytest.mark.parametrize("reductions", [Reductions(negligible=1), Reductions(rows=4)])
def test_what_would_break_plans_is_refused_for_them(reductions: Reductions) -> None:
    instance = load("chain").with_budget(10**6)
    with pytest.raises(InputError, match="must be off"):
        reduce(instance, Scale(Units(), Rounding.INNER), reductions)


@pytest.mark.parametrize(("field", "value"), [("negligible", -1), ("rows", 0), ("checkpoints", -2)])
def test_switches_out_of_range_are_named(field: str, value: int) -> None:
    with pytest.raises(InputError, match=f"'{field}' of the reductions must be an integer"):
        Reductions(**{field: value})  # type: ignore[arg-type]
