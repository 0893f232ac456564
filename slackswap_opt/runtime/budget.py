"""The door: train a model, unmodified, within a budget of memory."""

import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from slackswap_opt.files import InputError, check_type, shown
from slackswap_opt.instance import Link
from slackswap_opt.runtime.allowance import allowance, usage
from slackswap_opt.runtime.choose import Choosing
from slackswap_opt.runtime.execute import Execution
from slackswap_opt.runtime.journal import Journal
from slackswap_opt.runtime.lanes import Immediate
from slackswap_opt.runtime.learn import Learner
from slackswap_opt.runtime.links import measure_link
from slackswap_opt.runtime.planned import Method, Wishes, ready
from slackswap_opt.runtime.profile import Profile
from slackswap_opt.runtime.replay import exchange_modes
from slackswap_opt.runtime.report import Report
from slackswap_opt.runtime.running import Running
from slackswap_opt.runtime.steps import Plan, PlannedStep
from slackswap_opt.runtime.streams import Streams
from slackswap_opt.runtime.transfers import Lanes, Transfers
from slackswap_opt.runtime.verify import Verifying
from slackswap_opt.schedule import Schedule
from slackswap_opt.solve import check_options
from slackswap_opt.units import parse_budget, parse_size

PLANS = 8
"""How many plans are remembered."""

log = logging.getLogger(__name__)


class PlanLeftWarning(UserWarning):
    """A step did something else than it was planned for: its results are those of plain training, its memory is not bounded."""


class PlanLeftError(RuntimeError):
    """A step left its plan, and `on_leave` is ``"raise"``; what the step has computed is right."""


