import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt.instance import Instance, Link
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from slackswap_opt.testing import instances, schedules
from slackswap_opt.timeline import Timeline
from tests.naive_judge import RejectedError, Verdict, naive

COMPUTE = {Action.RUN, Action.EVICT, Action.DROP}


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
            link.prefetch_bandwidth + data.draw(st.integers(0, 10**9)),
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
