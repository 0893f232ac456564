"""What one step did: rows that a tracer fills and that are only read afterwards."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from slackswap_opt.runtime.modules import NOWHERE, Place
from slackswap_opt.runtime.storage import Record


@dataclass(slots=True)
class Call:
    """One operation of the step.

    Attributes
    ----------
    function, short
        The operator, as in ``aten.mm.default`` and ``mm``.
    place
        The module that ran; in backward, the one whose operation autograd goes back through.
    backward
        Whether autograd's engine ran it.
    graph
        Whether autograd may have recorded it, or it ran outside of the engine: a backward operation without is never rebuilt.
    reads, writes
        Numbers of the step's own storages among its arguments, and of those that it made or changed.
    outside_reads, outside_writes
        Numbers, below 0, of storages that were there before the step, likewise.
    workspace
        Bytes that it had at its peak beyond what was there before and what it made.
    duration
        Nanoseconds.
    random
        Whether it draws random numbers.
    obstacle
        Why it cannot run again, or an empty string.
    custom
        Whether it runs inside a custom autograd Function.
    """

    function: str
    short: str
    place: Place
    backward: bool
    graph: bool
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    outside_reads: tuple[int, ...] = ()
    outside_writes: tuple[int, ...] = ()
    workspace: int = 0
    duration: int = 0
    random: bool = False
    obstacle: str = ""
    custom: bool = False


class Storage(Record):
    """A storage that the step made, or found.

    Attributes
    ----------
    number
        Its position among the step's own storages; below 0 for one from outside.
    shape, dtype
        Of the tensor that its maker returned.
    lives
        Stretches of the clock [birth, death) in which it was alive while everything saved was swapped; a death of None is
        beyond the end of the step.
    packs
        The clock at each time that autograd saved a tensor on it.
    unpacks
        The clock at each time that it asked for one.
    released
        The clock when autograd let the last of them go, or None if it did not before the end of the step.
    late
        Whether it was written after it had been saved.
    parameter_gradient
        Whether it became the gradient of a leaf.
    obstacle
        Why it cannot move, or an empty string.
    borrowed
        Whether its memory is not PyTorch's, as where a NumPy array is taken for a tensor: then writes need not be counted.
        Parameters are taken to be written by optimizers alone.
    """

    __slots__ = (
        "borrowed",
        "dtype",
        "late",
        "lives",
        "number",
        "obstacle",
        "packs",
        "parameter_gradient",
        "released",
        "shape",
        "unpacks",
    )

    def __init__(self, maker: int, output: int, number: int, tensor: torch.Tensor) -> None:
        super().__init__(maker, output, tensor.device)
        self.number = number
        self.shape, self.dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        self.lives: list[tuple[int, int | None]] = []
        self.packs: list[int] = []
        self.unpacks: list[int] = []
        self.released: int | None = 0
        self.late = self.parameter_gradient = False
        self.obstacle = ""
        self.borrowed = False


@dataclass(slots=True)
class Trace:
    """One step as it ran with everything saved swapped out at once.

    Attributes
    ----------
    calls
        Every operation; its position is its index on the clock.
    storages
        Every storage that they made.
    asked
        Each time that autograd asked for a saved tensor, in order: the clock, and the number of its storage, below 0 if that is
        none of the step's own.
    nested
        Whether a backward pass saved tensors, as it does where it can be differentiated itself.
    left
        How many of these outlived the step without being a leaf's gradient, and their bytes.
    restored
        What the step had changed and was put back, in words.
    """

    calls: list[Call] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)
    nested: bool = False
    left: tuple[int, int] = (0, 0)
    restored: tuple[str, ...] = ()

    def difference(self, other: "Trace") -> str:
        """Return the first difference between two steps in one sentence, or an empty string if they are equal."""
        for t, (one, two) in enumerate(zip(self.calls, other.calls, strict=False)):
            for field_name, mine, theirs in _call_facts(one, two):
                if mine != theirs:
                    where = f" in '{one.place.path}'" if one.place != NOWHERE else ""
                    return f"operation {t}{where}: {field_name} {mine} in one step and {theirs} in the next"
        if len(self.calls) != len(other.calls):
            return f"one step has {len(self.calls)} operations and the next {len(other.calls)}"
        for one_s, two_s in zip(self.storages, other.storages, strict=False):
            for field_name, mine, theirs in _storage_facts(one_s, two_s):
                if mine != theirs:
                    made = f"output {one_s.output} of operation {one_s.maker} ({self.calls[one_s.maker].function})"
                    return f"{made} {field_name} {mine} in one step and {theirs} in the next"
        if self.asked != other.asked:
            return "autograd asks for saved tensors in another order in the next step"
        return ""


def _call_facts(one: Call, two: Call) -> Iterator[tuple[str, object, object]]:
    yield "it is", one.function, two.function
    yield "its module is", one.place.path, two.place.path
    yield "it reads storages", one.reads, two.reads
    yield "it writes storages", one.writes, two.writes


def _storage_facts(one: Storage, two: Storage) -> Iterator[tuple[str, object, object]]:
    yield "has bytes", one.size, two.size
    yield "lives through", one.lives, two.lives
    yield "is saved at", one.packs, two.packs
    yield "is asked for at", one.unpacks, two.unpacks
    yield "is let go at", one.released, two.released
