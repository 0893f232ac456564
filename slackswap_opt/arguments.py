"""What the words of a command line stand for: models, choices, files to write, and options that are out of place."""

import argparse
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Any

from slackswap_opt import hardware, instances
from slackswap_opt.files import InputError, check_target, shown
from slackswap_opt.instance import Instance

HEURISTICS = ("greedy", "keep-all", "recompute-all", "first-blocks", "swap-all", "recompute-only", "swap-only")
"""The methods that run no solver, so that none of a solver's options has an effect on them."""

_PERCENTAGE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*%", re.ASCII)
_OUTPUTS = ("save_instance", "save_schedule", "save_certificate", "plot", "output")


def load_model(model: str, arguments: argparse.Namespace) -> Instance:
    """Return the instance that a name or a file stands for; a name goes before a file of that name."""
    if model in instances.names():
        return _load_named(model, arguments)
    path = Path(model)
    if not path.exists() and path.suffix != ".json" and os.sep not in model:
        choose("model or file", model, instances.names())
    for option in ("hardware", "set"):
        if getattr(arguments, option):
            raise InputError(f"--{option} is for named models; the file {model} has durations, sizes and a link of its own")
    return Instance.load(model)


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


def _spelled(option: str) -> str:
    return f"--{option.replace('_', '-')}"
