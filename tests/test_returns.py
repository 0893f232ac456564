"""What re-runs bring back early, on plain chains worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings

from slackswap_opt import load
from slackswap_opt.drafts import RECOMPUTE, SlackSwap
from slackswap_opt.greedy import greedy
from slackswap_opt.instance import Instance
from slackswap_opt.returns import EarlyReturns
from slackswap_opt.testing import instances
from tests.handmade import step

# Six tensors of 10 bytes, each made of the one before. x5 has no idle interval, since x5' follows f5; xi is away from f(i+1),
# its last use in the forward pass, until xi'. Operation 6 is x5', 7 is x4', and so on to 11, x0'.
CHAIN = step(
    *(f"f{i} 1: {f'x{i - 1}' if i else ''} -> x{i}=10" for i in range(6)),
    *(f"x{i}' 1: x{i} ->" for i in reversed(range(6))),
    budget=30,
)


def early_returns(search: SlackSwap) -> EarlyReturns:
    return EarlyReturns(search, search.companions, search.share)


def candidate(search: SlackSwap, name: str) -> int:
    (c,) = (c for c, i in enumerate(search.tensor.tolist()) if search.instance.tensors[i].name == name)
    return c


def test_neighbours_on_a_chain_are_companions() -> None:
    # x4 is rebuilt before x4', from x3, which is idle until x3'.
    search = SlackSwap(CHAIN, swap=True, recompute=True)
    x3, x4 = candidate(search, "x3"), candidate(search, "x4")
    assert search.companions.of[x4] == (x3,)
    assert search.companions.needed_by[x3] == [x4]


def test_an_operand_comes_back_with_what_is_made_of_it() -> None:
    search = SlackSwap(CHAIN, swap=True, recompute=True)
    x2, x3, x4 = (candidate(search, name) for name in ("x2", "x3", "x4"))
    returns = early_returns(search)
    returns.add(x3)
    assert (returns.back, returns.bytes.sum()) == ({x3: 8}, 0)
    # x2 is wanted for x3, before operation 8; its own end is 9.
    returns.add(x2)
    assert returns.back == {x3: 8, x2: 8}
    assert returns.bytes.tolist() == [0] * 8 + [10] + [0] * 3
    # x4 needs x3, and that x2, before operation 7: x3 is early in 7, x2 in 7 and 8.
    returns.add(x4)
    assert returns.back == {x4: 7, x3: 7, x2: 7}
    assert returns.bytes.tolist() == [0] * 7 + [20, 10] + [0] * 3


def test_what_there_is_no_room_for_is_not_taken() -> None:
    # Keeping everything holds 60 bytes in f5 and x5', 50 in x4' (7), 40 in x3' (8). With a budget of 30 there is room for
    # 30 (1 - 50 / 60) = 5 bytes early in 7 and for 10 in 8: x2 may be back for x3, x3 not for x4.
    search = SlackSwap(CHAIN, swap=True, recompute=True)
    x2, x3, x4 = (candidate(search, name) for name in ("x2", "x3", "x4"))
    returns = early_returns(search)
    assert returns.room.tolist() == pytest.approx([25, 20, 15, 10, 5, 0, 0, 5, 10, 15, 20, 25])
    assert [returns.take(c) for c in (x3, x4, x2)] == [True, False, True]
    assert returns.back == {x3: 8, x2: 8}
    assert returns.bytes.tolist() == [0] * 8 + [10] + [0] * 3
    search.share = 0.5
    assert [early_returns(search).take(c) for c in (x3, x2)] == [True, True]
    halved = early_returns(search)
    assert [halved.take(c) for c in (x3, x2)] == [True, False]


def test_those_without_room_come_last() -> None:
    search = SlackSwap(CHAIN, swap=True, recompute=True)
    order = [search.instance.tensors[search.tensor[c]].name for c, _ in search.recompute_order(search.fresh(), np.arange(5))]
    # Ties go to the later produced. x4, then not x3, which x4 would bring back; x2, and x1 early in 9, where there is room for
    # 15 bytes; x0 would make them 20.
    assert order == ["x4", "x2", "x1", "x3", "x0"]


@settings(max_examples=100, deadline=None)
@given(instances(max_tensors=8, max_operations=12, budgets=(0, 60)))
def test_copies_and_orders_do_not_matter(instance: Instance) -> None:
    search = SlackSwap(instance, swap=True, recompute=True)
    forth, back = early_returns(search), early_returns(search)
    for c in search.closures:
        before = (dict(forth.back), forth.bytes.tolist())
        forth.copy().add(c)
        assert (forth.back, forth.bytes.tolist()) == before
        forth.add(c)
    for c in reversed(search.closures):
        back.add(c)
    assert forth.back == back.back
    assert forth.bytes.tolist() == back.bytes.tolist()
    for c, operation in forth.back.items():
        assert search.start[c] < operation <= search.end[c]


@settings(max_examples=100, deadline=None)
@given(instances(max_tensors=8, max_operations=12, budgets=(0, 60)))
def test_a_refusal_changes_nothing(instance: Instance) -> None:
    search = SlackSwap(instance, swap=True, recompute=True)
    returns = early_returns(search)
    for c in search.closures:
        before = (dict(returns.back), returns.bytes.tolist())
        if not returns.take(c):
            assert (returns.back, returns.bytes.tolist()) == before
        assert (returns.bytes[returns.bytes > 0] <= returns.room[returns.bytes > 0]).all()


@settings(max_examples=50, deadline=None)
@given(instances(max_tensors=8, max_operations=12, budgets=(0, 60)))
def test_a_draft_knows_what_its_re_runs_bring_back(instance: Instance) -> None:
    search = SlackSwap(instance, swap=True, recompute=True)
    early, late = search.fresh(), search.fresh()
    search.returns_of(early)
    for c in search.closures:
        search.recompute(early, c)
        search.recompute(late, c)
    assert search.returns_of(early).back == search.returns_of(late).back
    assert set(search.returns_of(late).back) == set(np.flatnonzero(late.decisions == RECOMPUTE))


@pytest.mark.parametrize(("percent", "retained"), [(30, 0.80), (50, 0.85), (70, 0.90)])
def test_a_chain_is_rebuilt_from_checkpoints_not_all_at_once(percent: int, retained: float) -> None:
    # Every other block dropped is half of the memory and a sixth more time (a forward pass is a third of the step): 6/7.
    instance = load("chain", blocks=60)
    found = greedy(instance.with_budget(instance.peak * percent // 100), swap=False)
    assert instance.ideal / found.makespan >= retained
