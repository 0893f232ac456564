"""A planned step, from the moment that it begins to what is remembered of it."""

from collections import deque
from collections.abc import Callable, Sequence

import torch

from slackswap_opt.runtime.execute import Execution
from slackswap_opt.runtime.planned import Ready
from slackswap_opt.runtime.report import PlanReport, StepRecord
from slackswap_opt.runtime.running import Running
from slackswap_opt.runtime.transfers import Lane, Transfers
from slackswap_opt.runtime.verify import Verifying

STEPS = 100
"""How many of the latest steps of a plan are remembered."""


class Plan:
    """What steps of one kind follow, and how they fared.

    Attributes
    ----------
    ready
        What was planned.
    had_gradients
        Whether leaves had gradients when such a step began, or None if that is not known.
    verified
        Whether a step has compared all that it saved.
    """

    def __init__(self, ready: Ready, had_gradients: bool | None) -> None:
        self.ready, self.had_gradients = ready, had_gradients
        self.verified = False
        self._records: deque[Callable[[], StepRecord]] = deque(maxlen=STEPS)

    def add(self, record: Callable[[], StepRecord]) -> None:
        """Remember a step; `record` is asked when a report is wanted, by when a device may have finished."""
        self._records.append(record)

    def report(self) -> PlanReport:
        """Return what happened."""
        instance = self.ready.profile.instance
        steps = tuple(record() for record in self._records)
        return PlanReport(instance.name, instance.fingerprint, self.ready, steps, self.verified)


class PlannedStep:
    """One step under a plan.

    Parameters
    ----------
    plans
        Those that the execution may follow; the one that it followed becomes the first of them.
    execution, transfers
        What carries it out.
    on_leave
        Called when the step, or a backward pass of it, is over, if it has left its plan.
    on_end
        Called when the step has ended.
    """

    def __init__(
        self,
        plans: list[Plan],
        execution: Execution,
        transfers: Transfers,
        on_leave: Callable[[Running, Plan], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.running = Running(execution, on_pause=self._pause, on_end=self._end)
        self._plans, self._execution, self._transfers = plans, execution, transfers
        self._on_leave, self._on_end = on_leave, on_end
        self._before = self._counts()
        self._peak_before = self._memory()
        self._began = transfers.lanes.stamp(Lane.COMPUTE)

    def _plan(self) -> Plan:
        program = self._execution.program
        routes = (plan for plan in self._plans if program in (plan.ready.usual.program, plan.ready.whole.program))
        return next(routes)

    def _pause(self) -> None:
        if self._execution.reason:
            self._on_leave(self.running, self._plan())

    def _end(self) -> None:
        execution, running = self._execution, self.running
        plan = self._plan()
        self._plans.remove(plan)
        self._plans.insert(0, plan)
        plan.verified |= isinstance(execution, Verifying) and running.complete
        lanes, began, ended = self._transfers.lanes, self._began, self._transfers.lanes.stamp(Lane.COMPUTE)
        counts = [after - before for after, before in zip(self._counts(), self._before, strict=True)]
        peak = self._peak()
        names = execution.program.instance.tensors
        unexpected = tuple((names[i].name, size) for i, size in execution.holdings.still_held)
        complete, reason, reruns = running.complete, execution.reason, execution.reruns

        def record() -> StepRecord:
            offload_stall, prefetch_stall, offloaded, prefetched = counts
            time = lanes.between(began, ended)
            return StepRecord(
                reason, complete, time, offload_stall, prefetch_stall, peak, offloaded, prefetched, reruns, unexpected
            )

        plan.add(record)
        self._on_end()

    def _counts(self) -> Sequence[int]:
        moved = self._transfers
        return moved.offload_wait, moved.prefetch_wait, moved.offloaded, moved.prefetched

    def _memory(self) -> tuple[int, int]:
        """Return the bytes asked for now and at the highest moment so far, where a device counts them."""
        device = self._execution.program.device
        if device.type != "cuda":
            return 0, 0
        stats = torch.cuda.memory_stats(device)
        return stats["requested_bytes.all.current"], stats["requested_bytes.all.peak"]

    def _peak(self) -> int | None:
        """Return the peak of the step if it was the highest so far; only users reset the allocator's counters."""
        (before, highest), (_, now) = self._peak_before, self._memory()
        return now - before if now > highest else None
