import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from slackswap_opt.testing import instances, schedules
from slackswap_opt.timeline import Timeline
from tests.naive_judge import RejectedError, Verdict, naive

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


@st.composite
def steps(draw: st.DrawFn) -> tuple[Instance, Schedule]:
    """An instance, and a schedule of it that breaks no rule."""
    instance = draw(instances(host_budgets=True))
    return instance, draw(schedules(instance))


@st.composite
def doubtful_steps(draw: st.DrawFn) -> tuple[Instance, Schedule]:
    """An instance with budgets, and a schedule of it with a mistake or two."""
    instance = draw(instances(budgets=(0, 100), host_budgets=True) | instances())
    instructions = list(draw(schedules(instance)).instructions)
    numbers = st.integers(0, max(len(instance.operations), len(instance.tensors)))
    for _ in range(draw(st.integers(1, 2))):
        n = draw(st.integers(0, len(instructions) - 1))
        mistake = draw(st.sampled_from(["insert", "delete", "swap", "retarget"]))
        if mistake == "insert":
            instructions.insert(n, Instruction(draw(st.sampled_from(Action)), draw(numbers)))
        elif mistake == "delete" and len(instructions) > 1:
            del instructions[n]
        elif mistake == "swap":
            instructions[n - 1], instructions[n] = instructions[n], instructions[n - 1]
        else:
            instructions[n] = instructions[n]._replace(target=draw(numbers))
    return instance, Schedule.of(instance, instructions)


def verdict(timeline: Timeline) -> Verdict:
    return Verdict(*(getattr(timeline, name) for name in Verdict._fields))


@given(steps())
def test_a_second_judge_agrees_on_schedules_that_break_no_rule(step: tuple[Instance, Schedule]) -> None:
    assert verdict(simulate(*step)) == naive(*step)


@given(doubtful_steps())
def test_a_second_judge_agrees_on_what_is_wrong(step: tuple[Instance, Schedule]) -> None:
    try:
        expected = naive(*step)
    except RejectedError as error:
        rejected: RejectedError | None = error
    else:
        rejected = None
        assert verdict(simulate(*step)) == expected
    if rejected:
        with pytest.raises(ScheduleError) as refused:
            simulate(*step)
        if step[0].host_budget is None:  # the second judge looks at the host last
            place = re.match(r"instruction (\d+) \(|the schedule ends before ", str(refused.value))
            assert place is not None
            assert int(place[1] or len(step[1].instructions)) == rejected.number


@given(st.data())
def test_a_second_judge_agrees_on_any_instructions(data: st.DataObject) -> None:
    instance = data.draw(instances(max_tensors=2, max_operations=2, held=False), label="instance")
    pairs = st.tuples(st.sampled_from(Action), st.integers(-1, 2))
    random = Schedule.of(instance, (Instruction(*pair) for pair in data.draw(st.lists(pairs, max_size=6), label="pairs")))
    try:
        expected = naive(instance, random)
    except RejectedError:
        with pytest.raises(ScheduleError):
            simulate(instance, random)
    else:
        assert verdict(simulate(instance, random)) == expected


@given(steps())
def test_a_schedule_fits_its_peak_and_nothing_less(step: tuple[Instance, Schedule]) -> None:
    instance, instructions = step
    timeline = simulate(*step)
    exact = replace(instance, budget=timeline.peak, host_budget=timeline.host_peak)
    assert simulate(exact, instructions) == timeline
    if timeline.peak:
        with pytest.raises(ScheduleError, match=f"it needs {timeline.peak} bytes on the device, over the budget"):
            simulate(instance.with_budget(timeline.peak - 1), instructions)
    if timeline.host_peak:
        with pytest.raises(ScheduleError, match="the host would hold"):
            simulate(replace(instance, host_budget=timeline.host_peak - 1), instructions)


