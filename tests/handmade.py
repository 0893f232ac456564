"""Steps, plans and schedules small enough to follow by hand, written and read as text."""

from hypothesis import strategies as st

from slackswap_opt.instance import Instance, Link, Operation, Phase, Tensor
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.schedule import Action, Schedule
from slackswap_opt.testing import instances

LINK = Link(10**9, 10**9)
"""A byte a nanosecond each way: a copy takes as many nanoseconds as the tensor has bytes."""


def step(
    *operations: str,
    budget: int | None = None,
    host_budget: int | None = None,
    link: Link = LINK,
    held: dict[str, tuple[int, int]] | None = None,
) -> Instance:
    """Return the step of operations such as ``g@A 10 +1: a b -> c=4 d=2!``.

    That is: name, block, duration, workspace, reads, and writes, with their size where they are first written. A name with '
    is backward; ! behind an operation means that it cannot run again, behind a size that the tensor cannot be swapped.
    """
    held = held or {}
    tensors: list[Tensor] = []
    numbers: dict[str, int] = {}
    rows: list[Operation] = []
    for text in operations:
        head, _, body = text.partition(":")
        left, _, right = body.partition("->")
        for word in right.split():
            name, _, size = word.partition("=")
            if size:
                numbers[name] = len(tensors)
                stretches = (held[name],) if name in held else ()
                tensors.append(Tensor(name, int(size.rstrip("!")), not size.endswith("!"), held=stretches))
        writes = tuple(numbers[word.partition("=")[0]] for word in right.split())
        rows.append(_operation(head.split(), tuple(numbers[word] for word in left.split()), writes))
    return Instance("step", tuple(tensors), tuple(rows), link, budget, host_budget)


def _operation(head: list[str], reads: tuple[int, ...], writes: tuple[int, ...]) -> Operation:
    name, _, block = head[0].rstrip("!").partition("@")
    workspace = int(head[2]) if len(head) > 2 else 0
    phase: Phase = "backward" if "'" in name else "forward"
    return Operation(name, int(head[1]), reads, writes, workspace, not head[0].endswith("!"), phase, block or None)


def plan(instance: Instance, *decisions: str, tails: str = "") -> Plan:
    """Return the plan with decisions such as ``a swap keep``, one for each idle interval of a tensor, and tails ``b keep``."""
    number = {tensor.name: i for i, tensor in enumerate(instance.tensors)}
    kept = Plan.keep_all(instance)
    chosen = list(kept.intervals)
    for text in decisions:
        name, *words = text.split()
        own = [g for g, interval in enumerate(instance.idle_intervals) if interval.tensor == number[name]]
        for g, word in zip(own, words, strict=True):
            chosen[g] = Decision(word)
    ends = list(kept.tails)
    for text in tails.split(","):
        if text:
            name, word = text.split()
            ends[number[name]] = Decision(word)
    return Plan(tuple(chosen), tuple(ends))


def spelled(instance: Instance, schedule: Schedule) -> str:
    """Return the instructions as text: operations by name alone, the others with the tensor's name."""
    words = []
    for action, target in schedule.instructions:
        of = instance.operations if action is Action.RUN else instance.tensors
        words.append(of[target].name if action is Action.RUN else f"{action.value} {of[target].name}")
    return ", ".join(words)


@st.composite
def plans(draw: st.DrawFn, instance: Instance, *, possible: bool = True) -> Plan:
    """Plans for an instance; if `possible`, those that swap only what may be swapped and rebuild only what can be rebuilt."""
    intervals = []
    for interval in instance.idle_intervals:
        choices = [Decision.KEEP]
        choices += [Decision.SWAP] * (instance.tensors[interval.tensor].swappable or not possible)
        choices += [Decision.RECOMPUTE] * (instance.can_recompute(interval) or not possible)
        intervals.append(draw(st.sampled_from(choices)))
    tails = []
    for tensor in instance.tensors:
        ends = [Decision.DISCARD, Decision.KEEP, Decision.RECOMPUTE, *[Decision.SWAP] * (tensor.swappable or not possible)]
        tails.append(draw(st.sampled_from(ends)))
    return Plan(tuple(intervals), tuple(tails))


@st.composite
def planned(draw: st.DrawFn, *, possible: bool = True, host_budgets: bool = False) -> tuple[Instance, Plan]:
    """Instances, most of them short of memory, each with a plan."""
    instance = draw(instances(max_tensors=7, max_operations=10, budgets=(0, 100), host_budgets=host_budgets))
    if draw(st.booleans()):
        instance = instance.with_budget(None)
    return instance, draw(plans(instance, possible=possible))
