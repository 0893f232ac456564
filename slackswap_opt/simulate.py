"""The judge: what a schedule does to memory, in program order, and to time, on three lanes. It knows no method.

Memory and validity depend on program order alone: a copy counts as arrived, and an offload as ended, once an instruction has
waited for it. So a schedule that passes is within its budget however wrong the timings of its instance are.
"""

from slackswap_opt.files import LARGEST, InputError, check_type, shown
from slackswap_opt.instance import Instance
from slackswap_opt.schedule import Action, Schedule, spell
from slackswap_opt.timeline import Timeline

_RESIDENT, _LEAVING, _ARRIVING, _ABSENT = range(4)
_WHY_NOT = ("", "its offload is under way", "its prefetch has not arrived", "it is not resident")


class ScheduleError(InputError):
    """A schedule that breaks a rule: its message names the instruction, the operation or tensor, and the rule."""


def simulate(instance: Instance, schedule: Schedule) -> Timeline:
    """Execute `schedule` in the model and return its timeline.

    Raises
    ------
    ScheduleError
        If the schedule is for another instance, breaks a rule of the semantics, or exceeds the device's or the host's budget.
    """
    check_type(instance, Instance, "'instance'", "an Instance")
    check_type(schedule, Schedule, "'schedule'", "a Schedule")
    if schedule.fingerprint != instance.fingerprint:
        raise ScheduleError(
            f"the schedule is for an instance {shown(schedule.name)} with fingerprint {schedule.fingerprint:.32}, "
            f"not for {shown(instance.name)} with fingerprint {instance.fingerprint}"
        )
    return _Machine(instance, schedule).execute()


