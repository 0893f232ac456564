"""A training step by its name: ``package.module:function``, as a command line spells it."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from slackswap_opt.files import InputError, shown
from slackswap_opt.hardware import Hardware
from slackswap_opt.runtime.fake import profile_fake
from slackswap_opt.runtime.profile import Profile
from slackswap_opt.runtime.profiler import profile


def find_step(target: str) -> Callable[..., Any]:
    """Return the step that a name stands for.

    Parameters
    ----------
    target
        ``package.module:function``, a function without arguments that does forward and backward; with ``()`` after it, a
        function that returns such a function. The module is looked for where Python looks, and in the current folder.

    Raises
    ------
    InputError
        If there is no such module or function, or it cannot be called.
    """
    module_name, colon, path = target.partition(":")
    calls = path.endswith("()")
    path = path.removesuffix("()")
    if not (colon and all(name.isidentifier() for name in (*module_name.split("."), *path.split(".")))):
        raise InputError(f"expected package.module:function, got {shown(target)}")
    found: Any = _module(module_name, target)
    for name in path.split("."):
        if not hasattr(found, name):
            raise InputError(f"{target}: there is no '{name}' in {getattr(found, '__name__', shown(found))}")
        found = getattr(found, name)
    step = found() if calls and callable(found) else found
    if not callable(step):
        made = "what it returns is" if calls else "it is"
        raise InputError(f"{target}: {made} {shown(step)}, which cannot be called; expected a function that runs one step")
    return step  # type: ignore[no-any-return]


def profile_command(
    target: str,
    *,
    hardware: str | Hardware | None = None,
    name: str | None = None,
    timed: bool = True,
) -> Profile:
    """Return the profile of the step that a name stands for.

    Parameters
    ----------
    target
        As for `find_step`.
    hardware
        A device that need not be there. The module is then imported on tensors without data, so that a model that it makes
        takes no memory. By default the step runs as it is.
    name
        Of the instance; by default `target`.
    timed
        Whether to measure durations, without `hardware`.
    """
    if hardware is not None:
        return profile_fake(lambda: _step_without_arguments(target), hardware, name=name or target)
    return profile(_step_without_arguments(target), name=name or target, timed=timed)


def check_arguments(function: Callable[..., Any], target: str, *arguments: object, expected: str) -> None:
    """Raise `InputError`, saying what is `expected`, if a function cannot be called with these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Not every built-in has a signature to look at.
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise InputError(f"{target}: expected {expected}, got one that takes {signature}") from None


def _step_without_arguments(target: str) -> Callable[[], Any]:
    step = find_step(target)
    check_arguments(step, target, expected="a function that runs one step without arguments")
    return step


def _module(name: str, target: str) -> Any:
    folder = os.getcwd()
    added = folder not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(f"{target}: there is no module '{error.name}' here or where Python looks") from None
        raise
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)
