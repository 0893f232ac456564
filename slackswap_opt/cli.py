"""The command `slackswap`: plan a model into a budget, compare methods, judge a schedule.

Results go to standard output, everything else to standard error. The exit code is 0 when all went well, 1 when no schedule
exists, 2 for bad input or usage, 3 when none was found though none is proven impossible, 130 after Ctrl-C, 141 when the
reader of the output has gone, and 143 after SIGTERM.
"""

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from slackswap_opt import __version__, commands, profiling
from slackswap_opt.commands import CLOSED, INTERRUPTED, USAGE, Report
from slackswap_opt.files import InputError
from slackswap_opt.solve import HEURISTICS

if TYPE_CHECKING:
    from rich.table import Table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the process's own, and return its exit code.

    Raises
    ------
    SystemExit
        With code 2 for wrong usage, and with 0 for ``--help`` and ``--version``.
    """
    arguments = parser().parse_args(argv)
    if sys.stdout is None:
        print("slackswap: standard output is closed; send it to a file, or to /dev/null", file=sys.stderr)
        return USAGE
    try:
        with _logging(arguments.verbose), _ended_properly():
            report: Report = arguments.command(arguments)
        _print_report(report, in_json=arguments.json)
    except (InputError, ImportError) as error:
        print(f"slackswap: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("slackswap: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return CLOSED
    return report.code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Leave with the message."""
        self.exit(USAGE, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = _Parser(prog="slackswap", description="Plans the activations of a training step into a memory budget.")
    top.add_argument("--version", action="version", version=f"slackswap {__version__}")
    known = top.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[argparse.Namespace], Report], summary: str, epilog: str = "", *, in_json: bool = True
    ) -> argparse.ArgumentParser:
        made = known.add_parser(name, help=summary, description=summary, epilog=epilog, allow_abbrev=False)
        made.set_defaults(command=function, json=False)
        if in_json:
            made.add_argument("--json", action="store_true", help="print JSON: times in nanoseconds, sizes in bytes")
        made.add_argument("-v", "--verbose", action="store_true", help="log what is done to standard error")
        return made

    _add_plan(command("plan", commands.plan, "Plan a model into a budget and say what it costs.", _EXIT_CODES))
    _add_compare(command("compare", commands.compare_methods, "Put methods side by side.", _COMPARE_EXIT_CODES))
    _add_check(command("check", commands.check, "Judge a schedule and verify a certificate of a bound.", _CHECK_EXIT_CODES))
    _add_profile(command("profile", profiling.profile, "Say where the memory of a step of your own goes.", _PROFILE_EPILOG))
    _add_export(command("export", commands.export_model, "Write the integer program of a model for a solver.", in_json=False))
    command("list", commands.list_choices, "List models with their parameters, hardware and methods.")
    return top


_EXIT_CODES = "Exit codes: 0 fits, 1 proven infeasible, 2 bad input or usage, 3 nothing found though nothing is proven."
_CHECK_EXIT_CODES = "Exit codes: 0 valid and proven, 2 otherwise, with the reason in one sentence."
_PROFILE_EPILOG = (
    "The function takes no arguments and runs one step, forward and backward; with () after its name it is called once, and "
    "returns the step. With --largest batch it is called with a batch, an integer, and returns the step for it: it makes the "
    "model and the inputs itself, which then take no memory, and the device is a100-40gb unless --hardware says otherwise. "
    + _EXIT_CODES
)
_COMPARE_EXIT_CODES = (
    "The exit code is 0 if some method fits every model at every budget; otherwise it is that of 'plan' where none fits."
)


def _add_plan(plan: argparse.ArgumentParser) -> None:
    _add_model(plan)
    plan.add_argument("--method", default="greedy", help="how to plan (default: %(default)s); see 'slackswap list'")
    plan.add_argument("--bound", action="store_true", help="prove how much any plan can retain")
    plan.add_argument("--prices", action="store_true", help="say what more memory and bandwidth would save, and what binds")
    plan.add_argument("--solver", metavar="NAME", help="the solver of a method that takes one")
    plan.add_argument("--tolerance", type=float, metavar="SHARE", help="the gap that counts as optimal (default: 0.0001)")
    plan.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="when a solver stops with its best; greedy comes first"
    )
    plan.add_argument("--threads", type=int, metavar="N", help="of a solver")
    plan.add_argument("--seed", type=int, metavar="N", help="of a solver's random choices (default: 0)")
    plan.add_argument("--save-instance", metavar="FILE", help="write the instance, with its budget, as JSON")
    plan.add_argument("--save-schedule", metavar="FILE", help="write the schedule as JSON")
    plan.add_argument("--save-certificate", metavar="FILE", help="prove a bound, and write what 'check' verifies it by")
    _add_plot_and_force(plan)