class _Machine:
    """Two memories and three lanes; the method of an action returns its start, its end, and the bytes that count meanwhile."""

    def __init__(self, instance: Instance, schedule: Schedule) -> None:
        self.instance, self.operations, self.instructions = instance, instance.operations, schedule.instructions
        self.sizes = [tensor.size for tensor in instance.tensors]
        self.state = [_ABSENT] * len(self.sizes)
        self.version = [0] * len(self.sizes)  # how many writers of an in-place group have run on the bytes
        self.host_version: dict[int, int] = {}  # the same of each copy on the host
        self.fetched_again = iter(schedule.fetched_again())
        self.leaves_host: set[int] = set()  # arriving tensors whose copy nothing fetches again
        self.departure, self.arrival = [0] * len(self.sizes), [0] * len(self.sizes)  # ends of the copies out and back
        self.lanes, self.out, self.back = [0, 0], 0, 1 if instance.link.duplex else 0
        self.next = self.clock = self.resident = self.host = self.host_peak = 0
        self.offload_stall = self.recompute_time = self.recomputed = self.offloaded = self.prefetched = 0

    def execute(self) -> Timeline:
        methods = {action: getattr(self, action.value) for action in Action}
        counts = {action: len(self.operations if action == Action.RUN else self.sizes) for action in Action}
        budget = LARGEST if self.instance.budget is None else self.instance.budget
        starts, ends, resident, memory = [], [], [], list[int]()
        for action, target in self.instructions:
            try:
                if not 0 <= target < counts[action]:
                    raise ScheduleError(f"there is no such {'operation' if action == Action.RUN else 'tensor'}")
                start, end, used = methods[action](target)
                if used > budget:
                    raise ScheduleError(f"it needs {used} bytes on the device, over the budget of {budget}")
            except ScheduleError as fault:
                raise ScheduleError(f"instruction {len(memory)} ({spell(self.instance, action, target)}): {fault}") from None
            starts.append(start)
            ends.append(end)
            resident.append(self.resident)
            memory.append(used)
        if self.next < len(self.operations):
            raise ScheduleError(f"the schedule ends before operation {self.next} ('{self.operations[self.next].name}') has run")
        return Timeline(
            start=tuple(starts),
            end=tuple(ends),
            resident=tuple(resident),
            memory=tuple(memory),
            peak=max(memory, default=0),
            host_peak=self.host_peak,
            makespan=max(self.clock, *self.lanes),
            ideal=self.instance.ideal,
            offload_stall=self.offload_stall,
            prefetch_stall=self.clock - self.offload_stall - self.recompute_time - self.instance.ideal,
            recompute_time=self.recompute_time,
            recomputed=self.recomputed,
            offloaded=self.offloaded,
            prefetched=self.prefetched,
        )

    def run(self, t: int) -> tuple[int, int, int]:
        operation, state = self.operations[t], self.state
        reads, extra = operation.reads, operation.workspace
        if first := (t == self.next):
            self.next += 1
        else:
            self._run_again(t)
        for i in self.instance.wanted[t] if first else reads:
            if state[i]:
                self._access(i, "reads" if i in reads else "begins to hold")
        for i in operation.writes:
            if state[i] == _ABSENT:
                state[i] = _RESIDENT
                self.resident += self.sizes[i]
            elif state[i]:
                raise ScheduleError(f"it writes {self._tensor(i)}, but {_WHY_NOT[state[i]]}")
            elif i not in reads:
                extra += self.sizes[i]
        if t in self.instance.group_accesses:
            self._access_groups(t, first)
        start = self.clock
        self.clock = end = start + operation.duration
        return start, end, self.resident + extra

    def _run_again(self, t: int) -> None:
        if t > self.next:
            name = self.operations[self.next].name
            raise ScheduleError(f"first runs keep the order of the instance, and operation {self.next} ('{name}') has not run")
        if not self.operations[t].recomputable:
            raise ScheduleError("it has run already and is not recomputable")
        self.recompute_time += self.operations[t].duration
        self.recomputed += 1

    def _access(self, i: int, how: str) -> None:
        if self.state[i] == _ABSENT:
            raise ScheduleError(f"it {how} {self._tensor(i)}, which is not resident")
        if self.state[i] == _ARRIVING:
            self._arrive(i)

    def _access_groups(self, t: int, first: bool) -> None:
        for i, before, writes in self.instance.group_accesses[t]:
            if before and self.version[i] != before and (first or i in self.operations[t].reads):
                raise ScheduleError(f"it needs {self._tensor(i)} with {before} of its writers done, not {self.version[i]}")
            if writes and (before or not self.version[i]):
                self.version[i] = before + 1

    def offload(self, i: int) -> tuple[int, int, int]:
        if self.state[i]:
            raise ScheduleError(_WHY_NOT[self.state[i]])
        if not self.instance.tensors[i].swappable:
            raise ScheduleError("it is not swappable")
        if i not in self.host_version:
            self.host += self.sizes[i]
            self.host_peak = max(self.host_peak, self.host)
            if self.instance.host_budget is not None and self.host > self.instance.host_budget:
                raise ScheduleError(f"the host would hold {self.host} bytes, over its budget of {self.instance.host_budget}")
        self.state[i], self.host_version[i] = _LEAVING, self.version[i]
        self.offloaded += self.sizes[i]
        start = max(self.clock, self.lanes[self.out])
        end = self.departure[i] = self.lanes[self.out] = start + self.instance.link.offload_time(self.sizes[i])
        return start, end, self.resident

    def prefetch(self, i: int) -> tuple[int, int, int]:
        if self.state[i] != _ABSENT:
            raise ScheduleError("it is resident already")
        if i not in self.host_version:
            raise ScheduleError("the host has no copy of it")
        if not next(self.fetched_again):
            self.leaves_host.add(i)
        self.state[i], self.version[i] = _ARRIVING, self.host_version[i]
        self.resident += self.sizes[i]
        self.prefetched += self.sizes[i]
        start = max(self.clock, self.lanes[self.back])
        end = self.arrival[i] = self.lanes[self.back] = start + self.instance.link.prefetch_time(self.sizes[i])
        return start, end, self.resident

    def _arrive(self, i: int) -> None:
        self.state[i] = _RESIDENT
        self.clock = max(self.clock, self.arrival[i])
        if i in self.leaves_host:
            self.leaves_host.remove(i)
            del self.host_version[i]
            self.host -= self.sizes[i]

    def evict(self, i: int) -> tuple[int, int, int]:
        if self.state[i] != _LEAVING:
            raise ScheduleError("no offload of it is under way")
        start, self.clock = self.clock, max(self.clock, self.departure[i])
        self.offload_stall += self.clock - start
        return self._free(i, start)

    def drop(self, i: int) -> tuple[int, int, int]:
        start = self.clock
        if self.state[i] == _ARRIVING:
            self._arrive(i)
        elif self.state[i]:
            raise ScheduleError(_WHY_NOT[self.state[i]])
        return self._free(i, start)

    def _free(self, i: int, start: int) -> tuple[int, int, int]:
        for since, last in self.instance.tensors[i].held:
            if since < self.next <= last:
                raise ScheduleError(f"it is held outside the plan until operation {last} has run")
        self.resident -= self.sizes[i]
        self.state[i], self.version[i] = _ABSENT, 0
        return start, self.clock, self.resident + self.sizes[i]

    def _tensor(self, i: int) -> str:
        return f"tensor {i} ('{self.instance.tensors[i].name}')"
