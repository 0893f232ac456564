"""The judge: what a schedule does to memory, in program order, and to time, on three lanes. It knows no method.

Memory and validity depend on program order alone: a copy counts as arrived, and an offload as ended, once an instruction has
waited for it. So a schedule that passes is within its budget however wrong the timings of its instance are.
"""

from bisect import bisect_left
from typing import NoReturn

from slackswap_opt.files import InputError
from slackswap_opt.instance import Instance
from slackswap_opt.schedule import Action, Schedule
from slackswap_opt.timeline import Timeline

_RESIDENT, _LEAVING, _ARRIVING, _ABSENT = range(4)


class ScheduleError(InputError):
    """A schedule that breaks a rule: its message names the instruction, the operation or tensor, and the rule."""


def simulate(instance: Instance, schedule: Schedule) -> Timeline:
    """Execute `schedule` in the model and return its timeline.

    Raises
    ------
    ScheduleError
        If the schedule is for another instance, breaks a rule of the semantics, or exceeds the device's or the host's budget.
    """
    if schedule.fingerprint != instance.fingerprint:
        raise ScheduleError(
            f"the schedule is for an instance '{schedule.name}' with fingerprint {schedule.fingerprint}, "
            f"not for '{instance.name}' with fingerprint {instance.fingerprint}"
        )
    sizes = [tensor.size for tensor in instance.tensors]
    operations = [(o.reads, o.writes, o.duration, o.workspace, o.recomputable) for o in instance.operations]
    in_place = _in_place(instance)
    held, holds = [tensor.held for tensor in instance.tensors], _holds(instance)
    run, offload, evict, prefetch = Action.RUN, Action.OFFLOAD, Action.EVICT, Action.PREFETCH
    final_prefetches = _final_prefetches(schedule, len(sizes))
    budget = instance.budget if instance.budget is not None else sum(sizes) + sum(instance.need)
    host_budget = instance.host_budget if instance.host_budget is not None else sum(sizes)

    state, copied, ends_copy = [_ABSENT] * len(sizes), [False] * len(sizes), [False] * len(sizes)
    arrival, departure, version, host_version = ([0] * len(sizes) for _ in range(4))
    clock = out_lane = in_lane = resident = peak = host = host_peak = next_operation = 0
    offload_stall = prefetch_stall = recompute_time = recomputed = offloaded = prefetched = 0
    starts, ends, residents, memories = [], [], [], []

    def fault(rule: str) -> NoReturn:
        raise ScheduleError(f"instruction {n} ({_spell(instance, schedule, n)}): {rule}")

    def arrive(i: int) -> None:
        """Wait on compute for the prefetch of tensor `i`; its host copy goes if nothing fetches it again."""
        nonlocal clock, prefetch_stall, host
        state[i] = _RESIDENT
        if arrival[i] > clock:
            prefetch_stall += arrival[i] - clock
            clock = arrival[i]
        if ends_copy[i]:
            copied[i] = ends_copy[i] = False
            host -= sizes[i]

    for n, (action, target) in enumerate(schedule.instructions):
        if not 0 <= target < (len(operations) if action is run else len(sizes)):
            fault("there is no such operation" if action is run else "there is no such tensor")
        used = resident
        if action is run:
            reads, writes, duration, workspace, recomputable = operations[target]
            first = target == next_operation
            for i in (*reads, *holds.get(target, ())) if first else reads:
                if state[i] != _RESIDENT:
                    if state[i] == _ARRIVING:
                        arrive(i)
                    elif state[i] == _ABSENT:
                        use = "reads" if i in reads else "begins to hold"
                        fault(f"it {use} tensor {i} ('{instance.tensors[i].name}'), which is not resident")
            if first:
                next_operation += 1
            elif target > next_operation:
                fault(f"operation {next_operation} has not run; first runs keep the order of the instance")
            elif not recomputable:
                fault("it has run already and is not recomputable")
            else:
                recompute_time += duration
                recomputed += 1
            second_copies = 0
            for i in writes:
                if state[i] == _ABSENT:
                    state[i] = _RESIDENT
                    resident += sizes[i]
                elif state[i] != _RESIDENT:
                    way = "to" if state[i] == _LEAVING else "from"
                    fault(f"it writes tensor {i} ('{instance.tensors[i].name}') while a copy {way} the host is under way")
                elif i not in reads:
                    second_copies += sizes[i]
            for i, before, after in in_place.get(target, ()):
                if before and version[i] != before and (first or i in reads):
                    fault(f"it needs tensor {i} ('{instance.tensors[i].name}') after {before} of its writers, not {version[i]}")
                if after and (before or not version[i]):
                    version[i] = after
            used = resident + workspace + second_copies
            start, clock = clock, clock + duration
            end = clock
        elif action is offload:
            if state[target] != _RESIDENT:
                fault(_WHY_NOT_OFFLOAD[state[target]])
            if not instance.tensors[target].swappable:
                fault("the tensor is not swappable")
            start = max(out_lane, clock)
            end = out_lane = start + instance.link.offload_time(sizes[target])
            if not instance.link.duplex:
                in_lane = end
            state[target], departure[target] = _LEAVING, end
            offloaded += sizes[target]
            if not copied[target]:
                copied[target] = True
                host += sizes[target]
                if host > host_budget:
                    fault(f"copies on the host hold {host} bytes, over the host budget of {host_budget}")
                host_peak = max(host_peak, host)
            host_version[target] = version[target]
        elif action is prefetch:
            if state[target] != _ABSENT:
                fault("the tensor is resident already")
            if not copied[target]:
                fault("the tensor has no copy on the host")
            resident += sizes[target]
            used = resident
            start = max(in_lane, clock)
            end = in_lane = start + instance.link.prefetch_time(sizes[target])
            if not instance.link.duplex:
                out_lane = end
            state[target], arrival[target], ends_copy[target] = _ARRIVING, end, n in final_prefetches
            prefetched += sizes[target]
            version[target] = host_version[target]
        else:
            start = clock
            for since, last in held[target]:
                if since < next_operation <= last:
                    fault(f"the tensor is held outside the plan until operation {last} has run")
            if action is evict:
                if state[target] != _LEAVING:
                    fault("no offload of the tensor is under way")
                if departure[target] > clock:
                    offload_stall += departure[target] - clock
                    clock = departure[target]
            elif state[target] == _ARRIVING:
                arrive(target)
            elif state[target] != _RESIDENT:
                fault(
                    "the tensor is not resident" if state[target] == _ABSENT else "its offload is under way: only evict ends it"
                )
            state[target], version[target] = _ABSENT, 0
            resident -= sizes[target]
            end = clock
        if used > peak:
            peak = used
            if peak > budget:
                fault(f"it needs {peak} bytes on the device, over the budget of {budget}")
        starts.append(start)
        ends.append(end)
        residents.append(resident)
        memories.append(used)

    if next_operation < len(operations):
        raise ScheduleError(
            f"the schedule ends before operation {next_operation} ('{instance.operations[next_operation].name}') has run"
        )
    return Timeline(
        start=tuple(starts),
        end=tuple(ends),
        resident=tuple(residents),
        memory=tuple(memories),
        peak=peak,
        host_peak=host_peak,
        makespan=max(clock, out_lane, in_lane),
        ideal=instance.ideal,
        offload_stall=offload_stall,
        prefetch_stall=prefetch_stall,
        recompute_time=recompute_time,
        recomputed=recomputed,
        offloaded=offloaded,
        prefetched=prefetched,
    )