@given(st.data())
def test_better_hardware_never_lengthens_a_schedule_and_leaves_memory_as_it_was(data: st.DataObject) -> None:
    instance, instructions = data.draw(steps())
    link, factor = instance.link, data.draw(st.sampled_from([1, 2, 3, 1000]), label="factor")
    better = replace(
        instance,
        operations=tuple(
            replace(operation, duration=data.draw(st.integers(0, operation.duration))) for operation in instance.operations
        ),
        link=Link(
            link.offload_bandwidth * factor,
            link.prefetch_bandwidth + data.draw(st.integers(0, GB)),
            data.draw(st.integers(0, link.latency)),
            link.duplex or data.draw(st.booleans()),
        ),
    )
    before, after = simulate(instance, instructions), simulate(better, instructions)
    assert after.makespan <= before.makespan
    assert all(late <= early for late, early in zip(after.end, before.end, strict=True))
    assert (after.memory, after.resident, after.peak, after.host_peak) == (
        before.memory,
        before.resident,
        before.peak,
        before.host_peak,
    )


@given(steps())
def test_figures_follow_from_the_instructions(step: tuple[Instance, Schedule]) -> None:
    instance, instructions = step
    timeline = simulate(*step)
    counts = Counter(instructions.instructions)
    size = [tensor.size for tensor in instance.tensors]
    assert timeline.offloaded == sum(count * size[i] for (action, i), count in counts.items() if action == Action.OFFLOAD)
    assert timeline.prefetched == sum(count * size[i] for (action, i), count in counts.items() if action == Action.PREFETCH)
    assert timeline.recompute_time == sum(
        (count - 1) * instance.operations[t].duration for (action, t), count in counts.items() if action == Action.RUN
    )
    assert timeline.ideal == instance.ideal
    assert timeline.makespan == max(timeline.end, default=0)
    compute = [e for (action, _), e in zip(instructions.instructions, timeline.end, strict=True) if action in COMPUTE]
    assert compute[-1] == (timeline.ideal + timeline.recompute_time + timeline.offload_stall + timeline.prefetch_stall)


COMPUTE = {Action.RUN, Action.EVICT, Action.DROP}


@given(steps())
def test_every_lane_does_one_thing_at_a_time(step: tuple[Instance, Schedule]) -> None:
    timeline = simulate(*step)
    free = dict.fromkeys(Action, 0)
    for (action, _), start, end in zip(step[1].instructions, timeline.start, timeline.end, strict=True):
        assert free[action] <= start <= end
        for other in COMPUTE if action in COMPUTE else {action} if step[0].link.duplex else {Action.OFFLOAD, Action.PREFETCH}:
            free[other] = end


@given(steps())
def test_no_schedule_holds_less_than_the_floor(step: tuple[Instance, Schedule]) -> None:
    instance, instructions = step
    seen: set[int] = set()
    for (action, t), used in zip(instructions.instructions, simulate(*step).memory, strict=True):
        if action == Action.RUN and t not in seen:
            seen.add(t)
            assert used >= instance.floor[t] >= instance.need[t]


def keep_all(instance: Instance) -> Schedule:
    """Run everything once, and drop each tensor after its last access."""
    instructions = []
    for t in range(len(instance.operations)):
        instructions.append(Instruction(Action.RUN, t))
        instructions += [Instruction(Action.DROP, i) for i, accesses in enumerate(instance.accesses) if accesses[-1] == t]
    return Schedule.of(instance, instructions)


@given(instances())
def test_keeping_everything_takes_the_ideal_time_and_the_unconstrained_peak(instance: Instance) -> None:
    timeline = simulate(instance, keep_all(instance))
    assert (timeline.makespan, timeline.peak, timeline.retained) == (instance.ideal, instance.peak, 1.0)
    runs = [n for n, (action, _) in enumerate(keep_all(instance).instructions) if action == Action.RUN]
    assert tuple(timeline.memory[n] for n in runs) == instance.keep_all_memory
    assert timeline.resident[-1] == 0


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
