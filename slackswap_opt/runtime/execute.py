"""Carries out a program while its step runs: a clock that knows what is due, and hooks that know where saved tensors are.

What is due at a place is done at the first thing that happens there: the first time that autograd asks for a saved tensor
before the next operation, or else when that operation is about to run. By then everything is gone that the operation before let
go.

Results never rest on the program. What is asked for is brought back from where it is, and what would be lost is kept: where a
step does not do what its profile did, the program is left, and the step goes on with what it has.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from slackswap_opt.runtime.clock import BackwardCall, Clock
from slackswap_opt.runtime.holdings import Holdings
from slackswap_opt.runtime.hooks import Handle, Ledger
from slackswap_opt.runtime.live import unknown
from slackswap_opt.runtime.program import Backward, Birth, Duty, Order, Program
from slackswap_opt.runtime.replay import generator_state, quiet, storages_in, unseen
from slackswap_opt.runtime.saved import Kept, kept, unkept
from slackswap_opt.runtime.storage import is_plain
from slackswap_opt.runtime.tape import Activation, Entry, UnservedArgumentError, record_call
from slackswap_opt.runtime.transfers import Slot, Transfers
from slackswap_opt.schedule import Action


class Route(NamedTuple):
    """A program, and where the copy of each of its offloads goes, by the offload's position in the program's schedule."""

    program: Program
    slots: Mapping[int, Slot]


class Execution(Clock):  # type: ignore[no-untyped-call]
    """One step under a program.

    Parameters
    ----------
    route
        What is to be done.
    transfers
        Does the copies.
    watch
        Called with the position in the program's schedule of each instruction that has been carried out.

    Attributes
    ----------
    program
        The one that is followed.
    on
        Whether the step still does what the program expects.
    reason
        Why not, or an empty string.
    ledger
        Counts what saved tensors stand for.
    holdings
        What is held.
    reruns
        How many operations have run again.
    """

    def __init__(
        self,
        route: Route,
        transfers: Transfers,
        *,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        self.on = True
        self.reason = ""
        self.reruns = 0
        self.ledger = Ledger()
        self.holdings = Holdings(route.program.device, transfers, self.leave)
        self._watch = watch
        self._follow(route)
        self._pass: Backward | None = None
        self._asked = 0
        self._records: dict[int, Activation] = {}
        self._entries: dict[int, Entry] = {}
        self._methods: dict[Action, Callable[[Order], None]] = {
            Action.RUN: self._run,
            Action.OFFLOAD: self._offload,
            Action.EVICT: self._evict,
            Action.PREFETCH: self._prefetch,
            Action.DROP: self._drop,
        }

    def _follow(self, route: Route) -> None:
        self.program, self._slots = route
        self._functions: Sequence[Any] = (*self.program.functions, None)
        self._duties = self.program.duties
        self._next = self.program.following(0)

    @property
    def at_end(self) -> bool:
        """Whether every operation of the program has run."""
        return self.on and self.index == len(self.program)

    @property
    def rests(self) -> bool:
        """Whether the clock is to stand still in backward passes."""
        return self.on and bool(self.program.passes)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch wraps `__torch_dispatch__` in two more calls an operation.
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._paused:
            return function(*args, **(kwargs or {}))
        index = self.index
        if not self.on or self._functions[index] is not function:
            return self._unforeseen(index, function, args, kwargs or {})
        if index >= self._next:
            self.carry_out(index)
        self.index = index + 1
        duty = self._duties[index]
        if duty is None:
            return function(*args, **kwargs) if kwargs else function(*args)
        return self._perform(index, duty, function, args, kwargs or {})

    def _unforeseen(self, index: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run what is not the operation that comes next in the program."""
        if function.namespace == "prim":
            return function(*args, **kwargs)
        if self.on:
            return self._unexpected(index, function, args, kwargs)
        self.index = index + 1
        return self._beside(function, args, kwargs)

    def pack(self, tensor: torch.Tensor) -> Any:
        """Return what stands for a tensor that autograd saves."""
        if is_plain(tensor):
            record = self.holdings.find(tensor.untyped_storage())
            if record is not None:
                return Handle(record, tensor, self.ledger)
            with unseen():
                return kept(tensor)
        self._paused += 1
        try:
            return kept(tensor)
        finally:
            self._paused -= 1

    def unpack(self, saved: Handle | Kept) -> torch.Tensor:
        """Return the saved tensor; what is due comes first."""
        if self.on:
            if self._pass is not None:
                self._count(self._pass, saved)
            if self.index >= self._next:
                self.carry_out(self.index)
        if isinstance(saved, tuple):
            return unkept(saved)
        self._paused += 1
        try:
            saved.check()
            return saved.on(self.holdings.obtain(saved.record))
        finally:
            self._paused -= 1

    def backward(self, call: BackwardCall) -> AbstractContextManager[None]:
        """Return a context for a backward pass that the clock follows."""
        return nullcontext()

    def begin_backward(self) -> None:
        """Let the clock stand still: from now on it counts what autograd asks for."""
        found = [backward for backward in self.program.passes if backward.start <= self.index < backward.end]
        if not found:
            self.leave(f"a backward pass begins before operation {self.index}")
            return
        self._pass = found[0]
        if self.index == self._pass.start:
            self._asked = 0
        if self.index >= self._next:
            self.carry_out(self.index)

    def end_backward(self) -> None:
        """Let the clock run again, from the end of the pass if all of it has been seen."""
        if self.on and self._pass is not None and self._asked == len(self._pass.asked):
            self.index = self._pass.end
        self._pass = None

    def _count(self, backward: Backward, saved: Handle | Kept) -> None:
        """Set the clock by what autograd asks for."""
        number = saved.record.number if isinstance(saved, Handle) else -1
        clock, expected = backward.asked[self._asked] if self._asked < len(backward.asked) else (-1, -1)
        if clock < 0 or number != expected:
            self.leave(f"autograd asks for another saved tensor than in the profile, before operation {self.index}")
        else:
            self._asked += 1
            self.index = clock

    def _unexpected(self, index: int, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that is not the one that the program expects."""
        self.leave(f"operation {index} is {function}, not {self.program.name_of(index)}")
        self.index = index + 1
        return self._beside(function, args, kwargs)

    def carry_out(self, place: int) -> None:
        """Carry out what is due up to `place`."""
        self._paused += 1
        done, due = False, place
        try:
            with quiet(self.holdings.below):
                while self.on and self._next <= place:
                    due = self._next
                    self._next = self.program.following(due + 1)
                    self._carry_out(self.program.places[due])
            done = True
        finally:
            self._paused -= 1
            if not done:
                self.leave(f"what was due before operation {due} ({self.program.name_of(due)}) failed")

    def _carry_out(self, orders: tuple[Order, ...]) -> None:
        for order in orders:
            self._methods[order.action](order)
            if not self.on:
                return
            if self._watch is not None:
                self._watch(order.number)

    def leave(self, reason: str) -> None:
        """Stop following the program: what is needed stays where it is, for as long as something can ask for it."""
        if self.on:
            self.on, self.reason = False, reason
            self._forget()

    def position(self) -> str:
        """Return what the step was doing, how many bytes the judge has held then, and what was held besides, in words."""
        program, held = self.program, self.holdings.still_held
        index = min(max(self.index - 1, 0), len(program) - 1)
        number = next(n for n, pair in enumerate(program.schedule.instructions) if pair == (Action.RUN, index))
        planned = (
            f"at operation {index} ({program.name_of(index)}), for which the plan has {program.timeline.memory[number]} bytes"
        )
        names = [f"'{program.instance.tensors[i].name}' ({size} bytes)" for i, size in held if self._lingers(i)]
        besides = (
            f"freed by the plan, but still held by something: {', '.join(names)}" if names else "nothing that it freed is held"
        )
        pool = {slot.contents.untyped_storage()._cdata for slot in self._slots.values()}
        others = unknown(program, index, pool | self.holdings.addresses())
        return f"{planned}; {besides}; {others}{'' if self.on else f'; the step had left its plan: {self.reason}'}"

    def _lingers(self, tensor: int) -> bool:
        record = self._records.get(tensor)
        return record is None or (record.held is None and record.storage is not None)

    def close(self) -> None:
        """End the step."""
        self.on = False
        self._forget()
        self.ledger.on_empty = None
        self.holdings.keep_apart()

    def _forget(self) -> None:
        self.holdings.settle()
        self._records.clear()
        self._entries.clear()

    def _perform(self, index: int, duty: Duty, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that makes, changes or may change what the runtime holds, or that is to run again."""
        changed = self._about_to_change(function, args, kwargs)
        if changed is not None and sorted(record.number for record in changed) != sorted(duty.writes):
            self.leave(f"operation {index} ({function}) writes other tensors than in the profile")
        entry = self._recorded(index, duty, function, args, kwargs, tuple(changed or ())) if duty.taped and self.on else None
        result = function(*args, **kwargs)
        for record in changed or ():
            record.written(entry)
        if duty.births and self.on:
            self._births(index, duty, entry, storages_in(result))
        if entry is not None and self.on:
            self._entries[index] = entry
        return result

    def _beside(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation outside of the program."""
        changed = self._about_to_change(function, args, kwargs)
        result = function(*args, **kwargs)
        for record in changed or ():
            record.written(None)
        return result

    def _about_to_change(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Activation] | None:
        self._paused += 1
        try:
            return self.holdings.about_to_change(function, args, kwargs)
        finally:
            self._paused -= 1

    def _recorded(
        self,
        index: int,
        duty: Duty,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        targets: tuple[Activation, ...],
    ) -> Entry | None:
        entry = Entry(index, function, args, kwargs)
        try:
            record_call(entry, self.holdings.find, targets)
        except UnservedArgumentError as error:
            self.leave(f"operation {index} ({function}) cannot be recorded: {error}")
            return None
        if {record.number for record in (*entry.parents, *targets)} != duty.reads:
            self.leave(f"operation {index} ({function}) reads other tensors than in the profile")
            return None
        self.holdings.depend(entry)
        if duty.random:
            entry.generator = generator_state(self.program.device)
        return entry

    def _births(self, index: int, duty: Duty, entry: Entry | None, storages: list[torch.UntypedStorage]) -> None:
        """Take hold of what an operation has made."""
        if not fits(duty.births, storages):
            self.leave(f"operation {index} makes storages of other sizes than {self.program.name_of(index)} in the profile")
            return
        for output, number, _ in duty.births:
            if self.holdings.find(storages[output]) is not None:
                self.leave(f"operation {index} returns what was there before")
                return
            self._records[number] = self.holdings.take(number, index, output, storages[output], entry)

    def _run(self, order: Order) -> None:
        entry = self._entries.get(order.target)
        if entry is None or not self.holdings.run(entry):
            self.leave(f"operation {order.target} cannot run again: something that it reads is not there, or was changed")
        self.reruns += self.on

    def _offload(self, order: Order) -> None:
        record = self._resident(order)
        if record is not None:
            self.holdings.offload(record, self._slots[order.number])

    def _evict(self, order: Order) -> None:
        record = self._resident(order)
        if record is not None and not self.holdings.evict(record):
            self.leave(f"tensor {record.number} is still needed where it should leave")

    def _prefetch(self, order: Order) -> None:
        record = self._records.get(order.target)
        if record is None or not self.holdings.prefetch(record, last=order.last):
            self.leave(f"tensor {order.target} has no copy on the host")

    def _drop(self, order: Order) -> None:
        record = self._resident(order)
        if record is not None and not self.holdings.free(record):
            self.leave(f"tensor {record.number} is still needed where it should be dropped")

    def _resident(self, order: Order) -> Activation | None:
        record = self._records.get(order.target)
        if record is None or record.held is None:
            self.leave(f"tensor {order.target} is not there to {order.action}")
            return None
        return record


def fits(births: tuple[Birth, ...], storages: list[torch.UntypedStorage]) -> bool:
    """Return whether the storages that an operation has made are of the sizes that they should be."""
    return all(output < len(storages) and storages[output].nbytes() == size for output, _, size in births)
