"""What runs under a plan, and when every tensor is on the device: laws first, then run lists worked out by hand."""

import pytest
from hypothesis import assume, given, settings

from slackswap_opt.instance import Instance
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.runlist import PlacementError, RunList, Stay, run_list
from tests.handmade import plan, planned, step


def listed(instance: Instance, given_plan: Plan) -> RunList:
    """Return the run list, or reject the example if there is none."""
    try:
        return run_list(instance, given_plan)
    except PlacementError:
        assume(False)
        raise


def names(instance: Instance, runs: RunList) -> str:
    return " ".join(instance.operations[t].name for t in runs.events)


def stays(instance: Instance, runs: RunList, tensor: str) -> list[tuple[int, int, str]]:
    """Return the stays of a tensor: first and last event, and whether it is written or fetched there."""
    (i,) = (i for i, other in enumerate(instance.tensors) if other.name == tensor)
    return [(stay.first, stay.last, "fetched" if stay.fetched else "written") for stay in runs.stays[i]]


@settings(max_examples=100, deadline=None)
@given(planned())
def test_first_runs_keep_their_order_and_re_runs_come_after_them(example: tuple[Instance, Plan]) -> None:
    runs = listed(*example)
    seen = 0
    for t in runs.events:
        assert t <= seen
        seen += t == seen
    assert seen == len(example[0].operations)


@settings(max_examples=100, deadline=None)
@given(planned())
def test_what_an_event_needs_is_there_and_stays_do_not_overlap(example: tuple[Instance, Plan]) -> None:
    instance = example[0]
    runs = listed(*example)
    there: list[set[int]] = [set() for _ in runs.events]
    for i, own in enumerate(runs.stays):
        for stay in own:
            assert stay.tensor == i
            for event in range(stay.first, stay.last + 1):
                assert i not in there[event]
                there[event].add(i)
    first = set[int]()
    for event, t in enumerate(runs.events):
        needed = {*(instance.operations[t].reads if t in first else instance.wanted[t]), *instance.operations[t].writes}
        assert needed <= there[event]
        first.add(t)


@settings(max_examples=100, deadline=None)
@given(planned())
def test_memory_is_the_stays_and_what_only_one_event_needs(example: tuple[Instance, Plan]) -> None:
    instance = example[0]
    runs = listed(*example)
    for event, held in enumerate(runs.memory(instance)):
        live = [stay for own in runs.stays for stay in own if stay.first <= event <= stay.last]
        assert held == sum(instance.tensors[stay.tensor].size for stay in live) + runs.extra[event]
        assert instance.budget is None or held <= instance.budget


@settings(max_examples=100, deadline=None)
@given(planned())
def test_a_tensor_is_fetched_only_where_the_plan_swapped_it(example: tuple[Instance, Plan]) -> None:
    instance, given_plan = example
    swapped = {g.tensor for g, d in zip(instance.idle_intervals, given_plan.intervals, strict=True) if d is Decision.SWAP}
    swapped |= {i for i, decision in enumerate(given_plan.tails) if decision is Decision.SWAP}
    for i, own in enumerate(listed(*example).stays):
        assert i in swapped or not any(stay.fetched for stay in own)


@settings(max_examples=100, deadline=None)
@given(planned())
def test_without_recomputation_nothing_runs_twice(example: tuple[Instance, Plan]) -> None:
    instance, given_plan = example
    assume(Decision.RECOMPUTE not in given_plan.intervals)
    assert listed(instance, given_plan).events == tuple(range(len(instance.operations)))


@settings(max_examples=100, deadline=None)
@given(planned(possible=False))
def test_any_plan_gives_a_run_list_or_a_reason(example: tuple[Instance, Plan]) -> None:
    error = None
    try:
        run_list(*example)
    except PlacementError as caught:
        error = caught
    if error:
        assert str(error)
        assert error.excess == 0 or 0 <= error.operation < len(example[0].operations)


