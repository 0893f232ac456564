"""Host memory: copies that are there at the same time never share a byte, and what a schedule needs is what the judge says."""

from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.runtime.pool import Layout, Pool, Stay, layout, pack, stays
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from slackswap_opt.testing import instances, schedules

CPU = torch.device("cpu")

copies = st.builds(
    lambda start, length, size: Stay(start, start + length, size), st.integers(0, 20), st.integers(0, 10), st.integers(0, 9)
)


@given(st.lists(copies, max_size=12), st.sampled_from([1, 4]))
def test_no_two_copies_overlap_in_time_and_in_place(copies: list[Stay], alignment: int) -> None:
    offsets = pack(copies, alignment)
    assert all(offset % alignment == 0 for offset in offsets)
    for i, (one, at) in enumerate(zip(copies, offsets, strict=True)):
        for two, there in zip(copies[:i], offsets, strict=False):
            together = one.offload <= two.end and two.offload <= one.end
            assert not together or at + one.size <= there or there + two.size <= at


@given(st.lists(copies, max_size=12))
def test_a_block_is_no_larger_than_all_copies_side_by_side(copies: list[Stay]) -> None:
    ends = [offset + copy.size for offset, copy in zip(pack(copies, 1), copies, strict=True)]
    most = max((sum(c.size for c in copies if c.offload <= t <= c.end) for t in range(31)), default=0)
    assert most <= max(ends, default=0) <= sum(copy.size for copy in copies)


@given(st.data())
def test_copies_are_on_the_host_as_long_as_the_judge_says(data: st.DataObject) -> None:
    instance = data.draw(instances())
    schedule = data.draw(schedules(instance))
    there = stays(instance, schedule)
    # A second copy of a tensor that the host has already takes the place of the first for the judge; here both have a place.
    if len({schedule.instructions[stay.offload].target for stay in there}) == len(there):
        most = max((sum(s.size for s in there if s.offload <= n < s.end) for n in range(len(schedule.instructions))), default=0)
        assert most == simulate(instance, schedule).host_peak


def step() -> tuple[Instance, Schedule]:
    """Two tensors leave one after the other and come back: the second leaves when the first is back."""
    names = "xy"
    operations = (
        Operation("make x", 1, writes=(0,)),
        Operation("wait", 1),
        Operation("use x", 1, reads=(0,)),
        Operation("make y", 1, writes=(1,)),
        Operation("wait again", 1),
        Operation("use y", 1, reads=(1,)),
    )
    tensors = tuple(Tensor(name, 300) for name in names)
    instance = Instance("two", tensors, operations, Link(10**9, 10**9))
    lines = "run 0, offload 0, evict 0, run 1, prefetch 0, run 2, drop 0, run 3, offload 1, evict 1, run 4, prefetch 1, run 5"
    words = (line.split() for line in lines.split(", "))
    return instance, Schedule.of(instance, [Instruction(Action(action), int(target)) for action, target in words])


def test_copies_that_never_meet_share_bytes() -> None:
    instance, schedule = step()
    # x is on the host from its offload at 1 until operation 2 reads it at 5; y from 8 until 12.
    assert stays(instance, schedule) == [Stay(1, 5, 300), Stay(8, 12, 300)]
    pool = Pool([layout(instance, schedule)], CPU)
    assert pool.size == 300
    first, second = pool.slots[0][1], pool.slots[0][8]
    assert first.contents.data_ptr() == second.contents.data_ptr()
    assert second.shared == [first]
    assert first.shared == []


def test_a_pool_serves_several_schedules_with_one_block() -> None:
    instance, schedule = step()
    keep = Schedule.of(instance, [Instruction(Action.RUN, t) for t in range(6)])
    pool = Pool([layout(instance, keep), layout(instance, schedule)], CPU)
    assert pool.size == 300
    assert len(pool.slots[0]) == 0
    assert len(pool.slots[1]) == 2


@pytest.mark.parametrize("seed", range(5))
def test_slots_know_who_had_their_bytes_last(seed: int) -> None:
    random = Random(seed)
    copies = sorted(Stay(start, start + random.randrange(4), random.randrange(1, 9)) for start in random.sample(range(40), 15))
    offsets = pack(copies, 1)
    size = max(offset + copy.size for offset, copy in zip(offsets, copies, strict=True))
    slots = Pool([Layout(copies, offsets, size)], CPU).slots[0]
    latest: dict[int, int] = {}
    for copy, offset in zip(copies, offsets, strict=True):
        before = {latest[byte] for byte in range(offset, offset + copy.size) if byte in latest}
        assert {id(slot) for slot in slots[copy.offload].shared} == {id(slots[start]) for start in before}
        latest |= dict.fromkeys(range(offset, offset + copy.size), copy.offload)


def test_a_host_budget_that_is_too_small_is_refused_by_the_judge() -> None:
    instance, schedule = step()
    tight = Instance("two", instance.tensors, instance.operations, instance.link, host_budget=299)
    with pytest.raises(ScheduleError, match="the host would hold 300 bytes, over its budget of 299"):
        simulate(tight, Schedule.of(tight, schedule.instructions))
