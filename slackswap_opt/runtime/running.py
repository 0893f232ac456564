"""A step under way: from where its scope is entered to the end of its backward pass, wherever that runs."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.utils._python_dispatch import _get_current_dispatch_mode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from slackswap_opt.runtime.clock import BackwardCall, Border
from slackswap_opt.runtime.execute import Execution
from slackswap_opt.runtime.live import is_out_of_memory


class Running(Border):
    """The border of a step under a program.

    Parameters
    ----------
    execution
        The step.
    on_pause
        Called after the scope and after each backward pass, if they raised nothing.
    on_end
        Called once, when the step has ended.

    Attributes
    ----------
    failed
        Whether the step raised an exception.
    complete
        Whether all operations of the program have run; known once the step has ended.
    ended
        Whether it has.
    """

    def __init__(
        self,
        execution: Execution,
        *,
        on_pause: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(execution, execution.pack, execution.unpack)
        self.execution = execution
        self.failed = self.complete = self.ended = False
        self._on_pause, self._on_end = on_pause, on_end
        self._depth = 0
        self._in_backward = False

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Return a context for the forward pass of the step, or all of it."""
        self.open()
        self.execution.holdings.below = _get_current_dispatch_mode_stack()
        with self._inside("in the step"), self.active():
            yield

    @contextmanager
    def backward(self, call: BackwardCall) -> Iterator[None]:
        """Return a context for one backward pass."""
        if self._in_backward:
            yield
            return
        self._in_backward = True
        try:
            with self._inside("in a backward pass"):
                if self.execution.rests:
                    self.execution.begin_backward()
                    with self._resting():
                        yield
                    self.execution.end_backward()
                else:
                    with self.execution.backward(call), self.active():
                        yield
        finally:
            self._in_backward = False

    def end(self) -> None:
        """End the step: nothing is due any more, and nothing that is not asked for stays."""
        if not self.ended:
            self.ended, self.complete = True, self.execution.at_end
            self.close()
            self.execution.close()
            self._on_end()

    @contextmanager
    def _inside(self, where: str) -> Iterator[None]:
        """Return a context in which nothing dies by the collector, and after which what can end does."""
        execution, collects, completed = self.execution, gc.isenabled(), False
        gc.disable()
        self._depth += 1
        execution.ledger.on_empty = None
        try:
            yield
            completed = True
        except RuntimeError as error:
            if is_out_of_memory(error) and not self.failed:
                error.add_note(f"The step ran out of memory {execution.position()}.")
            raise
        finally:
            self._depth -= 1
            if collects:
                gc.enable()
            if not completed:
                self.failed = True
                execution.leave(f"an exception {where}")
            if not completed or execution.at_end:
                self.end()
            elif not self._depth:
                execution.ledger.on_empty = self.end
        if not self._depth:
            self._on_pause()

    @contextmanager
    def _resting(self) -> Iterator[None]:
        """Return a context in which the clock does not run though it may have been started."""
        on_top = _get_current_dispatch_mode() is self.execution
        if on_top:
            _pop_mode()
        else:
            self.execution._paused += 1
        try:
            yield
        finally:
            if on_top:
                _push_mode(self.execution)
            else:
                self.execution._paused -= 1