def _add_compare(compare: argparse.ArgumentParser) -> None:
    _add_model(compare, several=True)
    compare.add_argument("--methods", default=",".join(HEURISTICS), help="names with commas between (default: %(default)s)")
    compare.add_argument("--sweep", metavar="RANGE", help="budgets: 20%%..100%% by tens, 20%%..100%%:5 by fives, or a list")
    compare.add_argument("--bandwidth", metavar="RANGE", help="of the link each way: 8GB/s..64GB/s, doubling, or a list")
    compare.add_argument("--bound", action="store_true", help="prove how far each is from the best plan: a column 'gap'")
    compare.add_argument("--time-limit", type=float, metavar="SECONDS", help="when each solver stops with what it has")


def _add_check(check: argparse.ArgumentParser) -> None:
    _add_model(check)
    check.add_argument("schedule", nargs="?", metavar="SCHEDULE", help="a schedule file, from anywhere")
    check.add_argument("--certificate", metavar="FILE", help="a certificate file: what its multipliers prove, without a solver")


def _add_profile(profile: argparse.ArgumentParser) -> None:
    profile.add_argument("target", metavar="MODULE:FUNCTION", help="package.module:function that runs forward and backward")
    profile.add_argument("--budget", help="plan it too: 50%% of the unconstrained peak, 12GiB or 24GB")
    profile.add_argument("--hardware", metavar="NAME", help="a device that need not be there: nothing is allocated or computed")
    profile.add_argument("--largest", choices=["batch"], help="look for the largest batch that fits in the budget")
    profile.add_argument("--retained", metavar="PERCENT", help="what the largest batch must keep of ideal throughput: 95%%")
    profile.add_argument("--save-instance", metavar="FILE", help="write the instance as JSON, which all other commands read")
    _add_plot_and_force(profile)


def _add_export(export: argparse.ArgumentParser) -> None:
    _add_model(export)
    export.add_argument("--format", choices=["lp", "mps"], default="lp", help="of the file (default: %(default)s)")
    export.add_argument(
        "--rounding",
        choices=["outer", "inner"],
        default="outer",
        help="outer: the optimum bounds every plan; inner: the solutions are plans (default: %(default)s)",
    )
    export.add_argument("--output", metavar="FILE", help="where to write it (default: standard output)")
    export.add_argument("--force", action="store_true", help="overwrite a file that exists")


def _add_model(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    help_ = "a model or a step of the library that 'slackswap list' names, or an instance file (one named like a model: ./NAME)"
    parser.add_argument("model", nargs="+" if several else None, metavar="NAME-OR-FILE", help=help_)
    parser.add_argument("--budget", help="50%% of the unconstrained peak, 12GiB or 24GB (default: that of the file, or none)")
    parser.add_argument("--hardware", metavar="NAME", help="the device that a named model is for")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of a named model, such as batch=8"
    )


def _add_plot_and_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--plot", metavar="FILE", help="draw the schedule as .png, .svg or .pdf")
    parser.add_argument("--force", action="store_true", help="overwrite files that exist")


def _print_report(report: Report, *, in_json: bool) -> None:
    if in_json and report.record is not None:
        _print(json.dumps(report.record(), allow_nan=False) + "\n")
    elif report.tables is not None:
        _print_tables(report.tables())
    elif report.text:
        _print(report.text)


def _print_tables(tables: "Iterable[Table]") -> None:
    from slackswap_opt.report.tables import rendered

    _print(rendered(tables, encoding=sys.stdout.encoding, terminal=sys.stdout.isatty()) + "\n")


def _print(text: str) -> None:
    try:
        # What the terminal has no characters for is spelled as in Python: \\u2192.
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding), end="", flush=True)
    except OSError as error:
        # The interpreter flushes once more at exit, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise InputError(f"the results cannot be written to standard output: {error.strerror}") from None


@contextmanager
def _ended_properly() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, with solvers stopped and temporary folders removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _logging(verbose: bool) -> Iterator[None]:
    """Send the package's log to standard error: warnings and progress always, the rest if `verbose`."""
    logger, handler = logging.getLogger("slackswap_opt"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("slackswap: %(message)s"))
    levels = logger.level, commands.progress.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    commands.progress.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(levels[0])
        commands.progress.setLevel(levels[1])
