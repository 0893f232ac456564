"""Hypothesis strategies for those who test a heuristic of their own: small instances, and schedules that break no rule.

Examples
--------
>>> from hypothesis import given
>>> from slackswap_opt.testing import instances
>>> @given(instances(budgets=(0, 100)))
... def test_my_heuristic_keeps_to_the_budget(instance):
...     assert simulate(instance, my_heuristic(instance)).peak <= instance.budget

Both shrink: instances towards fewer and plainer operations and small numbers, schedules towards keeping everything.
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from slackswap_opt.instance import Instance, Link, Operation, Phase, Tensor
from slackswap_opt.schedule import Action, Instruction, Schedule

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_MISSING = "pip install 'hypothesis>=6.100'"


class _Trait(NamedTuple):
    """Something about an operation, such as what it reads; `value` is a size, or counts back from the latest tensor."""

    kind: str
    value: int


def instances(
    *,
    max_tensors: int = 6,
    max_operations: int = 8,
    max_size: int = 8,
    max_duration: int = 8,
    forward_reads: bool = True,
    in_place: bool = True,
    held: bool = True,
    unswappable: bool = True,
    non_recomputable: bool = True,
    workspace: bool = True,
    budgets: tuple[int, int] | None = None,
    host_budgets: bool = False,
) -> "SearchStrategy[Instance]":
    """Return a strategy for small instances, with sizes and durations of zero among them.

    Parameters
    ----------
    max_tensors, max_operations
        The most tensors and operations of an instance.
    max_size, max_duration
        The largest size and workspace in bytes, and the longest operation in nanoseconds. Links move some bytes a nanosecond,
        so copies take about as long as operations.
    forward_reads
        Whether forward operations read tensors; otherwise only backward ones do, and re-runs need no others.
    in_place, held, unswappable, non_recomputable, workspace
        Whether there may be operations that write in place, tensors that something outside holds, tensors that cannot be
        swapped, operations that cannot run again, and operations with a workspace.
    budgets
        The range of the budget in percent of the way from what every schedule needs (the largest of `Instance.floor`) to the
        unconstrained peak; None for no budget.
    host_budgets
        Whether the host may have a budget.

    Raises
    ------
    ImportError
        If hypothesis is not installed.
    """
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise ImportError(_MISSING) from None
    optional = {"in place": in_place, "workspace": workspace, "once": non_recomputable, "stays": unswappable, "held": held}
    kinds = ["writes", "reads", "backward"] * 3 + [kind for kind, allowed in optional.items() if allowed]
    traits = st.lists(st.builds(_Trait, st.sampled_from(kinds), st.integers(0, max_size)))
    bandwidths = st.sampled_from([10**9, 4 * 10**9, 7 * 10**8, 10**12])
    return st.builds(
        _build,
        steps=st.lists(st.tuples(st.integers(0, max_duration), traits), min_size=1, max_size=max_operations),
        link=st.builds(Link, bandwidths, bandwidths, st.integers(0, 3), st.sampled_from([True, False])),
        max_tensors=st.just(max_tensors),
        forward_reads=st.just(forward_reads),
        budget=st.none() if budgets is None else st.integers(*budgets),
        host_budget=st.none() | st.integers(0, 100) if host_budgets else st.none(),
    )


def _build(
    steps: list[tuple[int, list[_Trait]]],
    link: Link,
    max_tensors: int,
    forward_reads: bool,
    budget: int | None,
    host_budget: int | None,
) -> Instance:
    """Make an instance of durations and traits, valid whichever of them shrinking lowers or takes away."""
    tensors: list[Tensor] = []
    operations: list[Operation] = []
    for duration, traits in sorted(steps, key=lambda step: bool(_values(step[1], "backward"))):
        t = len(operations)
        phase: Phase = "backward" if _values(traits, "backward") else "forward"
        if phase == "forward" and not forward_reads:
            traits = [trait for trait in traits if trait.kind not in ("reads", "in place")]
        made = _tensors(traits, len(tensors), t, len(steps))[: max_tensors - len(tensors)]
        operations.append(replace(_operation(traits, len(tensors), len(made)), name=f"o{t}", duration=duration, phase=phase))
        tensors += made
    bytes_on_host = None if host_budget is None else sum(tensor.size for tensor in tensors) * host_budget // 100
    instance = Instance("random", tuple(tensors), tuple(operations), link, host_budget=bytes_on_host)
    least = max(instance.floor)
    return instance if budget is None else instance.with_budget(least + (instance.peak - least) * budget // 100)


def _values(traits: list[_Trait], kind: str) -> list[int]:
    return [trait.value for trait in traits if trait.kind == kind]


def _tensors(traits: list[_Trait], existing: int, t: int, operations: int) -> list[Tensor]:
    """The tensors that operation `t` is the first to write."""
    held = [(t + value % 3, min(t + value % 3 + value // 3, operations - 1)) for value in _values(traits, "held")[:1]]
    stretches = tuple((first, last) for first, last in held if first < operations)
    sizes = enumerate(_values(traits, "writes"), start=existing)
    return [Tensor(f"t{i}", size, not _values(traits, "stays"), held=stretches) for i, size in sizes]


def _operation(traits: list[_Trait], existing: int, made: int) -> Operation:
    def counted_back(kind: str) -> list[int]:
        return [existing - 1 - min(value, existing - 1) for value in _values(traits, kind)] if existing else []

    in_place = dict.fromkeys(counted_back("in place"))
    return Operation(
        name="",
        duration=0,
        reads=tuple({**dict.fromkeys(counted_back("reads")), **in_place}),
        writes=(*in_place, *range(existing, existing + made)),
        workspace=sum(_values(traits, "workspace")),
        recomputable=not _values(traits, "once"),
    )


def schedules(instance: Instance) -> "SearchStrategy[Schedule]":
    """Return a strategy for schedules of `instance` that break no rule, but for the device's budget, which is not looked at.

    They walk at random among the instructions that are legal, useless ones too, as long as all operations can still run.

    Raises
    ------
    ImportError
        If hypothesis is not installed.
    """
    try:
        from hypothesis import strategies as st
    except ImportError:
        raise ImportError(_MISSING) from None
    bursts = st.tuples(st.integers(0, len(instance.operations)), st.lists(st.integers(0, 63), min_size=1, max_size=4))
    return st.lists(bursts).map(lambda bursts: _walk(instance, bursts))


def _walk(instance: Instance, bursts: list[tuple[int, list[int]]]) -> Schedule:
    """Run the step; each burst gives an operation, or the end, ahead of which it issues the legal instructions it numbers."""
    memory = _Memory(instance)
    for t in range(len(instance.operations) + 1):
        for choice in (choice for position, choices in bursts if position == t for choice in choices):
            if moves := memory.moves():
                trial = memory.copy()
                trial.issue(*moves[choice % len(moves)])
                memory = trial if trial.copy().finish() else memory
        if t < len(instance.operations):
            memory.run_first()
    return Schedule.of(instance, memory.issued)


@dataclass(slots=True)
class _Memory:
    """What some instructions lead to: versions are how many writers of a tensor have run on the bytes at hand."""

    instance: Instance
    next: int = 0
    device: dict[int, int] = field(default_factory=dict)
    host: dict[int, int] = field(default_factory=dict)
    leaving: set[int] = field(default_factory=set)
    arriving: set[int] = field(default_factory=set)
    forgotten: set[int] = field(default_factory=set)
    """Arriving tensors whose copy on the host is given up then."""
    issued: list[Instruction] = field(default_factory=list)

    def copy(self) -> "_Memory":
        return _Memory(
            self.instance,
            self.next,
            dict(self.device),
            dict(self.host),
            set(self.leaving),
            set(self.arriving),
            set(self.forgotten),
            list(self.issued),
        )

    def moves(self) -> list[tuple[Instruction, bool]]:
        """Return the legal instructions but for first runs, each with whether a prefetch is the last of its copy."""
        moves: list[tuple[Instruction, bool]] = []
        for i, tensor in enumerate(self.instance.tensors):
            if i in self.device and self.may_leave(i):
                moves.append((Instruction(Action.EVICT if i in self.leaving else Action.DROP, i), False))
            if i in self.device and i not in self.leaving | self.arriving and tensor.swappable and self.host_has_room(i):
                moves.append((Instruction(Action.OFFLOAD, i), False))
            if i not in self.device and i in self.host:
                moves += [(Instruction(Action.PREFETCH, i), False), (Instruction(Action.PREFETCH, i), True)]
        return moves + [(Instruction(Action.RUN, t), False) for t in range(self.next) if self.can_run(t)]

    def may_leave(self, i: int) -> bool:
        return not any(first < self.next <= last for first, last in self.instance.tensors[i].held)

    def host_has_room(self, i: int) -> bool:
        limit, tensors = self.instance.host_budget, self.instance.tensors
        return limit is None or sum(tensors[j].size for j in {*self.host, i}) <= limit

    def version_for(self, i: int, t: int) -> int:
        """Return the version of tensor `i` that operation `t` needs."""
        return bisect_left(self.instance.writers[i], t)

    def wanted(self, t: int) -> tuple[int, ...]:
        return self.instance.wanted[t] if t == self.next else self.instance.operations[t].reads

    def can_run(self, t: int) -> bool:
        operation = self.instance.operations[t]
        in_flight = self.leaving | (self.arriving - set(operation.reads))
        return (
            (t == self.next or (t < self.next and operation.recomputable))
            and all(self.device.get(i) == self.version_for(i, t) for i in self.wanted(t))
            and in_flight.isdisjoint(operation.writes)
        )

    def issue(self, instruction: Instruction, last: bool = False) -> None:
        """Execute a legal instruction."""
        self.issued.append(instruction)
        action, i = instruction
        if action == Action.RUN:
            self.run(i)
        elif action == Action.OFFLOAD:
            self.leaving.add(i)
            self.host[i] = self.device[i]
        elif action == Action.PREFETCH:
            self.arriving.add(i)
            self.device[i] = self.host[i]
            if last:
                self.forgotten.add(i)
        else:
            self.arrive(i)
            self.leaving.discard(i)
            del self.device[i]

    def run(self, t: int) -> None:
        for i in self.wanted(t):
            self.arrive(i)
        operation = self.instance.operations[t]
        for i in operation.writes:
            if i in operation.reads:
                self.device[i] += 1
            else:
                self.device.setdefault(i, 1)
        self.next = max(self.next, t + 1)

    def arrive(self, i: int) -> None:
        self.arriving.discard(i)
        if i in self.forgotten:
            self.forgotten.remove(i)
            del self.host[i]

    def finish(self) -> bool:
        """Run what has not run, and return whether that was possible."""
        while self.next < len(self.instance.operations):
            if not self.run_first():
                return False
        return True

    def run_first(self) -> bool:
        """Bring back what the next operation needs and run it, or return False."""
        t = self.next
        for i in self.leaving & set(self.instance.operations[t].writes):
            if not self.free(i):
                return False
        return self.bring_and_run(t)

    def bring_and_run(self, t: int) -> bool:
        brought = all(self.bring(i, self.version_for(i, t)) for i in self.wanted(t))
        if not brought or not self.can_run(t):
            return False
        self.issue(Instruction(Action.RUN, t))
        return True

    def bring(self, i: int, version: int) -> bool:
        """Get tensor `i` in that version: from the host, or else by running its writers again."""
        if self.device.get(i) == version:
            return True
        if i in self.device and not self.free(i):
            return False
        if self.host.get(i) == version:
            self.issue(Instruction(Action.PREFETCH, i))
            return True
        return all(self.bring_and_run(t) for t in self.instance.writers[i][:version])

    def free(self, i: int) -> bool:
        if self.may_leave(i):
            self.issue(Instruction(Action.EVICT if i in self.leaving else Action.DROP, i))
            return True
        return False
