"""From bytes and nanoseconds to the integers of a model, rounded so that it loosens the exact one or so that it tightens it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import gcd

from slackswap_opt.files import LARGEST, InputError, check_integer
from slackswap_opt.instance import Instance

MOST_PRECISION = 256
"""Bits of a rate beyond which nobody can want to know it."""


class Rounding(StrEnum):
    """Which way numbers are rounded.

    OUTER: sizes and the durations of re-runs down, budget, rates and link time up: every exact solution stays feasible and
    costs no more, so that a lower bound stays one. INNER: the other way round, so that what is feasible is so exactly.
    """

    OUTER = "outer"
    INNER = "inner"


@dataclass(frozen=True, slots=True)
class Units:
    """What the model counts in.

    Attributes
    ----------
    size
        Bytes in a unit of size.
    time
        Nanoseconds in a unit of time.
    precision
        Bits of a lane's rate: its relative rounding error is below 2^-precision.
    """

    size: int = 1
    time: int = 1
    precision: int = 20

    def __post_init__(self) -> None:
        for field, most in (("size", LARGEST), ("time", LARGEST), ("precision", MOST_PRECISION)):
            check_integer(getattr(self, field), f"'{field}' of the units", least=1, most=most)

    @classmethod
    def coarse(cls, instance: Instance, bits: int = 16) -> "Units":
        """Return units in which the sizes of an instance add up to less than 2^bits, and so do its durations."""
        size = sum(tensor.size for tensor in instance.tensors) + sum(o.workspace for o in instance.operations)
        return cls(size=(size >> bits) + 1, time=(instance.ideal >> bits) + 1, precision=10)


@dataclass(frozen=True, slots=True)
class Rate:
    """A lane's rate, `numerator / denominator` units of size in a unit of time."""

    numerator: int
    denominator: int


class Scale:
    """Rounds the numbers of one instance."""

    def __init__(self, units: Units, rounding: Rounding) -> None:
        if not isinstance(rounding, Rounding):
            raise InputError(f"unknown rounding {rounding!r}; choose from {', '.join(Rounding)}")
        self.units = units
        self.outer = rounding is Rounding.OUTER

    def size(self, size: int) -> int:
        """Return a size in units: outer down, inner up."""
        return size // self.units.size if self.outer else -(-size // self.units.size)

    def budget(self, budget: int) -> int:
        """Return a budget in units: outer up, inner down."""
        return -(-budget // self.units.size) if self.outer else budget // self.units.size

    def work(self, duration: int) -> int:
        """Return what a re-run of `duration` ns costs: outer down, inner up."""
        return duration // self.units.time if self.outer else -(-duration // self.units.time)

    def capacity(self, rate: Rate, duration: int) -> int:
        """Return `rate.denominator` times the units of size that a lane moves in `duration` ns: outer up, inner down."""
        moved = rate.numerator * duration
        return -(-moved // self.units.time) if self.outer else moved // self.units.time

    def rate(self, copies: Iterable[tuple[int, int]]) -> Rate | None:
        """Return the rate at which the fastest of some copies moves, outer up, inner down, or None if there is no copy.

        Parameters
        ----------
        copies
            Bytes, and nanoseconds that the lane takes for them, its latency included.
        """
        exact = max((Fraction(size, time) for size, time in copies if size), default=None)
        if exact is None:
            return None
        exact *= Fraction(self.units.time, self.units.size)
        if exact.denominator == 1:
            return Rate(exact.numerator, 1)
        shift = max(0, self.units.precision + 1 + exact.denominator.bit_length() - exact.numerator.bit_length())
        scaled = exact * (1 << shift)
        numerator = -(-scaled.numerator // scaled.denominator) if self.outer else scaled.numerator // scaled.denominator
        common = gcd(numerator, 1 << shift)
        return Rate(numerator // common, (1 << shift) // common)

    def shared_rate(self, out: Rate, back: Rate) -> tuple[Rate, int, int]:
        """Return a rate for both directions of one lane, and what a unit of size counts for in each: outer down, inner up."""
        common = gcd(out.numerator, back.numerator)
        both = out.numerator // common * back.numerator
        fastest = max(rate.numerator // rate.denominator for rate in (out, back))
        excess = max(0, both.bit_length() - fastest.bit_length() - self.units.precision - 1)
        both = (both >> excess) + 1 if excess else both
        per_unit = []
        for rate in (out, back):
            exact = both * rate.denominator
            per_unit.append(exact // rate.numerator if self.outer else -(-exact // rate.numerator))
        return Rate(both, 1), per_unit[0], per_unit[1]
