"""The smallest steps on which a plan is longer than it need be, found and shrunk by hypothesis, a kind of loss at a time.

Sizes are tried upwards, by tensors and operations together. Where hypothesis finds an instance of a kind among so many examples
of a size, it shrinks that; then all is left out that can be. That none smaller was found is no proof that there is none.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from random import Random
from statistics import median
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis.errors import NoSuchExample

from slackswap_opt.drafts import Found, NoPlanError
from slackswap_opt.greedy import greedy
from slackswap_opt.instance import Instance
from slackswap_opt.place import PlacementError, place_and_judge
from slackswap_opt.plan import Decision, Plan
from tests.brute_force import SearchLimitError, best_schedule, search
from tests.plan_space import PlanRules
from tests.schedule_space import AWAY, BACK, LEAVING, RESIDENT, Node
from tests.small_steps import smaller, steps
from tests.tiny_instances import tiny_instances

LIMIT = 20_000
"""States that a search for an optimum may look at; instances that take more are passed over."""
FEWEST, MOST = 5, 9
"""Tensors and operations together, of the instances that are looked at."""
MOST_TENSORS = 5
QUIET = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))


def planned(instance: Instance) -> Found | None:
    """Return greedy's plan, or None if it finds none."""
    try:
        return greedy(instance)
    except NoPlanError:
        return None


def plan_optimum(instance: Instance) -> int | None:
    """Return the least makespan of the plan space, or None if nothing in it fits."""
    found = best_schedule(instance, limit=LIMIT)
    return found and found[0]


def optimum(instance: Instance) -> int | None:
    """Return the least makespan of all schedules, or None if none fits."""
    found = best_schedule(instance, space="all", limit=LIMIT)
    return found and found[0]


def plans(instance: Instance, *, intervals: Sequence[Decision] | None = None, tails: bool = False) -> Iterator[Plan]:
    """Yield the plans with these decisions for idle intervals, or with any; with any tails, or with all of them discarded."""
    over = [memory > (instance.budget or 0) for memory in instance.keep_all_memory]
    choices = []
    for n, interval in enumerate(instance.idle_intervals):
        own = [Decision.KEEP]
        if any(over[interval.start + 1 : interval.end]):
            own += [Decision.SWAP] * instance.tensors[interval.tensor].swappable
            own += [Decision.RECOMPUTE] * instance.can_recompute(interval)
        choices.append(own if intervals is None else [intervals[n]])
    operands = {i for operation in instance.operations if operation.recomputable and operation.writes for i in operation.reads}
    ends = []
    for i, tensor in enumerate(instance.tensors):
        more = [Decision.KEEP, Decision.RECOMPUTE, *[Decision.SWAP] * tensor.swappable] if tails and i in operands else []
        ends.append([Decision.DISCARD, *more])
    for decisions in product(*choices):
        for chosen in product(*ends):
            yield Plan(decisions, chosen)


def reached(instance: Instance, among: Iterator[Plan], makespan: int) -> bool:
    """Whether one of some plans, placed, takes no longer."""
    for plan in among:
        try:
            if place_and_judge(instance, plan).timeline.makespan <= makespan:
                return True
        except PlacementError:
            continue
    return False


def chained(instance: Instance, plan: Plan) -> bool:
    """Whether a plan recomputes a tensor from one that is gone, to be recomputed, at that moment."""
    again = [g for g, decision in zip(instance.idle_intervals, plan.intervals, strict=True) if decision is Decision.RECOMPUTE]
    return any(
        gone.start < g.end < gone.end and gone.tensor in instance.operations[t].reads
        for g in again
        for gone in again
        for t in instance.writers[g.tensor]
    )


def loss_of_greedy(instance: Instance) -> str | None:
    """Return why greedy's plan is longer than the best of the plan space, or None if it is not; see `KINDS`."""
    found = planned(instance)
    if found is None:
        return "none found" if plan_optimum(instance) is not None else None
    if found.makespan == instance.ideal:
        return None
    best = plan_optimum(instance)
    if best is None or found.makespan <= best:
        return None
    if reached(instance, plans(instance, intervals=found.plan.intervals, tails=True), best):
        return "tail"
    if reached(instance, plans(instance), best):
        return "chain" if chained(instance, found.plan) else "choice"
    return "choice and tail" if reached(instance, plans(instance, tails=True), best) else "placement"


class Anything(PlanRules):
    """The plan space, where a tensor may leave after any access, whether memory is short before the next one or not."""

    def __init__(self, instance: Instance, W: int | None = None) -> None:
        super().__init__(instance, W)
        self.open = {(i, t): True for i, accesses in enumerate(instance.accesses) for t in accesses}


