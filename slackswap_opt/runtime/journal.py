"""A step that writes down when everything began and ended."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slackswap_opt.files import write_text
from slackswap_opt.report.traces import chrome_trace
from slackswap_opt.runtime.choose import Choosing
from slackswap_opt.runtime.execute import Route
from slackswap_opt.runtime.program import Order
from slackswap_opt.runtime.transfers import Lane, Transfers
from slackswap_opt.schedule import Action
from slackswap_opt.timeline import Timeline

_COPIES = {Action.OFFLOAD: Lane.OUT, Action.PREFETCH: Lane.BACK}


class Journal(Choosing):  # type: ignore[no-untyped-call]
    """A step under a program with the clock that runs throughout, and what is needed to say when each instruction ran."""

    def __init__(self, routes: Sequence[Route], transfers: Transfers, **options: Any) -> None:
        super().__init__(routes, transfers, **options)
        self._stamps = transfers.lanes
        self._began = self._stamps.stamp(Lane.COMPUTE)
        self._runs: dict[int, tuple[Any, Any]] = {}
        self._orders: dict[int, tuple[Any, Any]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        index = self.index
        if self._paused or not self.on or self._functions[index] is not function:
            return super().__torch_dispatch__(function, types, args, kwargs)
        if index >= self._next:
            self.carry_out(index)
        start = self._stamps.stamp(Lane.COMPUTE)
        result = super().__torch_dispatch__(function, types, args, kwargs)
        self._runs[index] = start, self._stamps.stamp(Lane.COMPUTE)
        return result

    def timeline(self) -> Timeline:
        """Return the judge's timeline with the times at which things really happened; waits for the device.

        What happens by itself, and what never ran, such as what is due after the last operation, stands where compute was then.
        """
        program, start, end, place = self.program, list[int](), list[int](), 0
        now = 0
        for n, (action, target) in enumerate(program.schedule.instructions):
            if action is Action.RUN and target == place:
                stamps = self._runs.get(place)
                place += 1
            else:
                stamps = self._orders.get(n)
            first, last = (self._stamps.between(self._began, stamp) for stamp in stamps) if stamps else (now, now)
            start.append(first)
            end.append(last)
            if action not in _COPIES:
                now = max(now, last)
        return replace(program.timeline, start=tuple(start), end=tuple(end), makespan=max(end, default=0))

    def write(self, path: Path) -> None:
        """Write the timeline for trace viewers, over what is there."""
        text = chrome_trace(self.program.instance, self.program.schedule, self.timeline())
        write_text(path, text, overwrite=True)

    def _carry_out(self, orders: tuple[Order, ...]) -> None:
        for order in orders:
            lane = _COPIES.get(order.action, Lane.COMPUTE)
            start = self._stamps.stamp(lane)
            super()._carry_out((order,))
            if not self.on:
                return
            self._orders[order.number] = start, self._stamps.stamp(lane)
