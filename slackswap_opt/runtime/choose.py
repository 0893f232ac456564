"""Steps of several shapes: which program to follow shows in the first operations, before there is anything to do."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from slackswap_opt.runtime.execute import Execution, Route, fits
from slackswap_opt.runtime.hooks import Handle
from slackswap_opt.runtime.program import Program
from slackswap_opt.runtime.replay import storages_in
from slackswap_opt.runtime.saved import Kept
from slackswap_opt.runtime.transfers import Transfers


class Choosing(Execution):  # type: ignore[no-untyped-call]
    """One step under one of several programs.

    That one is followed whose operations, and the sizes of what they make, are those of the step up to the first at which one
    of the programs has anything to do. Of several the first is.

    Parameters
    ----------
    routes
        The programs.
    transfers, watch
        As for `Execution`.
    """

    def __init__(self, routes: Sequence[Route], transfers: Transfers, *, watch: Callable[[int], None] | None = None) -> None:
        super().__init__(routes[0], transfers, watch=watch)
        self._choices = list(routes)
        # No operation is the one expected, so that each comes to `_unexpected` until there is a choice.
        self._functions = (None,) * (1 + max(len(route.program) for route in routes))

    @property
    def at_end(self) -> bool:
        """Whether every operation of the program has run, or nothing that is left has anything to do."""
        if self._choices and any(len(route.program) == self.index for route in self._choices):
            self._keep(lambda program: len(program) == self.index)
            self._decide()
        return super().at_end

    @property
    def rests(self) -> bool:
        """Whether the clock is to stand still in backward passes."""
        self._decide()
        return super().rests

    def unpack(self, saved: Handle | Kept) -> torch.Tensor:
        """Return the saved tensor; what is due comes first."""
        self._decide()
        return super().unpack(saved)

    def _unexpected(self, index: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._keep(lambda program: index < len(program) and program.functions[index] is function)
        if len(self._choices) < 2 or any(route.program.following(0) <= index for route in self._choices):
            if not self._choices:
                return super()._unexpected(index, function, args, kwargs)
            self._decide()
            return self.__torch_dispatch__(function, (), args, kwargs)
        return self._run_undecided(index, function, args, kwargs)

    def _run_undecided(self, index: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation before which nothing is due, and choose by what it makes if there is anything to do after it."""
        duties = [duty for route in self._choices if (duty := route.program.duties[index]) is not None and duty.taped]
        entry = self._recorded(index, duties[0], function, args, kwargs, ()) if duties else None
        self.index = index + 1
        result = function(*args, **kwargs)
        storages = storages_in(result)
        self._keep(lambda program: fits(program.results[index], storages))
        if any(route.program.first <= index for route in self._choices):
            self._decide()
            duty = self._duties[index]
            if duty is not None and self.on:
                entry = entry if duty.taped else None
                self._births(index, duty, entry, storages)
                if entry is not None and self.on:
                    self._entries[index] = entry
        return result

    def _keep(self, suits: Callable[[Program], bool]) -> None:
        """Keep the programs that suit; where none does, the first, which is then left."""
        self._choices = [route for route in self._choices if suits(route.program)] or self._choices[:1]

    def _decide(self) -> None:
        if self._choices:
            self._follow(self._choices[0])
            self._choices = []
