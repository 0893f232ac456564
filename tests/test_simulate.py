from dataclasses import replace

import pytest

from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from slackswap_opt.timeline import Timeline

GB = 10**9  # a byte a nanosecond


def schedule(instance: Instance, text: str) -> Schedule:
    """Read instructions such as ``run 0, offload 0``."""
    pairs = (part.split() for part in text.split(",") if part.strip())
    return Schedule.of(instance, (Instruction(Action(action), int(target)) for action, target in pairs))


def judge(instance: Instance, text: str) -> Timeline:
    return simulate(instance, schedule(instance, text))


def refusal(instance: Instance, text: str) -> str:
    with pytest.raises(ScheduleError) as error:
        judge(instance, text)
    return str(error.value)


# Five operations of 10 ns; x (40 bytes) and y (20 bytes) over a link of a byte a nanosecond and 5 ns of latency a copy.
#
#   f: -> x    g: x -> y    h: workspace 30    h': y    f': x
STEP = Instance(
    name="step",
    tensors=(Tensor("x", 40), Tensor("y", 20, swappable=False)),
    operations=(
        Operation("f", 10, (), (0,)),
        Operation("g", 10, (0,), (1,)),
        Operation("h", 10, (), (), workspace=30),
        Operation("h'", 10, (1,), (), phase="backward", recomputable=False),
        Operation("f'", 10, (0,), (), phase="backward"),
    ),
    link=Link(GB, GB, 5),
)


def test_a_swap_by_hand() -> None:
    # x leaves from 10 (after f) for 45 ns, while g runs until 20: evict waits from 20 to 55. h takes 55-65, and x comes back
    # from 65 to 110, while h' runs until 75: f' waits until 110 and ends at 120.
    timeline = judge(STEP, "run 0, offload 0, run 1, evict 0, run 2, prefetch 0, run 3, drop 1, run 4, drop 0")
    assert timeline.start == (0, 10, 10, 20, 55, 65, 65, 75, 110, 120)
    assert timeline.end == (10, 55, 20, 55, 65, 110, 75, 75, 120, 120)
    assert timeline.resident == (40, 40, 60, 20, 20, 60, 60, 40, 40, 0)
    assert timeline.memory == (40, 40, 60, 60, 50, 60, 60, 60, 40, 40)
    assert (timeline.makespan, timeline.ideal, timeline.peak, timeline.host_peak) == (120, 50, 60, 40)
    assert (timeline.offload_stall, timeline.prefetch_stall) == (35, 35)
    assert (timeline.offloaded, timeline.prefetched, timeline.recompute_time, timeline.recomputed) == (40, 40, 0, 0)
    assert timeline.retained == 50 / 120


def test_running_again_by_hand() -> None:
    timeline = judge(STEP, "run 0, run 1, drop 0, run 2, run 3, drop 1, run 0, run 4, drop 0")
    assert (timeline.makespan, timeline.recompute_time, timeline.recomputed) == (60, 10, 1)
    assert timeline.memory == (40, 60, 60, 50, 20, 20, 40, 40, 40)


def test_both_directions_share_the_lane_of_a_half_duplex_link() -> None:
    instance = replace(STEP, tensors=(Tensor("x", 40), Tensor("y", 20)))
    # Both leave behind f and g: x in 10-55, y from 55 to 80. y is evicted at 80, and x called back at once: full duplex takes
    # it back in 55-100, half duplex only when the lane is free, in 80-125.
    text = "run 0, offload 0, run 1, offload 1, evict 0, prefetch 0, evict 1, prefetch 1, run 2, run 3, run 4"
    assert judge(instance, text).start[5] == 55
    assert judge(instance, text).end[5] == 100
    shared = judge(instance.with_link(Link(GB, GB, 5, duplex=False)), text)
    assert (shared.start[5], shared.end[5]) == (80, 125)
    assert (shared.start[7], shared.end[7]) == (125, 150)


def test_copies_that_nobody_waits_for_still_end_the_step() -> None:
    timeline = judge(STEP, "run 0, run 1, run 2, run 3, run 4, offload 0")
    assert timeline.makespan == 50 + 45
    assert timeline.offload_stall == 0


