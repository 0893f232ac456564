"""What happened beside what was predicted."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from slackswap_opt.runtime.planned import Ready
from slackswap_opt.units import format_percent, format_size, format_time

BESIDE = 20
"""What the host takes beside the operations is told from one in this many of the predicted step on."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step that followed a plan, or began to.

    Attributes
    ----------
    reason
        Why it left the plan, or an empty string.
    complete
        Whether all of its operations ran.
    time
        Nanoseconds from entering its scope to its end.
    offload_stall, prefetch_stall
        Nanoseconds that compute waited, as far as the host could see.
    peak
        Bytes at the peak beyond those before the step, by the device's allocator, or None where it keeps no count.
    offloaded, prefetched, reruns
        Bytes moved, and operations run again.
    unexpected
        Storages that were still held by something when they were freed, with their bytes.
    """

    reason: str
    complete: bool
    time: int
    offload_stall: int
    prefetch_stall: int
    peak: int | None
    offloaded: int
    prefetched: int
    reruns: int
    unexpected: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The steps under one plan.

    Attributes
    ----------
    name, fingerprint
        Of the instance.
    ready
        What was planned.
    steps
        The latest ones.
    verified
        Whether a step under it was compared with the same step all swapped, as `MemoryBudget` may be asked for.
    """

    name: str
    fingerprint: str
    ready: Ready
    steps: tuple[StepRecord, ...]
    verified: bool = False

    def beside(self) -> int | None:
        """Return the nanoseconds of a step that are neither its operations' nor waits, or None if no step followed the plan.

        Predicted times are made of operations and copies. What Python, autograd and the hooks of the runtime take, and gaps
        between operations, are in no profile: they show as the median of the measured steps, less waits, less what the
        operations were predicted to take.
        """
        timeline = self.ready.usual.program.timeline
        operations = timeline.makespan - timeline.offload_stall - timeline.prefetch_stall
        times = [step.time - step.offload_stall - step.prefetch_stall - operations for step in self._followed()]
        return round(median(times)) if times else None

    def _followed(self) -> list[StepRecord]:
        return [step for step in self.steps if step.complete and not step.reason]

    def rows(self) -> list[tuple[str, str, str]]:
        """Return rows of a table: what, predicted, and measured as the median of the steps that followed the plan."""
        timeline = self.ready.usual.program.timeline
        followed = self._followed()
        peaks = [step.peak for step in followed if step.peak is not None]

        def measured(values: list[int]) -> int | None:
            return round(median(values)) if values else None

        sizes = [
            ("moved to the host", timeline.offloaded, measured([step.offloaded for step in followed])),
            ("moved back", timeline.prefetched, measured([step.prefetched for step in followed])),
        ]
        times = [
            ("step", timeline.makespan, measured([step.time for step in followed])),
            ("waiting to leave", timeline.offload_stall, measured([step.offload_stall for step in followed])),
            ("waiting for return", timeline.prefetch_stall, measured([step.prefetch_stall for step in followed])),
        ]
        reruns = measured([step.reruns for step in followed])
        peak = _shown(measured(peaks), format_size) or ("not counted" if followed else "")
        return [
            *((what, format_time(predicted), _shown(seen, format_time)) for what, predicted, seen in times),
            ("peak", format_size(timeline.peak), peak),
            *((what, format_size(predicted), _shown(seen, format_size)) for what, predicted, seen in sizes),
            ("operations run again", str(timeline.recomputed), _shown(reruns, str)),
        ]


@dataclass(frozen=True, slots=True)
class Report:
    """What a `MemoryBudget` did so far. Printed, it is a table a plan.

    Attributes
    ----------
    allowance
        How the budget came to be, in words, where it was given for a whole device; else empty.
    profiled
        How many steps were profiled.
    plans
        What was planned, with the steps under it.
    """

    allowance: str
    profiled: int
    plans: tuple[PlanReport, ...]

    def __str__(self) -> str:
        lines = [f"{self.profiled} steps profiled, {len(self.plans)} planned for"]
        lines += [self.allowance] if self.allowance else []
        for plan in self.plans:
            lines += ["", *_table(plan)]
        return "\n".join(lines)


def _table(plan: PlanReport) -> list[str]:
    program = plan.ready.usual.program
    retained = format_percent(program.timeline.retained)
    budget = plan.ready.whole.program.instance.budget
    kept = "no budget" if budget is None else f"a budget of {format_size(budget)}"
    clock = "standing still in backward" if program.passes else "running throughout"
    lines = [
        f"{plan.name}: {retained} of ideal throughput predicted under {kept}; clock {clock}",
        f"{'':22}{'predicted':>14}{'measured':>14}",
        *(f"{what:22}{predicted:>14}{seen:>14}" for what, predicted, seen in plan.rows()),
        f"{'host memory':22}{format_size(plan.ready.host):>14}",
    ]
    beside = plan.beside()
    if beside is not None and beside * BESIDE > program.timeline.makespan:
        each = format_time(round(beside / len(program)))
        what = "Python, autograd and the runtime, which no prediction holds"
        lines.append(f"{what}: {format_time(beside)} of the step, {each} an operation")
    lines += ["verified: a step read and made the same bits as with everything swapped"] if plan.verified else []
    reasons = Counter(step.reason for step in plan.steps if step.reason)
    lines += [f"left by {count} of {len(plan.steps)} steps: {reason}" for reason, count in reasons.items()]
    return lines + [f"held by something unknown: '{name}', {format_size(size)}" for name, size in _unexpected(plan)]


def _unexpected(plan: PlanReport) -> list[tuple[str, int]]:
    return list(dict.fromkeys(pair for step in plan.steps for pair in step.unexpected))


def _shown(value: int | None, form: Callable[[int], str]) -> str:
    return "" if value is None else form(value)
