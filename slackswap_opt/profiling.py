"""The command `profile`: where the memory of a step of one's own goes, what a budget costs it, the largest batch."""

import argparse
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from slackswap_opt import hardware
from slackswap_opt.arguments import check_outputs, choose, parse_share
from slackswap_opt.commands import PLANNED, Report, exit_code, save
from slackswap_opt.files import InputError, shown
from slackswap_opt.result import Result
from slackswap_opt.solve import solve
from slackswap_opt.units import parse_budget, parse_size

if TYPE_CHECKING:
    from rich.table import Table

    from slackswap_opt.runtime import Profile


def profile(arguments: argparse.Namespace) -> Report:
    """Profile a step, and plan it if there is a budget; or look for the largest batch."""
    _check_combination(arguments)
    check_outputs(arguments)
    if arguments.hardware is not None:
        choose("hardware", arguments.hardware, hardware.names())
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        raise ImportError("profiles need PyTorch: pip install 'slackswap-opt[torch]'") from None
    return _largest(arguments) if arguments.largest else _one(arguments)


def _check_combination(arguments: argparse.Namespace) -> None:
    if arguments.budget is None:
        for option, why in (("largest", "looks for what fits in one"), ("plot", "draws the schedule that fits in one")):
            if getattr(arguments, option) is not None:
                raise InputError(f"--{option} needs a --budget: it {why}")
    elif arguments.largest is None:
        parse_budget(arguments.budget, 1)
    elif arguments.budget.rstrip().endswith("%"):
        raise InputError(
            f"--largest needs a --budget in bytes, such as 12GiB, since peaks grow with it; got {shown(arguments.budget)}"
        )
    if arguments.retained is not None and arguments.largest is None:
        raise InputError("--retained has no effect without --largest batch")


def _one(arguments: argparse.Namespace) -> Report:
    from slackswap_opt.runtime.target import profile_command

    # What a step prints is not among the results.
    with redirect_stdout(sys.stderr), _errors_of_the_step(arguments):
        found = profile_command(arguments.target, hardware=arguments.hardware)
    result = None
    if arguments.budget is not None:
        result = solve(found.instance, budget=arguments.budget)
        save(result, arguments)
    elif arguments.save_instance is not None:
        found.instance.save(arguments.save_instance, overwrite=arguments.force)
    return _told(found, arguments.hardware, result)


@contextmanager
def _errors_of_the_step(arguments: argparse.Namespace) -> Iterator[None]:
    """Tell in a sentence what the person's own code raises, and where; with --verbose, how it got there."""
    try:
        yield
    except (InputError, ImportError):
        raise
    # A step is anybody's code: it may raise anything, and end the program.
    except (Exception, SystemExit) as error:
        if arguments.verbose:
            traceback.print_exc()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error}".strip().split("\n")[0]
        more = "" if arguments.verbose else "; --verbose shows how it got there"
        raise InputError(f"{arguments.target}: raised {what} ({frame.filename}, line {frame.lineno}){more}") from None


def _told(found: "Profile", device: str | None, result: Result | None) -> Report:
    def record() -> object:
        from slackswap_opt.report.records import profile_record, result_record

        return {**profile_record(found), "plan": result and result_record(result)}

    def tables() -> "list[Table]":
        from slackswap_opt.report.tables import memory_table, profile_table, result_table

        planned = [result_table(result)] if result else []
        return [profile_table(found, device), memory_table(found.memory_rows()), *planned]

    return Report(exit_code([result]) if result else PLANNED, record, tables)


def _largest(arguments: argparse.Namespace) -> Report:
    from slackswap_opt.runtime import largest_batch
    from slackswap_opt.runtime.target import check_arguments, find_step

    budget = parse_size(arguments.budget, "budget")
    retained = 0.0 if arguments.retained is None else parse_share(arguments.retained, "--retained")
    options = {} if arguments.hardware is None else {"hardware": arguments.hardware}
    with redirect_stdout(sys.stderr), _errors_of_the_step(arguments):
        build = find_step(arguments.target)
        check_arguments(
            build, arguments.target, 1, expected="with --largest batch a function that takes a batch and returns a step"
        )
        batch, result = largest_batch(build, budget, retained=retained, **options)
    save(result, arguments)

    def record() -> object:
        from slackswap_opt.report.records import result_record

        return {"batch": batch, "plan": result_record(result)}

    def tables() -> "list[Table]":
        from slackswap_opt.report.tables import result_table

        return [result_table(result)]

    return Report(PLANNED, record, tables)
