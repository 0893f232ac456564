"""A second judge, written from the rules of schedules alone: slow and plain, so that `simulate` has something to agree with.

It walks the instructions three times: for what is where (`_replay`), for the host (`_host`), and for time (`_times`).
"""

from dataclasses import dataclass
from typing import NamedTuple

from slackswap_opt.instance import Instance
from slackswap_opt.schedule import Action, Schedule


class RejectedError(Exception):
    """A schedule breaks a rule; `number` is the instruction's, or that behind the last if something is left undone."""

    def __init__(self, number: int, rule: str) -> None:
        super().__init__(f"instruction {number}: {rule}")
        self.number = number


class Verdict(NamedTuple):
    """What the rules make of a schedule, in bytes and nanoseconds; the first three speak of each instruction."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    resident: tuple[int, ...]
    peak: int
    host_peak: int
    makespan: int
    offload_stall: int
    prefetch_stall: int
    recompute_time: int
    recomputed: int
    offloaded: int
    prefetched: int


@dataclass
class Copy:
    """A copy to the host or back: the instruction that issued it, and the one that waited for it."""

    tensor: int
    issued: int
    state: int
    waited: int | None = None
    source: "Copy | None" = None


class Replay(NamedTuple):
    """What happened: bytes after and during each instruction, all copies, and which instructions run something again."""

    resident: list[int]
    during: list[int]
    offloads: list[Copy]
    prefetches: list[Copy]
    reruns: list[int]


def naive(instance: Instance, schedule: Schedule) -> Verdict:
    """Return the verdict on `schedule`, or raise `RejectedError`."""
    if schedule.fingerprint != instance.fingerprint:
        raise RejectedError(0, "it is a schedule of another instance")
    replay = _replay(instance, schedule)
    host = _host(instance, schedule, replay)
    start, end, makespan, offload_stall, prefetch_stall = _times(instance, schedule, replay)
    return Verdict(
        start=tuple(start),
        end=tuple(end),
        resident=tuple(replay.resident),
        peak=max(replay.during, default=0),
        host_peak=max(host, default=0),
        makespan=makespan,
        offload_stall=offload_stall,
        prefetch_stall=prefetch_stall,
        recompute_time=sum(instance.operations[schedule.instructions[n].target].duration for n in replay.reruns),
        recomputed=len(replay.reruns),
        offloaded=sum(instance.tensors[copy.tensor].size for copy in replay.offloads),
        prefetched=sum(instance.tensors[copy.tensor].size for copy in replay.prefetches),
    )


def _writers_before(instance: Instance, tensor: int, operation: int) -> int:
    return sum(tensor in instance.operations[t].writes for t in range(operation))


def _replay(instance: Instance, schedule: Schedule) -> Replay:
    size = [tensor.size for tensor in instance.tensors]
    state: dict[int, int] = {}  # of each tensor on the device: how many of its writers have run on these bytes
    host: dict[int, Copy] = {}  # finished copies on the host, by tensor
    leaving: dict[int, Copy] = {}  # offloads issued and not waited for
    arriving: dict[int, Copy] = {}  # prefetches issued and not waited for
    replay = Replay([], [], [], [], [])
    done = 0  # operations that have run once

    for n, (action, target) in enumerate(schedule.instructions):

        def require(holds: bool, rule: str, n: int = n) -> None:
            if not holds:
                raise RejectedError(n, rule)

        before, extra = sum(size[i] for i in state), 0
        if action == Action.RUN:
            require(0 <= target < len(instance.operations), "no such operation")
            operation = instance.operations[target]
            require(target <= done, "first runs keep the order")
            needed = set(operation.reads)
            if target < done:
                require(operation.recomputable, "it cannot run again")
                replay.reruns.append(n)
            else:
                for i, tensor in enumerate(instance.tensors):
                    begins = any(target == first for first, _ in tensor.held)
                    if begins and _writers_before(instance, i, target) > 0:
                        needed.add(i)
            for i in needed:
                require(i in state, "what it needs is not on the device")
                require(state[i] == _writers_before(instance, i, target), "what it needs is in another state")
                if i in arriving:
                    arriving.pop(i).waited = n
            extra = operation.workspace
            for i in operation.writes:
                require(i not in leaving, "it writes what is being offloaded")
                require(i not in arriving, "it writes what has not arrived")
                if i in operation.reads:
                    state[i] += 1
                elif i in state:
                    extra += size[i]
                else:
                    state[i] = 1
            done = max(done, target + 1)
        else:
            require(0 <= target < len(size), "no such tensor")
        if action == Action.OFFLOAD:
            require(instance.tensors[target].swappable, "it cannot be swapped")
            require(target in state, "it is not on the device")
            require(target not in arriving, "it has not arrived")
            require(target not in leaving, "it is being offloaded already")
            host.pop(target, None)
            leaving[target] = Copy(target, n, state[target])
            replay.offloads.append(leaving[target])
        if action in (Action.EVICT, Action.DROP):
            held = any(first < done <= last for first, last in instance.tensors[target].held)
            require(not held, "it is held from outside")
        if action == Action.EVICT:
            require(target in leaving, "no offload is under way")
            host[target] = leaving.pop(target)
            host[target].waited = n
            del state[target]
        if action == Action.PREFETCH:
            require(target not in state, "it is on the device already")
            require(target in host, "the host has no copy")
            arriving[target] = Copy(target, n, host[target].state, source=host[target])
            replay.prefetches.append(arriving[target])
            state[target] = host[target].state
        if action == Action.DROP:
            require(target in state, "it is not on the device")
            require(target not in leaving, "it is being offloaded")
            if target in arriving:
                arriving.pop(target).waited = n
            del state[target]
        after = sum(size[i] for i in state)
        replay.resident.append(after)
        replay.during.append(max(before, after + extra))
        require(instance.budget is None or after + extra <= instance.budget, "the device holds more than its budget")
    if done < len(instance.operations):
        raise RejectedError(len(schedule.instructions), "an operation never runs")
    return replay


def _host(instance: Instance, schedule: Schedule, replay: Replay) -> list[int]:
    """Return the bytes on the host after each instruction, or raise `RejectedError` where they exceed the budget.

    A copy ends when its last prefetch is waited for; without that, when the tensor's next copy takes its place, or never.
    """
    memory = [0] * len(schedule.instructions)
    for offload in replay.offloads:
        back = [copy for copy in replay.prefetches if copy.source is offload]
        later = [copy.issued for copy in replay.offloads if copy.tensor == offload.tensor and copy.issued > offload.issued]
        ends = [back[-1].waited] if back else later[:1]
        for n in range(offload.issued, len(memory) if not ends or ends[0] is None else ends[0]):
            memory[n] += instance.tensors[offload.tensor].size
    for n, held in enumerate(memory):
        if instance.host_budget is not None and held > instance.host_budget:
            raise RejectedError(n, "the host holds more than its budget")
    return memory


def _times(instance: Instance, schedule: Schedule, replay: Replay) -> tuple[list[int], list[int], int, int, int]:
    """Return when each instruction starts and ends, the makespan, and how long compute waited for copies out and back."""
    clock = out_free = back_free = offload_stall = prefetch_stall = 0
    starts: list[int] = []
    ends: list[int] = []
    for n, (action, target) in enumerate(schedule.instructions):
        evicted = [ends[copy.issued] for copy in replay.offloads if copy.waited == n]
        arrived = [ends[copy.issued] for copy in replay.prefetches if copy.waited == n]
        waited = max([clock, *evicted, *arrived])
        offload_stall += waited - clock if evicted else 0
        prefetch_stall += waited - clock if arrived else 0
        start, clock = clock, waited
        end = clock
        if action == Action.RUN:
            start = clock
            end = clock = start + instance.operations[target].duration
        if action == Action.OFFLOAD:
            start = max(clock, out_free if instance.link.duplex else max(out_free, back_free))
            end = out_free = start + _copy_time(instance, target, instance.link.offload_bandwidth)
        if action == Action.PREFETCH:
            (source,) = (copy.source for copy in replay.prefetches if copy.issued == n)
            assert source is not None
            start = max(clock, ends[source.issued], back_free if instance.link.duplex else max(out_free, back_free))
            end = back_free = start + _copy_time(instance, target, instance.link.prefetch_bandwidth)
        starts.append(start)
        ends.append(end)
    return starts, ends, max([clock, *ends]), offload_stall, prefetch_stall


def _copy_time(instance: Instance, tensor: int, bandwidth: int) -> int:
    whole, rest = divmod(instance.tensors[tensor].size * 10**9, bandwidth)
    return instance.link.latency + whole + (rest > 0)
