"""Quantities: what is read is exact, what is printed is close, and what cannot be read is refused with a reason."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt.files import LARGEST, InputError, shown
from slackswap_opt.units import (
    format_bandwidth,
    format_percent,
    format_size,
    format_time,
    parse_bandwidth,
    parse_budget,
    parse_size,
)

FACTORS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
decimals = st.decimals(min_value=0, max_value=9999, places=6).map(lambda number: f"{number:f}")


@given(decimals, st.sampled_from(sorted(FACTORS)), st.sampled_from(["", " ", "  "]))
def test_a_size_is_the_exact_product_rounded_down(number: str, unit: str, space: str) -> None:
    exact = Fraction(number) * FACTORS[unit]
    assert parse_size(f"{number}{space}{unit}") == exact.__floor__()


@given(st.integers(0, LARGEST))
def test_bytes_are_read_back_as_they_are(size: int) -> None:
    assert parse_size(f"{size}B") == parse_budget(f"{size}B", 0) == size
    assert parse_bandwidth(f"{max(size, 1)}B/s") == max(size, 1)


@given(st.integers(1, 10**6), st.integers(0, LARGEST // 10**5))
def test_a_percentage_of_the_peak_is_exact(hundredths: int, peak: int) -> None:
    text = f"{hundredths // 100}.{hundredths % 100:02}%"
    assert parse_budget(text, peak) == hundredths * peak // 10**4


@given(st.integers(0, LARGEST))
def test_a_printed_size_is_within_its_digits(size: int) -> None:
    number, unit = format_size(size).split()
    factor = {**FACTORS, "PB": 10**15}[unit]
    assert abs(Fraction(number) * factor - size) * 1999 <= size


@given(st.integers(0, LARGEST))
def test_a_printed_time_is_within_its_digits(time: int) -> None:
    number, unit = format_time(time).split()
    factor = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}[unit]
    assert abs(Fraction(number) * factor - time) * 150 <= time + (150 if time < 10**3 else 0)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_with_the_reason(text: str) -> None:
    for parse in (parse_size, parse_bandwidth, lambda budget: parse_budget(budget, 1000)):
        try:
            outcome = parse(text)
        except InputError as error:
            refusal = str(error)
        else:
            refusal = shown(text) if 0 <= outcome <= LARGEST else "read as something out of range"
        assert shown(text) in refusal


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24_000_000_000),
        ("24GiB", 25_769_803_776),
        ("12GiB", 12_884_901_888),
        ("512MiB", 536_870_912),
        ("1.5GB", 1_500_000_000),
        ("0.3GB", 300_000_000),  # the float 0.3 is less
        ("0.1GiB", 107_374_182),  # of 107374182.4
        (" .5 TB ", 500_000_000_000),
        ("0B", 0),
    ],
)
def test_sizes_by_hand(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "budget"), [("50%", 500), ("33.3%", 333), ("0.1 %", 1), ("150%", 1501), ("100%", 1001), ("2kB", 2000)]
)
def test_budgets_by_hand(text: str, budget: int) -> None:
    assert parse_budget(text, 1001) == budget


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("24", "needs a unit, such as 12GiB"),
        ("", "must be a number with a unit"),
        ("GB", "must be a number with a unit"),
        ("nan", "must be a number with a unit"),
        ("infGB", "must be a number with a unit"),
        ("1e400GB", "must be a number with a unit"),
        ("1,5GB", "must be a number with a unit"),
        ("1_000B", "must be a number with a unit"),
        ("4GB 2MB", "must be a number with a unit"),
        ("-5GB", "must not be negative"),
        ("-50%", "must not be negative"),
        ("0%", "must be more than 0%"),
        ("12gib", "did you mean GiB?"),
        ("12Gb", "did you mean GB?"),
        ("12parsec", "the units are B, kB, MB"),
        ("9223372036854775808B", "must be at most 9223372036854775807"),
        ("99999999999%", "must be at most 9223372036854775807"),
        ("9" * 5000 + "B", "must be a number with a unit"),
    ],
)
def test_bad_budgets_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InputError, match="budget") as refusal:
        parse_budget(text, 10**12)
    assert reason in str(refusal.value)


def test_a_bandwidth_is_a_size_each_second() -> None:
    assert parse_bandwidth("25GB/s") == 25 * 10**9
    with pytest.raises(InputError, match="did you mean GB/s"):
        parse_bandwidth("25GB")
    with pytest.raises(InputError, match="at least 1B/s"):
        parse_bandwidth("0.5B/s")


def test_the_message_names_the_quantity() -> None:
    with pytest.raises(InputError, match=r"^margin needs a unit"):
        parse_size("3", "margin")


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (format_size(0), "0 B"),
        (format_size(999), "999 B"),
        (format_size(1000), "1.000 kB"),
        (format_size(999_949_999), "999.9 MB"),
        (format_size(999_950_000), "1.000 GB"),
        (format_size(11_620_000_000), "11.62 GB"),
        (format_bandwidth(25 * 10**9), "25.00 GB/s"),
        (format_time(0), "0 ns"),
        (format_time(3000), "3.00 us"),
        (format_time(1_935_120_000), "1935.12 ms"),
        (format_time(12_300_000_000), "12.30 s"),
        (format_percent(0.97812), "97.81%"),
        (format_percent(1.0), "100.00%"),
    ],
)
def test_printing_by_hand(printed: str, expected: str) -> None:
    assert printed == expected