class Lingering(PlanRules):
    """The plan space, where a tensor that is dropped may stay for a while first, and serve re-runs meanwhile."""

    def removable(self, node: Node, i: int) -> bool:
        cell = node.cells[i]
        lingers = cell.place == RESIDENT and cell.role == AWAY and self._sound(node, i)
        return lingers or super().removable(node, i)

    def _readable(self, node: Node, i: int) -> bool:
        cell = node.cells[i]
        return (cell.place == RESIDENT and cell.role == AWAY and self._sound(node, i)) or super()._readable(node, i)

    def _opened(self, node: Node, i: int, t: int) -> Iterator[tuple[int, bool]]:
        options = list(super()._opened(node, i, t))
        yield from options
        if (AWAY, False) in options and (AWAY, True) not in options:
            yield AWAY, True


class Returning(PlanRules):
    """The plan space, where a tensor may leave again, and come back again, in one idle interval."""

    def removable(self, node: Node, i: int) -> bool:
        cell = node.cells[i]
        again = cell.place in (RESIDENT, LEAVING) and cell.role == BACK and self._sound(node, i)
        return again or super().removable(node, i)

    def remove(self, node: Node, i: int) -> Node:
        after = super().remove(node, i)
        return self._with_role(after, i, AWAY) if node.cells[i].role == BACK else after


LIFTED = {"left alone": Anything, "dropped at once": Lingering, "back once": Returning}
"""Rules of the plan space, and the space without each."""


def loss_of_plans(instance: Instance) -> str | None:
    """Return the rule without which the best of the plan space would be as short as the best of all schedules; or None."""
    found = planned(instance)
    if found and found.makespan == instance.ideal:
        return None
    best = optimum(instance)
    if best is None or (found and found.makespan <= best):
        return None
    if plan_optimum(instance) == best:
        return None
    for name, rules in LIFTED.items():
        space = rules(instance, None)
        node = search(space, LIMIT)
        if node and space.makespan(node) == best:
            return name
    return "several rules"


class Makespans(NamedTuple):
    """Nanoseconds of one instance; None where there is no plan, or no schedule."""

    ideal: int
    greedy: int | None
    plans: int | None
    all: int | None


def makespans(instance: Instance) -> Makespans:
    """Return the makespans of one instance."""
    found = planned(instance)
    return Makespans(instance.ideal, found.makespan if found else None, plan_optimum(instance), optimum(instance))


def survey(number: int) -> list[tuple[Instance, Makespans]]:
    """Return so many random tiny steps, the same every time, with makespans, without those that take too long to search."""
    rows: list[tuple[Instance, Makespans]] = []

    @seed(0)
    @settings(parent=QUIET, max_examples=number, phases=[Phase.generate])
    @given(tiny_instances(tensors=5, operations=8))
    def look(instance: Instance) -> None:
        with suppress(SearchLimitError):
            rows.append((instance, makespans(instance)))

    look()
    return rows


def summary(pairs: Iterable[tuple[int | None, int | None]]) -> str:
    """Return how often the first of two makespans is longer than the second, and by what share of it; None is no plan."""
    known = [(a, b) for a, b in pairs if b is not None]
    losses = [100 * (a - b) / b for a, b in known if a is not None and a > b]
    missing = sum(a is None for a, _ in known)
    shares = f", by {median(losses):.1f} % in the median and {max(losses):.1f} % at most" if losses else ""
    return f"longer in {len(losses)} of {len(known)}{shares}; none found in {missing}"


Loss = Callable[[Instance], str | None]
KINDS: dict[str, tuple[Loss, bool]] = {
    **dict.fromkeys(("tail", "choice", "choice and tail", "chain", "placement"), (loss_of_greedy, False)),
    "none found": (loss_of_greedy, True),
    **dict.fromkeys((*LIFTED, "several rules"), (loss_of_plans, False)),
}
"""For each kind of loss what recognises it, and whether it is looked for among steps with flags."""


def is_one(kind: str, instance: Instance) -> bool:
    """Whether an instance is of a kind; not if that takes too long to tell."""
    try:
        return instance.peak > (instance.budget or 0) and KINDS[kind][0](instance) == kind
    except SearchLimitError:
        return False


def reduced(kind: str, instance: Instance) -> Instance:
    """Return an instance of a kind that is no longer one if anything is left out of it."""
    while less := next((less for less in smaller(instance) if is_one(kind, less)), None):
        instance = less
    return instance


def smallest(kind: str, examples: int) -> Instance | None:
    """Return the smallest instance of a kind that is found among so many examples of each size, or None."""
    options = settings(parent=QUIET, max_examples=examples, phases=[Phase.generate, Phase.shrink])
    for both in range(FEWEST, MOST + 1):
        for tensors in range(1, min(MOST_TENSORS, both - 3) + 1):
            strategy = steps(tensors, both - tensors, KINDS[kind][1])
            with suppress(NoSuchExample):
                return reduced(kind, find(strategy, partial(is_one, kind), settings=options, random=Random(0)))
    return None
