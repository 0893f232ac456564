"""Rounding goes the way that it says, and no further than it says."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt.files import InputError
from slackswap_opt.formulations.rounding import Rate, Rounding, Scale, Units
from slackswap_opt.instances import load

numbers = st.integers(0, 10**15)
units = st.builds(Units, st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 30))
copies = st.lists(st.tuples(st.integers(1, 10**12), st.integers(1, 10**12)), min_size=1, max_size=5)


@given(units, numbers)
def test_outer_loosens_and_inner_tightens(unit: Units, number: int) -> None:
    outer, inner = (Scale(unit, rounding) for rounding in Rounding)
    assert outer.size(number) <= Fraction(number, unit.size) <= inner.size(number)
    assert inner.budget(number) <= Fraction(number, unit.size) <= outer.budget(number)
    assert outer.work(number) <= Fraction(number, unit.time) <= inner.work(number)
    assert inner.size(number) - outer.size(number) <= 1
    moved = Fraction(7 * number, unit.time)
    assert inner.capacity(Rate(7, 3), number) <= moved <= outer.capacity(Rate(7, 3), number)


def exact(rate: Rate) -> Fraction:
    return Fraction(rate.numerator, rate.denominator)


@given(units, copies)
def test_a_rate_is_that_of_the_fastest_copy(unit: Units, copies: list[tuple[int, int]]) -> None:
    fastest = max(Fraction(size, time) for size, time in copies) * Fraction(unit.time, unit.size)
    outer, inner = (Scale(unit, rounding).rate(copies) for rounding in Rounding)
    assert outer is not None
    assert inner is not None
    assert exact(inner) <= fastest <= exact(outer)
    assert exact(outer) - exact(inner) <= fastest / (1 << unit.precision)


@given(units, copies, copies)
def test_a_shared_rate_counts_each_direction_at_its_own(
    unit: Units, there: list[tuple[int, int]], back: list[tuple[int, int]]
) -> None:
    for rounding in Rounding:
        scale = Scale(unit, rounding)
        rates = scale.rate(there), scale.rate(back)
        assert rates[0] is not None
        assert rates[1] is not None
        both, *per_unit = scale.shared_rate(rates[0], rates[1])
        for rate, weight in zip(rates, per_unit, strict=True):
            assert rate is not None
            time = 1 / exact(rate)
            assert abs(Fraction(weight, both.numerator) - time) <= time / (1 << (unit.precision - 1))
            assert (
                (Fraction(weight, both.numerator) <= time)
                if rounding is Rounding.OUTER
                else Fraction(weight, both.numerator) >= time
            )


def test_whole_rates_stay_as_they_are() -> None:
    # 25 GB/s are 25 bytes a nanosecond.
    assert Scale(Units(), Rounding.OUTER).rate([(25, 1), (7, 1)]) == Rate(25, 1)
    assert Scale(Units(), Rounding.OUTER).rate([]) is None
    assert Scale(Units(), Rounding.OUTER).rate([(0, 4)]) is None


def test_coarse_units_keep_sums_short() -> None:
    instance = load("bert-large")
    unit = Units.coarse(instance, bits=16)
    assert sum(tensor.size for tensor in instance.tensors) // unit.size < 2**16
    assert instance.ideal // unit.time < 2**16


@pytest.mark.parametrize("field", ["size", "time", "precision"])
def test_units_below_one_are_refused(field: str) -> None:
    with pytest.raises(InputError, match=f"'{field}' of the units must be an integer from 1"):
        Units(**{field: 0})


def test_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(InputError, match="unknown rounding 'nearest'; choose from outer, inner"):
        Scale(Units(), "nearest")  # type: ignore[arg-type]
