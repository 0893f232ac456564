"""The estimate agrees with the judge where copies only have to be whole and in line, and errs where it says so."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt import load
from slackswap_opt.drafts import DECISIONS, KEEP, RECOMPUTE, SWAP, SlackSwap
from slackswap_opt.estimate import Estimate
from slackswap_opt.greedy import greedy
from slackswap_opt.instance import Instance
from slackswap_opt.place import place_and_judge
from slackswap_opt.plan import Plan
from tests.handmade import step
from tests.tiny_instances import tiny_instances


def searched(instance: Instance) -> SlackSwap:
    return SlackSwap(instance, swap=True, recompute=True)


def judged(search: SlackSwap, decisions: list[int]) -> int:
    chosen = dict(zip(search.numbers, (DECISIONS[d] for d in decisions), strict=True))
    plan = Plan.keep_all(search.instance).with_intervals(chosen)
    return place_and_judge(search.instance, plan).timeline.makespan - search.instance.ideal


@settings(max_examples=60, deadline=None)
@given(tiny_instances(tensors=5, operations=8), st.data())
def test_re_runs_are_counted_once_and_what_is_kept_costs_nothing(instance: Instance, data: st.DataObject) -> None:
    search = searched(instance)
    estimate = Estimate(search)
    options = [
        [KEEP, *([SWAP] if search.can_swap[c] else []), *([RECOMPUTE] if c in search.closures else [])]
        for c in range(len(search.numbers))
    ]
    decisions = np.array([data.draw(st.sampled_from(some)) for some in options], dtype=np.int8)
    again = set().union(*(search.closures[c] for c in np.flatnonzero(decisions == RECOMPUTE).tolist()))
    assert estimate.rho(decisions).sum() == sum(instance.operations[t].duration for t in again)
    assert estimate.overhead(decisions) >= estimate.rho(decisions).sum()
    assert estimate.users(decisions).tolist() == [
        sum(t in search.closures[c] for c in np.flatnonzero(decisions == RECOMPUTE).tolist())
        for t in range(len(instance.operations))
    ]
    free = Estimate(searched(instance.with_budget(instance.peak)))
    assert free.overhead(np.zeros(0, dtype=np.int8)) == 0


@pytest.mark.parametrize("model", ["bert-large", "resnet-50"])
def test_it_is_what_the_judge_says_of_greedy_plans(model: str) -> None:
    parameters = {"bert-large": {"layers": 4}, "resnet-50": {"batch": 32}}[model]
    for percent in (50, 70):
        instance = load(model, **parameters)
        instance = instance.with_budget(instance.peak * percent // 100)
        search, found = searched(instance), greedy(instance)
        decisions = search.drafted(found.plan).decisions
        assert Estimate(search).overhead(decisions) == pytest.approx(found.makespan - instance.ideal, rel=1e-6)


# a (4 bytes) and b (4) must make room for c (4), with a budget of 8; copies move a byte a nanosecond.
ROWS = ("f 10: -> a=4", "g 1: -> b=4", "h 10: -> c=4", "h' 10: c ->", "g' 10: b ->", "f' 10: a ->")


@pytest.mark.parametrize(
    ("decisions", "overhead"),
    [
        # a goes out during g, of 1 ns: h waits for the other 3. It comes back during g', in time.
        ([SWAP, KEEP], 3),
        # b is written when g ends and must be gone then: 4. Back during h': c, a and b together do not fit there, so it waits
        # until g' wants it, another 4.
        ([KEEP, SWAP], 8),
        # Both are copied, a first: h starts when there is room for c beside b, as before.
        ([SWAP, SWAP], 3),
        ([RECOMPUTE, KEEP], 10),
        ([KEEP, RECOMPUTE], 1),
        ([RECOMPUTE, RECOMPUTE], 11),
    ],
)
def test_waits_for_copies_worked_out_by_hand(decisions: list[int], overhead: int) -> None:
    search = searched(step(*ROWS, budget=8))
    assert [search.instance.tensors[i].name for i in search.tensor.tolist()] == ["a", "b"]
    assert Estimate(search).overhead(np.array(decisions, dtype=np.int8)) == overhead
    assert judged(search, decisions) == overhead