def test_a_drop_waits_for_the_copy_that_still_arrives() -> None:
    timeline = judge(STEP, "run 0, offload 0, evict 0, prefetch 0, run 1, run 2, run 3, run 4, drop 0")
    assert timeline.start[4] == 100
    early = judge(replace(STEP, operations=OTHER), "run 0, offload 0, evict 0, prefetch 0, drop 0, run 1, run 2")
    assert (early.start[4], early.end[4], early.prefetch_stall) == (55, 100, 45)


OTHER = (Operation("f", 10, (), (0,)), Operation("g", 10, (), (1,)), Operation("h", 10))


def test_a_finished_copy_on_the_host_serves_again() -> None:
    text = "run 0, offload 0, evict 0, prefetch 0, run 1, drop 0, run 2, run 3, prefetch 0, run 4"
    timeline = judge(STEP, text)
    assert (timeline.offloaded, timeline.prefetched, timeline.host_peak) == (40, 80, 40)
    assert simulate(replace(STEP, host_budget=40), schedule(STEP, text)).host_peak == 40


def test_a_copy_on_the_host_lives_until_its_last_prefetch_has_arrived() -> None:
    # a and b (8 bytes each) take turns on a host of 8 bytes: g waits for a, and then there is room for b.
    instance = Instance(
        "turns",
        (Tensor("a", 8), Tensor("b", 8)),
        (Operation("f", 1, (), (0, 1)), Operation("g", 1, (0,)), Operation("h", 1, (0, 1))),
        Link(GB, GB),
        host_budget=8,
    )
    there_and_back = "run 0, offload 0, evict 0, prefetch 0"
    assert judge(instance, f"{there_and_back}, run 1, offload 1, evict 1, prefetch 1, run 2").host_peak == 8
    # A later copy of a does not make its first one stay.
    assert judge(instance, f"{there_and_back}, run 1, offload 1, evict 1, prefetch 1, run 2, offload 0").host_peak == 8
    over = "the host would hold 16 bytes, over its budget of 8"
    assert refusal(instance, f"{there_and_back}, offload 1, run 1") == f"instruction 4 (offload 1 'b'): {over}"
    again = f"{there_and_back}, run 1, offload 1, evict 1, prefetch 1, drop 0, prefetch 0, run 2"
    assert refusal(instance, again) == f"instruction 5 (offload 1 'b'): {over}"


def test_the_next_offload_writes_over_the_copy_on_the_host() -> None:
    timeline = judge(STEP, "run 0, offload 0, evict 0, run 0, offload 0, evict 0, prefetch 0, run 1, run 2, run 3, run 4")
    assert timeline.host_peak == 40


def test_what_is_written_again_while_resident_has_a_second_copy_meanwhile() -> None:
    # f writes x and y; y is dropped and wanted again, so f writes x a second time.
    instance = Instance(
        "siblings",
        (Tensor("x", 40), Tensor("y", 20)),
        (Operation("f", 10, (), (0, 1), workspace=3), Operation("g", 10), Operation("h", 10, (0, 1))),
        Link(GB, GB),
    )
    timeline = judge(instance, "run 0, drop 1, run 1, run 0, run 2")
    assert timeline.memory == (63, 60, 40, 60 + 3 + 40, 60)
    assert timeline.resident == (60, 40, 40, 60, 60)


# w writes x, r reads it, i adds to it in place, b reads the sum, c reads the sum.
GROUP = Instance(
    "group",
    (Tensor("x", 8), Tensor("y", 2)),
    (
        Operation("w", 1, (), (0,)),
        Operation("r", 1, (0,), (1,)),
        Operation("i", 1, (0,), (0,)),
        Operation("b", 1, (0,)),
        Operation("c", 1, (0,)),
    ),
    Link(GB, GB),
)
FORWARD = "run 0, run 1, run 2, run 3"