# c is wanted once more by h', after a and b have died: f and g run again for it, and what they write leaves at once.
CHAIN = step("f 2: -> a=3", "g 3: a -> b=4", "h 4: b -> c=5", "k 1: -> d=9", "h' 10: c ->")


def test_a_chain_is_rebuilt_just_before_its_use_and_its_inner_tensors_leave_at_once() -> None:
    runs = run_list(CHAIN, plan(CHAIN, "c recompute"))
    assert names(CHAIN, runs) == "f g h k f g h h'"
    assert stays(CHAIN, runs, "a") == [(0, 1, "written"), (4, 5, "written")]
    assert stays(CHAIN, runs, "b") == [(1, 2, "written"), (5, 6, "written")]
    assert stays(CHAIN, runs, "c") == [(2, 2, "written"), (6, 7, "written")]
    assert runs.memory(CHAIN) == [3, 7, 9, 9, 3, 7, 9, 5]


def test_re_runs_are_wanted_by_the_operation_after_them() -> None:
    runs = run_list(CHAIN, plan(CHAIN, "c recompute"))
    assert [runs.wanted_by(event) for event in range(8)] == [0, 1, 2, 3, 4, 4, 4, 4]


def test_a_chain_over_budget_names_operation_and_bytes() -> None:
    # h needs b and c, 9 bytes, in its re-run as in its first run; the first comes first.
    with pytest.raises(PlacementError, match="operation 'h' needs 9 bytes under this plan, over the budget of 8") as caught:
        run_list(CHAIN.with_budget(8), plan(CHAIN, "c recompute"))
    assert (caught.value.operation, caught.value.excess) == (2, 1)


def test_the_excess_of_a_re_run_is_told_of_the_operation_that_wants_it() -> None:
    # Just before x' c is rebuilt while d is there: 3 + 4 + 3 bytes in the re-run of g, where the first run held 7.
    instance = step("f 2: -> a=3", "g 3: a -> b=4", "h 4: b -> c=1", "k 1: -> d=3", "x' 10: c d ->", budget=7)
    with pytest.raises(PlacementError, match="operation 'g' needs 10 bytes") as caught:
        run_list(instance, plan(instance, "c recompute"))
    assert (caught.value.operation, caught.value.excess) == (4, 3)


# f writes a and m; k needs 9 bytes; a is wanted before m, with l' in between.
SIBLINGS = ("f 5: -> a=4 m=3", "k 5: -> b=9", "a' 5: a ->", "l' 5 +7: ->", "m' 5: m ->")


def test_a_re_run_brings_a_sibling_back_early_and_it_is_held() -> None:
    instance = step(*SIBLINGS, budget=10)
    runs = run_list(instance, plan(instance, "a recompute", "m recompute"))
    assert names(instance, runs) == "f k f a' l' m'"
    assert stays(instance, runs, "m") == [(0, 0, "written"), (2, 5, "written")]
    assert runs.memory(instance) == [7, 9, 7, 7, 10, 3]


def test_an_early_return_is_given_up_where_memory_asks_for_it() -> None:
    # While l' runs there is no room for m: it leaves after the first re-run of f and is rebuilt by a second.
    instance = step(*SIBLINGS, budget=9)
    runs = run_list(instance, plan(instance, "a recompute", "m recompute"))
    assert names(instance, runs) == "f k f a' l' f m'"
    assert stays(instance, runs, "m") == [(0, 0, "written"), (2, 2, "written"), (5, 6, "written")]
    assert stays(instance, runs, "a") == [(0, 0, "written"), (2, 3, "written"), (5, 5, "written")]
    assert runs.memory(instance) == [7, 9, 7, 4, 7, 7, 3]


