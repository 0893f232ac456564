"""The model relaxes every schedule that the judge accepts, and says what the formulation says."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from slackswap_opt.formulations.linear import to_lp
from slackswap_opt.formulations.presolve import Reductions
from slackswap_opt.formulations.relaxation import relax
from slackswap_opt.formulations.rounding import Rounding, Units
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.instances import load
from slackswap_opt.plan import Decision, Plan
from tests.brute_force import SearchLimitError, optimum
from tests.integer_optimum import integer_optimum
from tests.tiny_instances import tiny_instances

switches = st.builds(
    Reductions,
    negligible=st.integers(0, 2),
    rows=st.none() | st.integers(1, 3),
    merge=st.booleans(),
    checkpoints=st.integers(0, 3),
)


def overhead(model: SlackModel) -> float:
    """The optimum of the linear relaxation."""
    relaxation = relax(model.program)
    assert relaxation.feasible
    return sum(cost * relaxation.values[column] for column, cost in model.program.objective.items()) * model.units.time


@settings(max_examples=60)
@given(tiny_instances(tensors=5, operations=8), switches)
def test_no_schedule_beats_even_the_integer_optimum(instance: Instance, reductions: Reductions) -> None:
    try:
        least = optimum(instance)
    except SearchLimitError:
        assume(False)
    found = integer_optimum(SlackModel(instance, reductions=reductions).program)
    if least is not None:
        assert found is not None
        assert instance.ideal + found <= least


@given(tiny_instances(tensors=5, operations=9), st.integers(1, 3), st.integers(1, 3), st.integers(1, 12), st.integers(0, 1))
def test_outer_rounding_loosens_and_inner_tightens(
    instance: Instance, size: int, time: int, precision: int, checkpoints: int
) -> None:
    units, reductions = Units(size, time, precision), Reductions(checkpoints=checkpoints)
    least = [
        integer_optimum(SlackModel(instance, rounding=rounding, units=unit, reductions=reductions).program)
        for rounding, unit in ((Rounding.OUTER, units), (Rounding.OUTER, Units()), (Rounding.INNER, units))
    ]
    outer, exact, inner = (value if value is None else value * u for value, u in zip(least, (time, 1, time), strict=True))
    if exact is not None:
        assert outer is not None
        assert outer <= exact + time - 1
    if inner is not None:
        assert exact is not None
        assert exact <= inner


def test_the_models_for_plans_and_for_bounds_agree_where_nothing_is_rounded() -> None:
    # Dropout masks are made from operands that have died: without a checkpoint, one rebuilding of those serves the whole step.
    instance = load("bert-large", layers=4)
    instance = instance.with_budget(instance.peak // 2)
    bound, plans = (overhead(SlackModel(instance, rounding=rounding)) for rounding in (Rounding.OUTER, Rounding.INNER))
    assert bound - 1 <= plans <= bound * 1.01


@given(tiny_instances(tensors=5, operations=9), switches)
def test_names_are_unique_and_fit_every_solver(instance: Instance, reductions: Reductions) -> None:
    program = SlackModel(instance, reductions=reductions).program
    for names in ([row.name for row in program.rows], [variable.name for variable in program.variables]):
        assert len(set(names)) == len(names)
        assert all(name.isidentifier() and name.isascii() for name in names)


@given(tiny_instances(tensors=5, operations=9), st.randoms(use_true_random=False), st.sampled_from(Rounding))
def test_a_plan_comes_back_from_the_values_that_it_is_completed_to(
    instance: Instance, random: Random, rounding: Rounding
) -> None:
    plan = Plan(
        tuple(random.choice((Decision.KEEP, Decision.SWAP, Decision.RECOMPUTE)) for _ in instance.idle_intervals),
        tuple(random.choice(tuple(Decision)) for _ in instance.tensors),
    )
    model = SlackModel(instance, rounding=rounding)
    values = model.plan_to_values(plan)
    if values is not None:
        again = model.values_to_plan(values)
        for interval in model.reduced.intervals:
            asked, got = plan.intervals[interval.number], again.intervals[interval.number]
            possible = instance.can_recompute(instance.idle_intervals[interval.number])
            assert got is asked or (asked is Decision.RECOMPUTE and not possible)
        decided = {interval.number for interval in model.reduced.intervals}
        assert all(d is Decision.KEEP for g, d in enumerate(again.intervals) if g not in decided)


@given(tiny_instances(tensors=5, operations=9))
def test_a_shared_lane_is_never_faster(instance: Instance) -> None:
    duplex, half = (SlackModel(instance.with_link(replace(instance.link, duplex=duplex))) for duplex in (True, False))
    if (apart := integer_optimum(duplex.program)) is not None:
        together = integer_optimum(half.program)
        assert together is not None
        assert apart <= together


def step(
    sizes: tuple[int, ...], rows: list[tuple[int, tuple[int, ...], tuple[int, ...]]], budget: int, link: Link | None = None
) -> Instance:
    """A step of (duration, reads, writes), behind a link of two bytes a nanosecond each way."""
    return Instance(
        "step",
        tuple(Tensor(f"x{i}", size) for i, size in enumerate(sizes)),
        tuple(Operation(f"o{t}", *row) for t, row in enumerate(rows)),
        link or Link(2 * 10**9, 2 * 10**9),
        budget,
    )


CHAIN = [(5, (), (0,)), (5, (0,), (1,)), (5, (1,), (2,)), (5, (1, 2), (3,)), (5, (0, 3), ())]


def test_the_model_of_a_step_worked_out_by_hand() -> None:
    # All kept, 40 bytes are on the device during operation 3, 10 over the budget; only tensor 0 is idle then, between 1 and 4.
    # It is gone then, swapped or recomputed: s + r >= 1. Rebuilt it delays operation 4 by 5 ns; copied back, at 2 bytes a
    # nanosecond and not before operation 3 has ended, by 5 ns too.
    model = SlackModel(step((10, 10, 10, 10), CHAIN, 30))
    rows = {row.name: row for row in model.program.rows}
    named = {v.name: j for j, v in enumerate(model.program.variables)}
    assert set(rows) == {"one_0_1_4", "work_4", "out_3", "back_4", "update_3", "memory_3"}
    assert dict(zip(rows["back_4"].columns, rows["back_4"].coefficients, strict=True)) == {
        named["s_0_1_4"]: 10,
        named["delay_4"]: -2,
    }
    assert rows["back_4"].rhs == 0
    assert dict(zip(rows["memory_3"].columns, rows["memory_3"].coefficients, strict=True)) == {
        named["gone_3"]: 1,
        named["Q_3"]: -1,
    }
    assert rows["memory_3"].rhs == 10
    assert integer_optimum(model.program) == 5
    # Half of each shares the same 2.5 ns: that is what the relaxation cannot know.
    assert overhead(model) == pytest.approx(2.5)
    assert optimum(model.instance) == 30


def test_the_lp_text_reads_like_the_formulation() -> None:
    text = to_lp(SlackModel(step((10, 10, 10, 10), CHAIN, 30)).program)
    assert " memory_3: + 1 gone_3 - 1 Q_3 >= 10\n" in text
    assert " one_0_1_4: + 1 s_0_1_4 + 1 r_0_1_4 <= 1\n" in text
    assert text.startswith("\\ minimise the overhead\nMinimize\n overhead: + 1 delay_3 + 1 delay_4\n")


def test_without_recomputation_only_the_link_helps() -> None:
    # 10 bytes back at 2 bytes a nanosecond after operation 3.
    instance = step((10, 10, 10, 10), CHAIN, 30)
    instance = replace(instance, operations=tuple(replace(o, recomputable=False) for o in instance.operations))
    assert overhead(SlackModel(instance)) == pytest.approx(5)


def test_without_a_link_only_recomputation_helps() -> None:
    instance = step((10, 10, 10, 10), CHAIN, 30)
    instance = replace(instance, tensors=tuple(replace(x, swappable=False) for x in instance.tensors))
    assert overhead(SlackModel(instance)) == pytest.approx(5)


def test_a_fast_link_is_free_but_for_its_latency() -> None:
    fast = Link(10**18, 10**18)
    kept = step((10, 10, 10, 10), CHAIN, 30, fast)
    stuck = replace(kept, operations=tuple(replace(o, recomputable=False) for o in kept.operations))
    # A copy takes a nanosecond all the same, since the ends of copies are whole.
    assert overhead(SlackModel(stuck)) == pytest.approx(1)
    # The way back begins after operation 3 and takes 1 + 3 ns.
    assert overhead(SlackModel(stuck.with_link(replace(fast, latency=3)))) == pytest.approx(4)


def test_one_operation_and_none_at_all() -> None:
    alone = step((4,), [(7, (), (0,))], 4)
    assert overhead(SlackModel(alone)) == 0
    assert overhead(SlackModel(Instance("empty", (), (), Link(1, 1), 0))) == 0


def test_no_budget_leaves_nothing_to_decide() -> None:
    model = SlackModel(step((10, 10, 10, 10), CHAIN, 30).with_budget(None))
    assert model.reduced.intervals == ()
    assert model.program.rows == []


def test_equal_tensors_get_columns_of_their_own() -> None:
    # Two equal tensors wait for operations 4 and 5 while 2 runs: one of the two must go.
    rows = [(1, (), (0, 1)), (1, (), (2,)), (1, (2,), (3,)), (1, (3,), ()), (1, (0,), ()), (1, (1,), ())]
    model = SlackModel(step((4, 4, 4, 4), rows, 12))
    assert [(g.tensor, g.start, g.end) for g in model.reduced.intervals] == [(0, 0, 4), (1, 0, 5)]
    assert integer_optimum(model.program) == 0


def test_a_sibling_comes_back_from_the_same_run() -> None:
    # Operation 0 (7 ns) writes both tensors; both must go while 1 runs, and one re-run gives both back.
    rows = [(7, (), (0, 1)), (1, (), (2,)), (1, (0,), ()), (1, (1,), ())]
    instance = step((4, 4, 8), rows, 8)
    instance = replace(instance, tensors=tuple(replace(x, swappable=False) for x in instance.tensors))
    assert integer_optimum(SlackModel(instance).program) == 7
    assert optimum(instance) == instance.ideal + 7


def test_a_dead_operand_is_rebuilt_or_kept() -> None:
    # Tensor 1 (from 0, whose life ends with operation 1) must go while 2 runs: 3 ns for 1 and 5 ns for 0, unless 0 is kept, but
    # the budget has no room for it.
    rows = [(5, (), (0,)), (3, (0,), (1,)), (1, (), (2,)), (1, (1,), ())]
    instance = step((4, 4, 8), rows, 8)
    instance = replace(instance, tensors=tuple(replace(x, swappable=False) for x in instance.tensors))
    assert overhead(SlackModel(instance)) == pytest.approx(8)
    # With room for one of the two the other must go: keep tensor 1.
    assert overhead(SlackModel(instance.with_budget(12))) == 0


def test_a_second_swap_of_the_same_bytes_copies_nothing_out() -> None:
    # Tensor 0 is read by 2 and 4, and must be gone during 1 and 3. Nothing hides copies: out once, 8 ns; back twice, 1 ns.
    rows = [(0, (), (0,)), (0, (), (1,)), (0, (0,), ()), (0, (), (2,)), (0, (0,), ())]
    instance = forward_only(step((8, 8, 8), rows, 8, Link(10**9, 8 * 10**9)))
    assert overhead(SlackModel(instance)) == pytest.approx(10)
    assert optimum(instance) == 10


def test_nothing_is_copied_before_it_is_written() -> None:
    # The link is idle for 100 ns, but tensor 0 comes after them and must be gone during 2, right away: 4 ns out, 4 ns back.
    rows = [(100, (), ()), (0, (), (0,)), (5, (), (1,)), (5, (0,), ())]
    instance = forward_only(step((8, 8), rows, 8))
    assert optimum(instance) == instance.ideal + 8
    assert overhead(SlackModel(instance, reductions=Reductions(merge=False))) == pytest.approx(8)
    # With steps merged the copy may begin at any time of the step in which its tensor is written.
    assert overhead(SlackModel(instance)) == pytest.approx(4)


def test_what_stays_lends_no_head_start_to_what_goes() -> None:
    # Tensor 1 must be gone during 2, right after it is written, and during 3 as well unless the larger tensor 0 goes: 4 ns out,
    # 4 ns back. That 0 could have been copied long before helps only if it goes, which costs 8 ns for the way back.
    rows = [(100, (), (0,)), (0, (0,), (1,)), (5, (0,), (2,)), (5, (), (3,)), (0, (1,), ()), (0, (0,), ())]
    instance = forward_only(step((16, 8, 8, 8), rows, 24))
    assert optimum(instance) == instance.ideal + 8
    assert integer_optimum(SlackModel(instance, reductions=Reductions(merge=False)).program) == 8


def test_an_in_place_writer_makes_the_host_copy_stale() -> None:
    # As above, but operation 2 writes tensor 0 in place: out twice.
    rows = [(0, (), (0,)), (0, (), (1,)), (0, (0,), (0,)), (0, (), (2,)), (0, (0,), ())]
    instance = forward_only(step((8, 8, 8), rows, 8, Link(10**9, 8 * 10**9)))
    assert overhead(SlackModel(instance)) == pytest.approx(18)
    assert optimum(instance) == 18


def test_work_fills_a_wait_that_comes_earlier_than_its_result_is_needed() -> None:
    # Tensors 0 (4 bytes, 10 ns to rebuild), 1 (10 bytes, only swapped) and 2 (1 byte, rebuilt in no time) must all be gone
    # while operation 4 runs. Copying 1 back for operation 5 takes 10 ns, in which 0 is rebuilt; it then stays through 5 and 6,
    # which 2 must be gone for. Checkpoints stand at 4, 5 and 6: being there is charged once at each.
    rows = [
        (10, (), (0,)),
        (9, (), (1,)),
        (0, (), (2,)),
        (20, (), ()),
        (5, (), (3,)),
        (5, (1,), (4,)),
        (5, (), (5,)),
        (5, (0, 2), ()),
    ]
    instance = step((4, 10, 1, 20, 6, 16), rows, 20, Link(10**9, 10**9))
    instance = replace(
        instance,
        tensors=tuple(replace(x, swappable=i == 1) for i, x in enumerate(instance.tensors)),
        operations=tuple(replace(o, recomputable=t in (0, 2)) for t, o in enumerate(instance.operations)),
    )
    assert optimum(instance) == instance.ideal + 10
    for checkpoints in range(4):
        assert integer_optimum(SlackModel(instance, reductions=Reductions(checkpoints=checkpoints)).program) == 10


def test_an_operand_that_is_kept_gives_way_to_what_was_rebuilt_from_it() -> None:
    # Through operation 4 tensor 0 (6 bytes) is kept in the place of 1 and 2 (4 each). Both are rebuilt from it before 5, which
    # reads 2; from then on 1 is there, so that the 16 bytes of operation 6 fit, and 0 is not.
    rows = [
        (99, (), (0,)),
        (1, (0,), (1,)),
        (1, (0,), (2,)),
        (0, (), (3,)),
        (5, (), (4,)),
        (5, (2,), ()),
        (5, (), (5,)),
        (5, (1, 3), ()),
    ]
    instance = step((6, 4, 4, 3, 14, 16), rows, 20)
    instance = replace(instance, tensors=tuple(replace(x, swappable=False) for x in instance.tensors))
    assert optimum(instance) == instance.ideal + 2
    assert integer_optimum(SlackModel(instance).program) == 2


def test_an_operand_may_be_fetched_after_its_last_access() -> None:
    # Tensor 1 (8 bytes) cannot be swapped, and its operand 0 (2 bytes) not rebuilt: 0 goes to the host and comes back for it,
    # in 1 ns that the model leaves out, and 1 is rebuilt in 3.
    rows = [(5, (), (0,)), (3, (0,), (1,)), (9, (), (2,)), (5, (1,), ())]
    instance = step((2, 8, 10), rows, 10)
    instance = replace(
        instance,
        tensors=tuple(replace(x, swappable=i == 0) for i, x in enumerate(instance.tensors)),
        operations=tuple(replace(o, recomputable=t == 1) for t, o in enumerate(instance.operations)),
    )
    assert optimum(instance) == instance.ideal + 4
    assert integer_optimum(SlackModel(instance).program) == 3


def forward_only(instance: Instance) -> Instance:
    """The instance without operations that may run again."""
    return replace(instance, operations=tuple(replace(o, recomputable=False) for o in instance.operations))
