"""One traced step, and steps until two in a row are equal."""

import gc
import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from slackswap_opt.files import InputError
from slackswap_opt.runtime.clock import Border
from slackswap_opt.runtime.copies import Copies
from slackswap_opt.runtime.guard import same_random_numbers
from slackswap_opt.runtime.modules import Modules
from slackswap_opt.runtime.trace import Trace
from slackswap_opt.runtime.tracer import Guard, Measure, Tracer

ATTEMPTS = 4
"""How many steps are run at most until two in a row are equal."""


class ProfileError(InputError):
    """A step that cannot be profiled: its message names what was found and what would be right."""


class Pass:
    """One traced step.

    Parameters
    ----------
    measure, guard, copies
        As for `Tracer`.
    """

    def __init__(self, measure: Measure, guard: Guard, copies: Copies) -> None:
        self._modules = Modules()
        self.tracer = Tracer(measure, guard, self._modules, copies)
        self._border = Border(self.tracer, self.tracer.pack, self.tracer.unpack)
        self._collect: Callable[[], object] = _nothing

    def begin(self) -> None:
        """Begin the step."""
        # Cycles would die at moments that the collector chooses: they go before the step, or stay through it.
        gc.collect()
        if gc.isenabled():
            gc.disable()
            self._collect = weakref.finalize(self, gc.enable)
        self._border.open()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Return a context in which what runs is traced."""
        with self._modules.followed(), self._border.active():
            yield

    def end(self) -> Trace:
        """End the step and return what it did."""
        self._border.close()
        self._collect()
        return self.tracer.end()


def _nothing() -> None:
    pass


def run_once(step: Callable[[], Any], measure: Measure, guard: Guard, copies: Copies) -> Trace:
    """Run `step`, traced, from and to the same random numbers.

    Raises
    ------
    ProfileError
        If it runs no backward pass.
    """
    traced = Pass(measure, guard, copies)
    traced.begin()
    try:
        with same_random_numbers(), traced.active():
            result = step()
    finally:
        trace = traced.end()
    returned = "; it returned a function: should that be the step?" if inspect.isroutine(result) else ""
    del result
    trace.left = traced.tracer.left()
    if not any(call.backward for call in trace.calls):
        raise ProfileError(
            "the step ran no backward pass; it should do forward and backward, as model(batch).loss.backward() does" + returned
        )
    return trace


def until_equal(run: Callable[[Trace | None], Trace]) -> tuple[Trace, int]:
    """Call `run`, with what it returned last, until two results in a row are equal; return the last, and how many there were.

    Raises
    ------
    ProfileError
        If `ATTEMPTS` are not enough: the message names the first difference of the last two.
    """
    previous, difference = run(None), ""
    for attempt in range(2, ATTEMPTS + 1):
        trace = run(previous)
        if not (difference := previous.difference(trace)):
            return trace, attempt
        previous = trace
    raise ProfileError(f"the step differs from run to run: {difference}; profile a step that does the same on every run")
