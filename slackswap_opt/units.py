"""Quantities as people write them: sizes, budgets and bandwidths are read exactly, these and times printed shortly.

GB is 10^9 bytes, GiB is 2^30. Reading uses fractions, never floats, and rounds down to a whole byte.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from fractions import Fraction

from slackswap_opt.files import LARGEST, InputError, shown

_PREFIXES = "kMGTP"
_SIZES = {"B": 1, **{f"{p}B": 1000**n for n, p in enumerate(_PREFIXES, 1)}}
_SIZES |= {f"{p}iB": 1024**n for n, p in enumerate(_PREFIXES.upper(), 1)}
_BANDWIDTHS = {f"{unit}/s": factor for unit, factor in _SIZES.items()}
_TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_QUANTITY = re.compile(r"(-?)([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})\s*([^\s0-9.+-]*)", re.ASCII)


def parse_size(text: str, what: str = "size") -> int:
    """Return the bytes that a text such as ``12GiB`` or ``1.5GB`` names, rounded down.

    Parameters
    ----------
    text
        A number and one of B, kB, MB, GB, TB, PB (powers of 1000), KiB, MiB, GiB, TiB, PiB (powers of 1024).
    what
        How a message names the quantity.

    Raises
    ------
    InputError
        If the unit is missing or unknown, the number is negative or none, or the size exceeds 2^63 - 1.
    """
    return _parse(text, what, _SIZES, "12GiB or 24GB")


def parse_bandwidth(text: str, what: str = "bandwidth") -> int:
    """Return the bytes per second, 1 or more, that a text such as ``25GB/s`` names; otherwise like `parse_size`."""
    bandwidth = _parse(text, what, _BANDWIDTHS, "25GB/s")
    if bandwidth < 1:
        raise InputError(f"{what} must be at least 1B/s, got {shown(text)}")
    return bandwidth


def parse_budget(text: str, peak: int) -> int:
    """Return the bytes that a budget such as ``50%`` or ``12GiB`` allows, rounded down.

    Parameters
    ----------
    text
        A percentage of `peak`, more than 0 and possibly more than 100, or a size.
    peak
        The unconstrained peak in bytes.

    Raises
    ------
    InputError
        If the text is neither.
    """
    if not text.rstrip().endswith("%"):
        return _parse(text, "budget", _SIZES, "12GiB, 24GB or 50%")
    percentage = _quantity(text, "budget", {"%": 1}, "50%")
    if not percentage:
        raise InputError(f"budget must be more than 0%, got {shown(text)}")
    return _whole(percentage * peak / 100, "budget", text)


def format_size(size: int) -> str:
    """Return bytes as a person reads them, in powers of 1000 and four digits: ``11.62 GB``."""
    value, unit = float(size), "B"
    for prefix in _PREFIXES:
        if value < 999.95:
            break
        value, unit = value / 1000, f"{prefix}B"
    return f"{value:.0f} {unit}" if unit == "B" or value >= 1000 else f"{value:#.4g} {unit}"


def format_bandwidth(bandwidth: int) -> str:
    """Return bytes per second as a person reads them: ``25.00 GB/s``."""
    return f"{format_size(bandwidth)}/s"


def format_time(time: int) -> str:
    """Return nanoseconds as a person reads them: ``485.12 ms``, ``12.30 s`` from ten seconds on."""
    for unit, limit in (("ns", 10**3), ("us", 10**6), ("ms", 10**10)):
        if time < limit:
            return f"{time / _TIMES[unit]:.{0 if unit == 'ns' else 2}f} {unit}"
    return f"{time / 10**9:.2f} s"


def format_percent(share: float) -> str:
    """Return a share of 1 in percent: ``97.81%``."""
    return f"{100 * share:.2f}%"


def _parse(text: str, what: str, units: Mapping[str, int], example: str) -> int:
    return _whole(_quantity(text, what, units, example), what, text)


def _quantity(text: str, what: str, units: Mapping[str, int], example: str) -> Fraction:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{what} must be a number with a unit such as {example}, got {shown(text)}")
    sign, number, unit = match.groups()
    if not unit:
        raise InputError(f"{what} needs a unit, such as {example}; got the bare number {shown(text)}")
    if unit not in units:
        raise InputError(f"{what} has the unknown unit {shown(unit)} in {shown(text)}{_nearest(unit, units)}")
    if sign:
        raise InputError(f"{what} must not be negative, got {shown(text)}")
    return Fraction(number) * units[unit]


def _nearest(unit: str, units: Mapping[str, int]) -> str:
    folded = {known.lower(): known for known in units}
    near = folded.get(unit.lower()) or next(iter(get_close_matches(unit, units, 1)), None)
    suggestion = f"did you mean {near}? " if near else ""
    return f"; {suggestion}the units are {', '.join(units)}"


def _whole(quantity: Fraction, what: str, text: str) -> int:
    if quantity > LARGEST:
        raise InputError(f"{what} must be at most {LARGEST}, got {shown(text)}")
    return int(quantity)
