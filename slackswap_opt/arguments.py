"""What the words of a command line stand for: models, choices, files to write, and options that are out of place."""

import argparse
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from slackswap_opt import hardware, instances
from slackswap_opt.files import InputError, check_target, shown
from slackswap_opt.instance import Instance
from slackswap_opt.solve import HEURISTICS
from slackswap_opt.units import parse_bandwidth, parse_budget

T = TypeVar("T")

_PERCENTAGE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%", re.ASCII)
_RANGE = re.compile(
    r"([0-9]{1,9}(?:\.[0-9]{1,9})?)%\s*\.\.\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)%(?::([0-9]{1,9}(?:\.[0-9]{1,9})?)%?)?"
)
_MOST_POINTS = 1000
_OUTPUTS = ("save_instance", "save_schedule", "save_certificate", "plot", "output")


def load_model(model: str, arguments: argparse.Namespace) -> Instance:
    """Return the instance that a name or a file stands for; a name goes before a file of that name."""
    if model in instances.names():
        return _load_named(model, arguments)
    path, library = Path(model), model.startswith(instances.LIBRARY)
    if not library and path.suffix != ".json" and os.sep not in model and not os.path.exists(model):
        choose("model or file", model, [*instances.names(), *instances.library()])
    for option in ("hardware", "set"):
        if getattr(arguments, option):
            what = "profile" if library else "file"
            raise InputError(f"--{option} is for named models; the {what} {model} has durations, sizes and a link of its own")
    return instances.load(model) if library else Instance.load(model)


def _load_named(model: str, arguments: argparse.Namespace) -> Instance:
    texts: dict[str, str] = {}
    for setting in arguments.set:
        key, sign, value = setting.partition("=")
        if not sign:
            raise InputError(f"--set takes KEY=VALUE, such as batch=8, got {shown(setting)}")
        choose("parameter", key, instances.parameters(model), f" of '{model}'")
        if key in texts:
            raise InputError(f"--set names {shown(key)} twice")
        texts[key] = value
    if arguments.hardware is not None:
        if "hardware" in texts:
            raise InputError(f"--hardware and --set name the hardware twice: {arguments.hardware} and {texts['hardware']}")
        choose("hardware", arguments.hardware, hardware.names())
        texts["hardware"] = arguments.hardware
    return instances.load(model, **instances.parse(model, texts))


def choose(kind: str, name: str, choices: Iterable[str], of: str = "") -> None:
    """Raise `InputError`, with what was probably meant and what there is, unless `name` is among the choices."""
    choices = list(choices)
    if name not in choices:
        near = get_close_matches(name, choices, 1)
        suggestion = f"did you mean {shown(near[0])}? " if near else ""
        raise InputError(f"unknown {kind} {shown(name)}{of}; {suggestion}choose from {', '.join(choices)}")


def solver_options(
    arguments: argparse.Namespace, methods: Iterable[str], names: Iterable[str], *, bound: bool
) -> dict[str, Any]:
    """Return what was asked of solvers, by the names that `solve` has for it, unless none of the methods heeds it.

    Parameters
    ----------
    arguments
        Those of the command, None where an option is absent.
    methods
        What will be run.
    names
        The options that the command has.
    bound
        Whether a bound is proven too; that heeds a time limit, and makes a tolerance mean something.
    """
    exact = any(method not in HEURISTICS for method in methods)
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    for name in given:
        if exact or name == "solver" or (bound and name in ("tolerance", "time_limit")):
            continue
        without = " without --bound" if name in ("tolerance", "time_limit") else ""
        raise InputError(f"{_spelled(name)} has no effect on {', '.join(methods)}{without}: no solver runs")
    return given


def check_outputs(arguments: argparse.Namespace) -> None:
    """Find out before planning whether every file that is asked for can be written."""
    taken: dict[Path, str] = {}
    options = [option for option in _OUTPUTS if option in arguments]
    for option in options:
        name = getattr(arguments, option)
        if name is None:
            continue
        check_target(name, overwrite=arguments.force)
        if (other := taken.setdefault(Path(name).resolve(), option)) != option:
            raise InputError(f"{_spelled(other)} and {_spelled(option)} name the same file {name}")
    if arguments.force and not taken:
        raise InputError(f"--force has no effect without a file to write: {', '.join(map(_spelled, options))}")
    if getattr(arguments, "plot", None) is not None:
        from slackswap_opt.report.plots import check_plot_path

        check_plot_path(arguments.plot, overwrite=arguments.force)


def parse_share(text: str, what: str) -> float:
    """Return the share of 1, up to 1, that a percentage such as ``95%`` is."""
    match = _PERCENTAGE.fullmatch(text.strip())
    if match is None or Fraction(match[1]) > 100:
        raise InputError(f"{what} must be a percentage from 0% to 100%, such as 95%, got {shown(text)}")
    return float(Fraction(match[1]) / 100)


def parse_sweep(text: str) -> tuple[str, ...]:
    """Return the budgets that ``20%..100%`` (steps of ten points), ``20%..100%:5`` or a list with commas names."""
    if ".." not in text:
        budgets = tuple(part.strip() for part in text.split(","))
        for budget in budgets:
            parse_budget(budget, 1)
        return _once(budgets, "--sweep")
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"--sweep must be a range such as 20%..100% or 20%..100%:5, or a list of budgets, got {shown(text)}")
    first, last, step = Fraction(match[1]), Fraction(match[2]), Fraction(match[3] or 10)
    if not first or last < first:
        raise InputError(f"--sweep must go up, from more than 0%, got {shown(text)}")
    if not step or (last - first) / step >= _MOST_POINTS:
        raise InputError(f"--sweep must have steps that make at most {_MOST_POINTS} budgets, got {shown(text)}")
    return tuple(f"{float(first + n * step):.10g}%" for n in range(int((last - first) / step) + 1))


def parse_bandwidths(text: str) -> tuple[int, ...]:
    """Return the bytes per second that ``8GB/s..64GB/s`` (doubling) or a list with commas names."""
    if ".." not in text:
        return _once(tuple(parse_bandwidth(part.strip()) for part in text.split(",")), "--bandwidth")
    first, last = (parse_bandwidth(end) for end in text.split("..", 1))
    if last < first:
        raise InputError(f"--bandwidth must go up, got {shown(text)}")
    return tuple(first << n for n in range((last // first).bit_length()))


def _once(values: tuple[T, ...], option: str) -> tuple[T, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise InputError(f"{option} names {shown(value)} twice")
    return values


def _spelled(option: str) -> str:
    return f"--{option.replace('_', '-')}"
