r"""Schedules, exactly as the judge takes them, as intervals for OR-Tools CP-SAT; small steps only.

Events in a row run one operation each, for the first time or again, or none. In the gap before each event stand, in this
order, offloads, then evictions and drops, then prefetches. Event $e$ starts at $S_e$; its gap begins at $C_e$, and what it
waits for has ended by $W_e$:

$$W_e \ge \max(C_e, \text{ends of copies waited for}), \qquad S_e \ge W_e, \qquad C_{e+1} = S_e + p_e.$$

A copy is an interval on its lane, after all of earlier gaps. An event without an operation parts two gaps, so every order of
instructions can be had: what the model leaves out is only schedules with more events.
"""

from typing import TYPE_CHECKING, Any

from slackswap_opt.instance import Instance
from slackswap_opt.schedule import Action

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel


class IntervalProgram:
    """The model of one instance, an event at a time.

    Parameters
    ----------
    instance
        The step; its budget must be set.
    model
        What variables and constraints are added to.
    events
        How many events there are.

    Attributes
    ----------
    first, again
        For each event and operation whether it runs there, for the first time or again.
    offloads, fetches, freed, waits
        For each gap what is copied out, copied back, and leaves the device, by tensor; and whether what leaves is still being
        copied out.
    starts
        When each copy starts, by action, tensor and gap.
    """

    def __init__(self, instance: Instance, model: "CpModel", events: int) -> None:
        self.instance, self.model, self.events = instance, model, range(events)
        self.tensors, self.operations = range(len(instance.tensors)), range(len(instance.operations))
        self.sizes = [tensor.size for tensor in instance.tensors]
        self.budget = instance.budget or 0
        self.horizon = self._horizon()
        self.first = [[self._flag() for _ in self.operations] for _ in self.events]
        self.again = [[self._flag() for _ in self.operations] for _ in self.events]
        self.done: list[list[Any]] = []
        self.offloads: list[dict[int, Any]] = []
        self.fetches: list[dict[int, Any]] = []
        self.freed: list[list[Any]] = []
        self.waits: list[list[Any]] = []
        self.starts: dict[tuple[Action, int, int], Any] = {}
        self.here = [model.new_constant(0) for _ in self.tensors]
        self.leaving, self.arriving, self.host = self.here[:], self.here[:], self.here[:]
        self.version, self.host_version = self.here[:], self.here[:]
        self.clock = self.lane_out = self.lane_back = model.new_constant(0)
        self.departure, self.arrival = [self.clock] * len(self.tensors), [self.clock] * len(self.tensors)
        self.order()
        for e in self.events:
            self.gap(e)
            self.event(e)
        makespan = self._time()
        model.add_max_equality(makespan, [self.clock, self.lane_out, self.lane_back])
        model.minimize(makespan)

    def _flag(self) -> Any:
        return self.model.new_bool_var("")

    def _time(self) -> Any:
        return self.model.new_int_var(0, self.horizon, "")

    def _horizon(self) -> int:
        """More time than it takes if every event is the longest operation and every copy is made in every gap."""
        link = self.instance.link
        copies = sum(link.offload_time(size) + link.prefetch_time(size) for size in self.sizes)
        longest = max((operation.duration for operation in self.instance.operations), default=0)
        return (longest + copies) * len(self.events)

    def order(self) -> None:
        """First runs keep their order and all take place, re-runs come after them, an event runs at most one operation."""
        model = self.model
        for e in self.events:
            model.add_at_most_one([*self.first[e], *self.again[e]])
            self.done.append([sum(self.first[before][o] for before in range(e)) for o in self.operations])
            for o in self.operations:
                model.add(self.again[e][o] <= self.done[e][o])
                if o:
                    model.add(self.first[e][o] <= self.done[e][o - 1])
                if not self.instance.operations[o].recomputable:
                    model.add(self.again[e][o] == 0)
        for o in self.operations:
            model.add_exactly_one(self.first[e][o] for e in self.events)

    def gap(self, e: int) -> None:
        """Offloads, then evictions and drops, then prefetches."""
        self._offload(e)
        waited = self._free(e)
        self._prefetch(e, waited)
        self.clock = waited
        self._lanes(e)

    def _offload(self, e: int) -> None:
        model, issued = self.model, dict[int, Any]()
        for i in self.tensors:
            if not self.instance.tensors[i].swappable:
                continue
            out = issued[i] = self._flag()
            model.add(out <= self.here[i])
            model.add(out + self.leaving[i] + self.arriving[i] <= 1)
            self.leaving[i], self.host[i] = self._either(self.leaving[i], out), self._either(self.host[i], out)
            self.host_version[i] = self._chosen(out, self.version[i], self.host_version[i], len(self.instance.writers[i]))
            start = self.starts[Action.OFFLOAD, i, e] = self._time()
            end = start + self.instance.link.offload_time(self.sizes[i])
            model.add(start >= self.clock).only_enforce_if(out)
            self.departure[i] = self._chosen(out, end, self.departure[i], self.horizon)
        self.offloads.append(issued)
        if self.instance.host_budget is not None:
            held = sum(size * host for size, host in zip(self.sizes, self.host, strict=True))
            for out in issued.values():
                model.add(held <= self.instance.host_budget).only_enforce_if(out)

    def _free(self, e: int) -> Any:
        """Let tensors leave the device, and return when what that waits for has ended."""
        model, waited = self.model, self._time()
        model.add(waited >= self.clock)
        self.freed.append([])
        self.waits.append([])
        for i in self.tensors:
            gone, leaving, arriving = self._flag(), self.leaving[i], self.arriving[i]
            self.freed[e].append(gone)
            model.add(gone <= self.here[i])
            for since, last in self.instance.tensors[i].held:
                model.add(gone + self.done[e][since] - self.done[e][last] <= 1)
            model.add(waited >= self.departure[i]).only_enforce_if(gone, leaving)
            model.add(waited >= self.arrival[i]).only_enforce_if(gone, arriving)
            self.waits[e].append(leaving)
            forgotten = self._forgotten(i, gone, arriving)
            self.here[i], self.leaving[i], self.arriving[i] = (self._but(x, gone) for x in (self.here[i], leaving, arriving))
            self.host[i] = self._but(self.host[i], forgotten)
            self.version[i] = self._chosen(gone, 0, self.version[i], len(self.instance.writers[i]))
        return waited

    def _forgotten(self, i: int, arrives: Any, arriving: Any) -> Any:
        """Return whether the host's copy goes: it may where the tensor arrives and nothing fetches the copy again."""
        forgotten = self._flag()
        self.model.add(forgotten <= arrives)
        self.model.add(forgotten <= arriving)
        return forgotten

    def _prefetch(self, e: int, waited: Any) -> None:
        model, issued = self.model, dict[int, Any]()
        for i in self.tensors:
            if not self.instance.tensors[i].swappable:
                continue
            back = issued[i] = self._flag()
            model.add(back + self.here[i] <= 1)
            model.add(back <= self.host[i])
            self.here[i], self.arriving[i] = self._either(self.here[i], back), self._either(self.arriving[i], back)
            self.version[i] = self._chosen(back, self.host_version[i], self.version[i], len(self.instance.writers[i]))
            start = self.starts[Action.PREFETCH, i, e] = self._time()
            model.add(start >= waited).only_enforce_if(back)
            end = start + self.instance.link.prefetch_time(self.sizes[i])
            self.arrival[i] = self._chosen(back, end, self.arrival[i], self.horizon)
        self.fetches.append(issued)

    def _lanes(self, e: int) -> None:
        """Copies of a gap follow those of earlier gaps, one after the other, in any order among themselves."""
        link = self.instance.link
        out = [(Action.OFFLOAD, i, flag, link.offload_time(self.sizes[i])) for i, flag in self.offloads[e].items()]
        back = [(Action.PREFETCH, i, flag, link.prefetch_time(self.sizes[i])) for i, flag in self.fetches[e].items()]
        if link.duplex:
            self.lane_out, self.lane_back = self._lane(e, self.lane_out, out), self._lane(e, self.lane_back, back)
        else:
            self.lane_out = self.lane_back = self._lane(e, self.lane_out, [*out, *back])

    def _lane(self, e: int, before: Any, copies: list[tuple[Action, int, Any, int]]) -> Any:
        after, intervals = self._time(), []
        self.model.add(after >= before)
        for action, i, flag, time in copies:
            start = self.starts[action, i, e]
            intervals.append(self.model.new_optional_fixed_size_interval_var(start, time, flag, ""))
            self.model.add(start >= before).only_enforce_if(flag)
            self.model.add(start + time <= after).only_enforce_if(flag)
        self.model.add_no_overlap(intervals)
        return after

    def event(self, e: int) -> None:
        """The operation that runs: what it reads is there, what it writes is allocated, all of it within the budget."""
        model, start, extra = self.model, self._time(), []
        model.add(start >= self.clock)
        touched, written = [list[Any]() for _ in self.tensors], [list[Any]() for _ in self.tensors]
        for o in self.operations:
            operation = self.instance.operations[o]
            for flag, wanted in ((self.first[e][o], self.instance.wanted[o]), (self.again[e][o], operation.reads)):
                extra.append(operation.workspace * flag)
                for i in wanted:
                    model.add_implication(flag, self.here[i])
                    touched[i].append(flag)
                for i in operation.writes:
                    written[i].append(flag)
                    model.add(flag + self.leaving[i] <= 1)
                    if i not in operation.reads:
                        model.add(flag + self.arriving[i] <= 1)
                        extra.append(self.sizes[i] * self._both(flag, self.here[i]))
        self._versions(e)
        for i in self.tensors:
            accessed = self._any(touched[i])
            model.add(start >= self.arrival[i]).only_enforce_if(accessed, self.arriving[i])
            forgotten = self._forgotten(i, accessed, self.arriving[i])
            self.arriving[i], self.host[i] = self._but(self.arriving[i], accessed), self._but(self.host[i], forgotten)
            self.here[i] = self._either(self.here[i], self._any(written[i]))
        model.add(sum(size * here for size, here in zip(self.sizes, self.here, strict=True)) + sum(extra) <= self.budget)
        durations = [operation.duration for operation in self.instance.operations]
        runs = (self.first[e][o] + self.again[e][o] for o in self.operations)
        self.clock = start + sum(duration * run for duration, run in zip(durations, runs, strict=True))

    def _versions(self, e: int) -> None:
        """Tensors with several writers are read after as many of them as in the step, and written once more."""
        new: dict[int, list[tuple[Any, int]]] = {}
        for o, groups in self.instance.group_accesses.items():
            for i, before, writes in groups:
                for flag, checked in ((self.first[e][o], True), (self.again[e][o], i in self.instance.operations[o].reads)):
                    if before and checked:
                        self.model.add(self.version[i] == before).only_enforce_if(flag)
                    if writes:
                        new.setdefault(i, []).append((flag, before + 1))
        for i, writes_of in new.items():
            after = self.model.new_int_var(0, len(self.instance.writers[i]), "")
            for flag, version in writes_of:
                if version > 1:
                    self.model.add(after == version).only_enforce_if(flag)
                else:
                    self.model.add_max_equality(
                        made := self.model.new_int_var(1, len(self.instance.writers[i]), ""), [self.version[i], 1]
                    )
                    self.model.add(after == made).only_enforce_if(flag)
            self.model.add(after == self.version[i]).only_enforce_if(*(flag.negated() for flag, _ in writes_of))
            self.version[i] = after

    def _any(self, flags: list[Any]) -> Any:
        result = self._flag()
        self.model.add_max_equality(result, [*flags, 0])
        return result

    def _either(self, a: Any, b: Any) -> Any:
        return self._any([a, b])

    def _both(self, a: Any, b: Any) -> Any:
        result = self._flag()
        self.model.add_min_equality(result, [a, b])
        return result

    def _but(self, a: Any, b: Any) -> Any:
        """Return whether `a` and not `b`."""
        result = self._flag()
        self.model.add_min_equality(result, [a, 1 - b])
        return result

    def _chosen(self, flag: Any, a: Any, b: Any, most: int) -> Any:
        """Return `a` if the flag is set, else `b`."""
        result = self.model.new_int_var(0, most, "")
        self.model.add(result == a).only_enforce_if(flag)
        self.model.add(result == b).only_enforce_if(flag.negated())
        return result