def test_a_second_copy_of_a_resident_sibling_counts_while_the_re_run_lasts() -> None:
    # Nine bytes of b leave before a' : in the re-run of f there are a, m and the second m.
    instance = step("f 5: -> a=4 m=3", "k 5: m -> b=9", "a' 5: a ->", "m' 5: m ->")
    runs = run_list(instance, plan(instance, "a recompute"))
    assert names(instance, runs) == "f k f a' m'"
    assert runs.extra == (0, 0, 3, 0, 0)
    assert runs.memory(instance) == [7, 12, 10, 7, 3]


def test_operands_that_are_recomputed_too_come_back_with_the_chain() -> None:
    # b is wanted by b' and needs a, which is wanted after it: one re-run of each, and a stays for a'.
    instance = step("f 2: -> a=3", "g 3: a -> b=4", "k 1: -> d=9", "b' 4: b ->", "a' 4: a ->")
    runs = run_list(instance, plan(instance, "a recompute", "b recompute"))
    assert names(instance, runs) == "f g k f g b' a'"
    assert stays(instance, runs, "a") == [(0, 1, "written"), (3, 6, "written")]


def test_operands_that_are_swapped_are_fetched_for_the_chain_and_stay() -> None:
    instance = step("f 2: -> a=3", "g 3: a -> b=4", "k 1: -> d=9", "b' 4: b ->", "a' 4: a ->")
    runs = run_list(instance, plan(instance, "a swap", "b recompute"))
    assert names(instance, runs) == "f g k g b' a'"
    assert stays(instance, runs, "a") == [(0, 1, "written"), (3, 5, "fetched")]


def test_a_group_that_is_written_in_place_is_rebuilt_in_order() -> None:
    instance = step("f 2: -> a=4", "g 3: a -> a", "h 1: a -> a c=1", "k 5: -> b=9", "a' 4: a c ->")
    runs = run_list(instance, plan(instance, "a recompute"))
    # c, written by the last of the group, is there all the time: a second one counts while h runs again.
    assert names(instance, runs) == "f g h k f g h a'"
    assert runs.extra == (0, 0, 0, 0, 0, 0, 1, 0)
    assert stays(instance, runs, "a") == [(0, 2, "written"), (4, 7, "written")]


def test_a_group_is_not_rebuilt_before_all_its_writers_have_run() -> None:
    instance = step("f 2: -> a=4", "k 5: -> b=9", "g 3: a -> a", "a' 4: a ->")
    with pytest.raises(PlacementError, match="tensor 'a' cannot be rebuilt after operation 'f': its writers cannot run again"):
        run_list(instance, plan(instance, "a recompute"))


@pytest.mark.parametrize(
    ("tail", "events"),
    [
        ("discard", "f g h k f h z' l' f g y'"),
        ("keep", "f g h k h z' l' g y'"),
        ("swap", "f g h k h z' l' g y'"),
        ("recompute", "f g h k f h z' l' g y'"),
    ],
)
def test_a_tail_serves_re_runs_after_the_last_access(tail: str, events: str) -> None:
    # x dies in h. z' wants z and y' wants y, both made of x: discarded, x is rebuilt for each; otherwise at most once.
    instance = step(*TAILS)
    runs = run_list(instance, plan(instance, "z recompute", "y recompute", tails=f"x {tail}"))
    assert names(instance, runs) == events


TAILS = ("f 6: -> x=3", "g 1: x -> y=3", "h 1: x -> z=3", "k 20: -> b=6", "z' 4: z ->", "l' 4: ->", "y' 4: y ->")


def test_a_tail_ends_with_the_last_re_run_that_reads_it() -> None:
    instance = step(*TAILS)
    runs = {tail: run_list(instance, plan(instance, "z recompute", "y recompute", tails=f"x {tail}")) for tail in Decision}
    assert stays(instance, runs[Decision.DISCARD], "x") == [(0, 2, "written"), (4, 5, "written"), (8, 9, "written")]
    assert stays(instance, runs[Decision.KEEP], "x") == [(0, 7, "written")]
    assert stays(instance, runs[Decision.SWAP], "x") == [(0, 2, "written"), (4, 7, "fetched")]
    assert stays(instance, runs[Decision.RECOMPUTE], "x") == [(0, 2, "written"), (4, 8, "written")]