_WHY_NOT_OFFLOAD = {
    _ABSENT: "the tensor is not resident",
    _LEAVING: "its offload is under way already",
    _ARRIVING: "its prefetch has not arrived",
}


def _holds(instance: Instance) -> dict[int, list[int]]:
    """For operations at which a stretch of being held begins: the tensors that they neither read nor write."""
    holds: dict[int, list[int]] = {}
    for i, tensor in enumerate(instance.tensors):
        for first, _ in tensor.held:
            operation = instance.operations[first]
            if i not in operation.reads and i not in operation.writes:
                holds.setdefault(first, []).append(i)
    return holds


def _in_place(instance: Instance) -> dict[int, list[tuple[int, int, int]]]:
    """For operations on tensors of several writers: tensor, how many must have run before, how many have then (0: reads)."""
    states: dict[int, list[tuple[int, int, int]]] = {}
    for i, writers in enumerate(instance.writers):
        if len(writers) > 1:
            for t in instance.accesses[i]:
                before = bisect_left(writers, t)
                states.setdefault(t, []).append((i, before, before + 1 if t in writers else 0))
    return states


def _final_prefetches(schedule: Schedule, tensors: int) -> set[int]:
    """The prefetches that no other one of the same copy follows."""
    final, wanted = set(), [False] * tensors
    for n in range(len(schedule.instructions) - 1, -1, -1):
        action, target = schedule.instructions[n]
        if action is Action.PREFETCH and target < tensors:
            if not wanted[target]:
                final.add(n)
            wanted[target] = True
        elif action is Action.OFFLOAD and target < tensors:
            wanted[target] = False
    return final


def _spell(instance: Instance, schedule: Schedule, n: int) -> str:
    action, target = schedule.instructions[n]
    named = instance.operations if action is Action.RUN else instance.tensors
    name = f" '{named[target].name}'" if 0 <= target < len(named) else ""
    return f"{action} {target}{name}"
