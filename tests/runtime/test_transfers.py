"""What waits for what: every forgotten wait is a race, and none is left where all are made."""

from typing import Any

import pytest
import torch

from slackswap_opt.instance import Link
from slackswap_opt.runtime.lanes import Immediate, Passage, Rated
from slackswap_opt.runtime.recorder import RaceError, Recorded
from slackswap_opt.runtime.transfers import Lane, Slot, Transfers, all_bytes

CPU = torch.device("cpu")
COMPUTE, OUT, BACK = Lane


class Forgetful(Recorded):
    """Makes one kind of wait only in appearance: that of a lane for another."""

    def __init__(self, *forgotten: tuple[Lane, Lane]) -> None:
        super().__init__()
        self.forgotten = forgotten

    def mark(self, lane: Lane) -> Any:
        return lane, super().mark(lane)

    def wait(self, lane: Lane, event: Any) -> None:
        other, clock = event
        if (lane, other) not in self.forgotten:
            super().wait(lane, clock)


def storage(*values: int) -> torch.UntypedStorage:
    return torch.tensor(values, dtype=torch.uint8).untyped_storage()


def slot(size: int) -> Slot:
    return Slot(torch.zeros(size, dtype=torch.uint8))


def there_and_back(lanes: Recorded) -> list[int]:
    """Copy a storage out, give it up, and copy it back to where something else was."""
    transfers = Transfers(lanes)
    source = storage(1, 2, 3)
    copy = transfers.offload(source, slot(3), 1)
    transfers.left(copy)
    all_bytes(source).zero_()
    destination = transfers.prefetch(copy, 3, CPU)
    transfers.arrived(copy)
    return list(destination)


def test_nothing_is_a_race_where_every_wait_is_made() -> None:
    lanes = Recorded()
    assert there_and_back(lanes) == [1, 2, 3]
    # The copy out reads what compute wrote, which gives the source up after it; the copy back reads what the copy out wrote,
    # and writes where compute worked; and compute then uses that.
    assert lanes.checks == 5


@pytest.mark.parametrize(
    ("forgotten", "message"),
    [
        ((OUT, COMPUTE), "OUT reads the source of"),
        ((COMPUTE, OUT), "COMPUTE uses 3 bytes without waiting for OUT"),
        ((BACK, COMPUTE), "BACK writes the destination of 3 bytes without waiting for COMPUTE"),
        ((COMPUTE, BACK), "COMPUTE uses 3 bytes without waiting for BACK"),
    ],
    ids=[
        "source still written",
        "source reused before its copy ended",
        "earlier users of the destination",
        "use before arrival",
    ],
)
def test_a_forgotten_wait_is_caught(forgotten: tuple[Lane, Lane], message: str) -> None:
    with pytest.raises(RaceError, match=message):
        there_and_back(Forgetful(forgotten))


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_reload_before_its_own_offload_has_ended_is_caught(forgotten: bool) -> None:
    # Without giving up the source first, so that only the lanes for copies can be in order.
    lanes = Forgetful(*([(BACK, OUT)] if forgotten else []))
    transfers = Transfers(lanes)
    source = storage(4, 5)
    copy = transfers.offload(source, slot(2), 1)
    if forgotten:
        with pytest.raises(RaceError, match="BACK reads the source of 2 bytes without waiting for OUT"):
            transfers.prefetch(copy, 2, CPU)
    else:
        assert list(transfers.prefetch(copy, 2, CPU)) == [4, 5]


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_slot_used_again_before_it_has_been_read_is_caught(forgotten: bool) -> None:
    lanes = Forgetful(*([(OUT, BACK)] if forgotten else []))
    transfers = Transfers(lanes)
    first, second = slot(2), slot(2)
    second.contents = first.contents
    second.shared = [first]
    sources = storage(1, 2), storage(3, 4)
    copy = transfers.offload(sources[0], first, 1)
    transfers.left(copy)
    destination = transfers.prefetch(copy, 2, CPU)
    del copy
    transfers._arriving.clear()
    if forgotten:
        with pytest.raises(RaceError, match="OUT writes the destination of 2 bytes without waiting for BACK"):
            transfers.offload(sources[1], second, 1)
    else:
        transfers.offload(sources[1], second, 1)
        assert list(destination) == [1, 2]


def test_a_copy_that_is_still_wanted_moves_out_of_the_way_of_the_next() -> None:
    transfers = Transfers(Recorded())
    first, second = slot(2), slot(2)
    second.contents = first.contents
    second.shared = [first]
    source = storage(7, 8)
    kept = transfers.offload(source, first, 1)
    transfers.left(kept)
    transfers.offload(storage(0, 0), second, 1)
    assert list(transfers.prefetch(kept, 2, CPU)) == [7, 8]


def test_the_source_and_the_destination_stay_until_compute_has_waited() -> None:
    transfers = Transfers(Immediate())
    copy = transfers.offload(storage(1), slot(1), 1)
    assert len(transfers._leaving) == 1
    transfers.prefetch(copy, 1, CPU)
    assert len(transfers._arriving) == 1
    transfers.settle()
    assert not transfers._leaving
    assert not transfers._arriving


def test_bytes_moved_are_counted() -> None:
    transfers = Transfers(Immediate())
    copy = transfers.offload(storage(1, 2, 3), slot(3), 1)
    transfers.prefetch(copy, 3, CPU)
    transfers.prefetch(copy, 3, CPU)
    assert (transfers.offloaded, transfers.prefetched) == (3, 6)


class Time:
    """A clock that only passes when someone sleeps."""

    def __init__(self) -> None:
        self.now = 0

    def sleep(self, nanoseconds: int) -> None:
        self.now += nanoseconds


@pytest.mark.parametrize("duplex", [True, False])
def test_a_rated_link_takes_its_time(duplex: bool) -> None:
    # 1 byte a ns out and 2 back, and 5 ns a copy.
    clock = Time()
    link = Link(10**9, 2 * 10**9, 5, duplex)
    lanes = Rated(link, now=lambda: clock.now, sleep=clock.sleep)
    transfers = Transfers(lanes)
    one = transfers.offload(storage(*range(10)), slot(10), 1)
    two = transfers.offload(storage(*range(20)), slot(20), 1)
    clock.now = 12
    transfers.left(one)
    assert clock.now == 15
    back = transfers.prefetch(one, 10, CPU)
    # The second copy out runs until 15 + 25 = 40; with one lane for both ways the copy back begins there.
    transfers.arrived(one)
    assert clock.now == (25 if duplex else 50)
    transfers.left(two)
    assert clock.now == (40 if duplex else 50)
    assert list(back) == list(range(10))
    assert lanes.passages[0] == Passage(OUT, 10, 0, 15)
    assert lanes.passages[1] == Passage(OUT, 20, 15, 40)
    assert lanes.passages[2] == (Passage(BACK, 10, 15, 25) if duplex else Passage(BACK, 10, 40, 50))


def test_all_bytes_of_a_storage_are_those_of_every_view() -> None:
    whole = torch.arange(6, dtype=torch.int16)
    view = whole[4:].view(torch.uint8)
    assert all_bytes(view.untyped_storage()).data_ptr() == whole.data_ptr()
    assert all_bytes(view.untyped_storage()).numel() == 12