def test_what_is_held_from_outside_does_not_leave_meanwhile() -> None:
    # Held from g to h, a is idle only from h to a'; b may leave while it is not held.
    instance = step("f 2: -> a=4", "g 2: -> b=4", "h 9: -> c=4", "k' 2: b ->", "a' 2: a ->", held={"a": (1, 2)})
    runs = run_list(instance, plan(instance, "a recompute", "b recompute"))
    assert names(instance, runs) == "f g h g k' f a'"
    assert stays(instance, runs, "a") == [(0, 2, "written"), (5, 6, "written")]


def test_what_begins_to_be_held_is_brought_back_for_it() -> None:
    instance = step("f 2: -> a=4", "g 2: -> b=4", "h 9: -> c=4", "k' 2: b ->", "a' 2: a ->", held={"a": (3, 3)})
    runs = run_list(instance, plan(instance, "a recompute"))
    assert names(instance, runs) == "f g h f k' a'"


def test_a_dropped_tensor_that_cannot_be_rebuilt_is_named() -> None:
    # a has died when b is wanted again, and f cannot run twice.
    instance = step("f! 2: -> a=3", "g 3: a -> b=4", "k 1: -> d=9", "b' 4: b ->")
    with pytest.raises(PlacementError, match="tensor 'a' is wanted again after 'g', where the plan drops it, but cannot be"):
        run_list(instance, plan(instance, "b recompute"))
    assert names(instance, run_list(instance, plan(instance, "b recompute", tails="a keep"))) == "f g k g b'"


@pytest.mark.parametrize(("decision", "tails"), [("a swap", ""), ("a keep", "a swap")])
def test_nothing_is_swapped_that_must_not_be(decision: str, tails: str) -> None:
    # Of a tail too: it would be copied out as soon as a re-run reads the tensor again.
    instance = step("f 2: -> a=3!", "k 1: -> d=9", "a' 4: a ->")
    with pytest.raises(PlacementError, match=r"tensor 'a' cannot be swapped after operation '(f|a')': it is not swappable"):
        run_list(instance, plan(instance, decision, tails=tails))


def test_a_long_chain_needs_no_recursion() -> None:
    count = 3000
    inner = [f"f{i} 1: {f'x{i - 1}' if i else ''} -> x{i}=1" for i in range(count)]
    instance = step(*inner, "k 1: -> d=9", f"b' 1: x{count - 1} ->")
    runs = run_list(instance, plan(instance, f"x{count - 1} recompute"))
    assert len(runs.events) == 2 * count + 2
    assert max(runs.memory(instance)) == 9


def test_stays_know_what_wrote_them() -> None:
    instance = step("f 2: -> a=4", "g 3: a -> a", "k 5: -> b=9", "a' 4: a ->")
    runs = run_list(instance, plan(instance, "a swap"))
    assert runs.stays[0] == (
        Stay(0, 0, 1, fetched=False, leaves=Decision.SWAP, written=1, dirty=True),
        Stay(0, 3, 3, fetched=True, leaves=Decision.DISCARD, written=2, dirty=False),
    )


def test_re_runs_that_multiply_are_refused() -> None:
    # Each of 200 blocks is dropped and there is room for two: before xi' all that lead to xi would run again, 20,000 times.
    count = 200
    inner = [f"f{i} 1: {f'x{i - 1}' if i else ''} -> x{i}=1!" for i in range(count)]
    instance = step(*inner, *(f"x{i}' 1: x{i} ->" for i in reversed(range(count))), budget=2)
    everything = Plan((Decision.RECOMPUTE,) * len(instance.idle_intervals), (Decision.DISCARD,) * count)
    with pytest.raises(PlacementError, match="re-runs set off re-runs: more than 10000 events by operation 'f"):
        run_list(instance, everything)