@pytest.mark.parametrize(
    "text",
    [
        f"{FORWARD}, drop 0, run 0, run 2, run 4",
        f"{FORWARD}, offload 0, evict 0, prefetch 0, run 4",
        # the state before the in-place write comes back from the host, and the write is done again
        "run 0, offload 0, run 1, evict 0, prefetch 0, run 2, run 3, drop 0, prefetch 0, run 2, run 4",
        # a second copy of the first state is thrown away, and the sum stays
        f"{FORWARD}, run 0, run 4",
        # half of the group again, to read the first state once more
        f"{FORWARD}, drop 0, drop 1, run 0, run 1, run 2, run 4",
        # the in-place write waits for what arrives
        "run 0, offload 0, run 1, evict 0, prefetch 0, run 2, run 3, run 4",
    ],
)
def test_an_in_place_group_comes_back_in_order(text: str) -> None:
    simulate(GROUP, schedule(GROUP, text))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            f"{FORWARD}, drop 0, run 0, run 4",
            "instruction 6 (run 4 'c'): it needs tensor 0 ('x') with 2 of its writers done, not 1",
        ),
        (f"{FORWARD}, run 2, run 4", "instruction 4 (run 2 'i'): it needs tensor 0 ('x') with 1 of its writers done, not 2"),
        (f"{FORWARD}, run 1, run 4", "instruction 4 (run 1 'r'): it needs tensor 0 ('x') with 1 of its writers done, not 2"),
        ("run 0, offload 0, run 1, run 2", "instruction 3 (run 2 'i'): it writes tensor 0 ('x'), but its offload is under way"),
    ],
)
def test_an_in_place_group_in_another_order_is_refused(text: str, rule: str) -> None:
    assert refusal(GROUP, text) == rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("run 1", "instruction 0 (run 1 'g'): first runs keep the order of the instance, and operation 0 ('f') has not run"),
        ("run 0, run 1, run 2, run 3, run 3", "instruction 4 (run 3 'h''): it has run already and is not recomputable"),
        ("run 0, drop 0, run 1", "instruction 2 (run 1 'g'): it reads tensor 0 ('x'), which is not resident"),
        ("run 0, offload 0, run 0", "instruction 2 (run 0 'f'): it writes tensor 0 ('x'), but its offload is under way"),
        (
            "run 0, offload 0, evict 0, prefetch 0, run 0",
            "instruction 4 (run 0 'f'): it writes tensor 0 ('x'), but its prefetch has not arrived",
        ),
        ("run 0, run 1, offload 1", "instruction 2 (offload 1 'y'): it is not swappable"),
        ("offload 0", "instruction 0 (offload 0 'x'): it is not resident"),
        ("run 0, offload 0, offload 0", "instruction 2 (offload 0 'x'): its offload is under way"),
        ("run 0, offload 0, evict 0, prefetch 0, offload 0", "instruction 4 (offload 0 'x'): its prefetch has not arrived"),
        ("run 0, evict 0", "instruction 1 (evict 0 'x'): no offload of it is under way"),
        ("run 0, prefetch 0", "instruction 1 (prefetch 0 'x'): it is resident already"),
        ("prefetch 0", "instruction 0 (prefetch 0 'x'): the host has no copy of it"),
        ("run 0, drop 0, drop 0", "instruction 2 (drop 0 'x'): it is not resident"),
        ("run 0, offload 0, drop 0", "instruction 2 (drop 0 'x'): its offload is under way"),
        ("run 5", "instruction 0 (run 5): there is no such operation"),
        ("run 0, drop 2", "instruction 1 (drop 2): there is no such tensor"),
        ("run 0, drop -1", "instruction 1 (drop -1): there is no such tensor"),
        ("run 0, run 1, run 2", "the schedule ends before operation 3 ('h'') has run"),
    ],
)
def test_a_refusal_names_the_instruction_and_the_rule(text: str, rule: str) -> None:
    assert refusal(STEP, text) == rule


def test_the_budget_counts_workspace() -> None:
    text = "run 0, run 1, run 2, run 3, run 4"
    assert simulate(STEP.with_budget(90), schedule(STEP, text)).peak == 90
    assert (
        refusal(STEP.with_budget(89), text)
        == "instruction 2 (run 2 'h'): it needs 90 bytes on the device, over the budget of 89"
    )


def test_a_schedule_of_another_instance_is_refused() -> None:
    with pytest.raises(ScheduleError, match=rf"'group' with fingerprint {GROUP.fingerprint}, not for 'step' with fingerprint"):
        simulate(STEP, Schedule.of(GROUP, ()))


def test_nothing_to_do() -> None:
    empty = Instance("empty", (), (), Link(GB, GB))
    timeline = simulate(empty, Schedule.of(empty, ()))
    assert (timeline.makespan, timeline.peak, timeline.retained, timeline.start) == (0, 0, 1.0, ())


def test_numbers_beyond_64_bits_stay_exact() -> None:
    slow = Link(1, 1, 7)
    instance = Instance("slow", (Tensor("x", 2**61 + 1),), (Operation("f", 1, (), (0,)),), slow)
    assert judge(instance, "run 0, offload 0").makespan == 1 + 7 + (2**61 + 1) * GB