class MemoryBudget:
    """Trains a model within a budget of device memory, with the results of plain training, bit for bit.

    The first steps are profiled, with everything that autograd saves swapped out, so that they fit wherever a plan does. Once
    two of them were alike, a plan is made, and later steps follow it. A step that does something else leaves its plan and goes
    on without one; another kind of step that comes twice gets a plan of its own.

    Parameters
    ----------
    budget
        What the step itself may allocate on the device: a size such as ``"12GiB"``, a share of what it takes without a plan,
        such as ``"50%"``, or bytes.
    device
        Instead, the memory of the whole device that may be used, such as ``"24GiB"`` or bytes: what is there before the step
        and what the allocator rounds up are subtracted.
    schedule
        A schedule that was planned elsewhere, for a profile of this step; may stand alone. Steps of another kind are planned
        for here if there is a budget too, with a warning in the log, and are an error otherwise.
    method
        Plans: the name of a method of `slackswap_opt.solve`, or a function from an instance to a schedule.
    time_limit
        Seconds that a method which runs a solver may take for the plans of one kind of step.
    link
        The link to the host; by default it is measured, and on the CPU assumed.
    exclude
        Modules whose tensors stay where they are, as names or patterns such as ``"layers.0"`` or ``"*.norm"``; for plans made
        here, not beside a schedule.
    smallest
        Tensors below this size, in bytes or such as ``"64KiB"``, stay where they are; likewise.
    host_budget
        What copies may use of the host's memory at most, in bytes or such as ``"32GiB"``; never more than nine tenths of what
        is free.
    clock
        ``"forward"`` to count operations in forward only, at less than half of the host's time that ``"whole"`` takes, which
        counts them in backward too.
    verify
        Whether the first step under each plan is also carried out with everything swapped: its backward pass is run ahead on
        copies of all that was saved, and every saved tensor and gradient of the real pass is compared with it, bit by bit.
        Nothing of the pass ahead remains. `Verifying` says which passes are not run ahead, and what it takes.
    on_leave
        ``"warn"`` once for a plan that a step leaves, or ``"raise"`` at the end of the step's scope or backward pass.
    lanes
        How copies are made and waited for; by default streams on a CUDA device, and on the CPU copies that are done at once.

    Raises
    ------
    InputError
        If an argument is not as described. From `step`: if the step cannot be profiled, or no plan fits.
    VerificationError
        From a step with `verify`: if some bits differ.
    ChangedArgumentError
        From a backward pass: if what has to run again reads a parameter that was written since forward.

    Examples
    --------
    >>> budget = MemoryBudget("12GiB")  # doctest: +SKIP
    >>> for batch in loader:
    ...     with budget.step():
    ...         loss = model(batch).loss
    ...         loss.backward()
    ...     optimizer.step()
    >>> print(budget.report())
    """

    def __init__(
        self,
        budget: int | str | None = None,
        *,
        device: int | str | None = None,
        schedule: Schedule | None = None,
        method: Method = "greedy",
        time_limit: float = 20.0,
        link: Link | None = None,
        exclude: Iterable[str] = (),
        smallest: int | str = 0,
        host_budget: int | str | None = None,
        clock: Literal["forward", "whole"] = "forward",
        verify: bool = False,
        on_leave: Literal["warn", "raise"] = "warn",
        lanes: Lanes | None = None,
    ) -> None:
        if (budget is None) == (device is None) and (schedule is None or device is not None):
            raise InputError("give either a budget such as '12GiB' or '50%', or the memory of the device as device='24GiB'")
        if isinstance(budget, str):
            parse_budget(budget, 1)
        elif budget is not None:
            _bytes(budget, "budget")
        _check_method(method, time_limit)
        check_type(schedule, (Schedule, type(None)), "schedule", "a Schedule, or None")
        check_type(link, (Link, type(None)), "link", "a Link, or None")
        check_type(verify, bool, "verify", "true or false")
        if isinstance(exclude, str) or not isinstance(exclude, Iterable):
            raise InputError(f"exclude must be a sequence of names of modules, got {shown(exclude)}")
        if schedule is not None and (exclude or smallest):
            raise InputError("exclude and smallest are for plans made here: a schedule says itself what stays")
        for name, value, choices in (("clock", clock, ("forward", "whole")), ("on_leave", on_leave, ("warn", "raise"))):
            if value not in choices:
                raise InputError(f"{name} must be '{choices[0]}' or '{choices[1]}', got {shown(value)}")
        self._wishes = Wishes(
            budget=budget,
            schedule=schedule,
            method=method,
            time_limit=time_limit,
            link=link,
            exclude=tuple(exclude),
            smallest=_bytes(smallest, "smallest"),
            whole_clock=clock == "whole",
            host_budget=None if host_budget is None else _bytes(host_budget, "host_budget"),
        )
        self._memory = None if device is None else _bytes(device, "device")
        self._verify, self._on_leave, self._lanes = verify, on_leave, lanes
        self._transfers: Transfers | None = None
        self._learner = Learner()
        self._plans: list[Plan] = []
        self._current: PlannedStep | None = None
        self._inside = False
        self._allowance = ""
        self._warned: set[int] = set()
        self._record: Path | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context for the forward pass of a step; backward may run inside of it or after it, wherever that is.

        Raises
        ------
        InputError
            If it is inside of another step, or when the first plan is due, if no plan fits.
        PlanLeftError
            If the step leaves its plan and that is asked to be an error.
        """
        if self._inside:
            raise InputError("a step of this MemoryBudget is inside of another one; leave its scope first")
        self._inside = True
        modes, gradients = _get_current_dispatch_mode_stack(), torch.is_grad_enabled()
        try:
            self._end_last()
            if not self._plans or self._learner.wants_another or self._would_leave():
                with self._learner.step():
                    yield
            else:
                self._current = self._planned_step()
                with self._current.running.scope():
                    yield
        except KeyboardInterrupt:
            # It may have come while something was being put back.
            exchange_modes(modes)
            torch.set_grad_enabled(gradients)
            raise
        finally:
            self._inside = False

    def report(self) -> Report:
        """Return what happened so far, beside what was predicted; the last step counts if its backward pass is over."""
        return Report(self._allowance, self._learner.steps, tuple(plan.report() for plan in self._plans))

    def record(self, path: str | os.PathLike[str]) -> None:
        """Write what happens in the next planned step to a file for chrome://tracing or Perfetto.

        That step runs with the clock that runs throughout, and the device is waited for at its end.
        """
        self._record = Path(path)

    def close(self) -> None:
        """End the last step, and catch no more backward passes."""
        self._learner.discard()
        if self._current is not None:
            self._current.running.end()

    def _end_last(self) -> None:
        """End the step before, and plan if it was the second of its kind to be profiled."""
        if self._current is not None:
            self._current.running.end()
            self._current = None
        known = frozenset(plan.ready.profile.instance.fingerprint for plan in self._plans)
        lesson = self._learner.learned(known)
        if lesson is not None:
            found = ready(lesson.profile, self._wishes_for(lesson.profile))
            self._plans.insert(0, Plan(found, lesson.had_gradients))
            del self._plans[PLANS:]

    def _would_leave(self) -> bool:
        """Return whether the step is of a kind without a plan: with or without gradients, where backward is followed too."""
        seen = self._learner.sees_gradients()
        blind = any(plan.had_gradients in (None, seen) or plan.ready.usual.program.passes for plan in self._plans)
        return seen is not None and not blind and self._learner.patient

    def _wishes_for(self, profile: Profile) -> Wishes:
        device, wishes = torch.device(profile.device), self._wishes
        if self._memory is not None:
            if device.type != "cuda":
                raise InputError("device= is for accelerators; on the CPU give what the step itself may use, such as '2GiB'")
            allowed = allowance(self._memory, usage(device))
            self._allowance = allowed.words
            log.info(allowed.words)
            wishes = replace(wishes, budget=allowed.size)
        if wishes.link is None and device.type == "cuda":
            wishes = self._wishes = replace(self._wishes, link=measure_link(device).link())
        return wishes

    def _planned_step(self) -> PlannedStep:
        seen = self._learner.sees_gradients()
        plans = sorted(self._plans, key=lambda plan: plan.had_gradients is not None and plan.had_gradients != seen)
        device = plans[0].ready.whole.program.device
        if self._transfers is None:
            self._transfers = Transfers(self._lanes or (Streams(device) if device.type == "cuda" else Immediate()))
        whole = [plan.ready.whole for plan in plans]
        if self._record is not None:
            path, self._record = self._record, None
            journal = Journal(whole, self._transfers)
            return PlannedStep(self._plans, journal, self._transfers, self._say, lambda: journal.write(path))
        if self._verify and not all(plan.verified for plan in plans) and plans[0].had_gradients in (None, seen):
            execution: Execution = Verifying(whole, self._transfers)
        elif len(plans) > 1:
            execution = Choosing([plan.ready.usual for plan in plans], self._transfers)
        else:
            execution = Execution(plans[0].ready.usual, self._transfers)
        return PlannedStep(self._plans, execution, self._transfers, self._say)

    def _say(self, running: Running, plan: Plan) -> None:
        """Tell that a step has left its plan."""
        if running.failed:
            return
        self._learner.wonder()
        said = f"a step left its plan for '{plan.ready.profile.instance.name}': {running.execution.reason}"
        log.info(said)
        if self._on_leave == "raise":
            raise PlanLeftError(f"{said}; what it computed is right, but its memory is not bounded")
        if id(plan) not in self._warned:
            self._warned.add(id(plan))
            words = f"{said}; its results are those of plain training, but its memory is not bounded"
            warnings.warn(words, PlanLeftWarning, stacklevel=2)


def _check_method(method: Method, time_limit: float) -> None:
    if isinstance(method, str):
        check_options([method], time_limit=time_limit)
    elif not callable(method):
        raise InputError(f"method must be the name of one, or a function from an instance to a schedule, got {shown(method)}")


def _bytes(size: int | str, what: str) -> int:
    if isinstance(size, str):
        return parse_size(size, what)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise InputError(f"{what} must be bytes, 0 or more, or a size such as '64KiB', got {shown(size)}")
    return size
