"""The command `slackswap`: plan a model into a budget, compare methods, judge a schedule.

Results go to standard output, everything else to standard error. The exit code is 0 when all went well, 1 when no schedule
exists, 2 for bad input or usage, 3 when none was found though none is proven impossible, 130 after Ctrl-C, and 141 when the
reader of the output has gone.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from slackswap_opt import __version__, hardware, instances
from slackswap_opt.files import LARGEST, InputError, check_target, shown
from slackswap_opt.instance import Instance
from slackswap_opt.result import Progress, Result, Status
from slackswap_opt.schedule import Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from slackswap_opt.solve import METHODS, compare, solve
from slackswap_opt.units import format_bandwidth, format_time, parse_budget

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger(__name__)

PLANNED, INFEASIBLE, USAGE, UNKNOWN, INTERRUPTED, CLOSED = 0, 1, 2, 3, 130, 141
_Command = Callable[[argparse.Namespace], int]
HEURISTICS = "greedy,keep-all,recompute-all,first-blocks,swap-all,recompute-only,swap-only"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default the process's own, and return its exit code.

    Raises
    ------
    SystemExit
        With code 2 for wrong usage, and with 0 for ``--help`` and ``--version``.
    """
    arguments = parser().parse_args(argv)
    try:
        with _logging(arguments.verbose):
            code: int = arguments.command(arguments)
    except (InputError, ImportError) as error:
        print(f"slackswap: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("slackswap: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        return CLOSED
    return code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Leave with the message."""
        self.exit(USAGE, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = _Parser(prog="slackswap", description="Plans the activations of a training step into a memory budget.")
    top.add_argument("--version", action="version", version=f"slackswap {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(
        name: str, function: Callable[[argparse.Namespace], int], summary: str, epilog: str = ""
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=summary, description=summary, epilog=epilog, allow_abbrev=False)
        made.set_defaults(command=function)
        made.add_argument("--json", action="store_true", help="print JSON: times in nanoseconds, sizes in bytes")
        made.add_argument("-v", "--verbose", action="store_true", help="log what is done to standard error")
        return made

    plan = command("plan", _plan, "Plan a model into a budget and say what it costs.", _EXIT_CODES)
    _add_model(plan)
    plan.add_argument("--method", default="greedy", help="how to plan (default: %(default)s); see 'slackswap list'")
    plan.add_argument("--save-instance", metavar="FILE", help="write the instance, with its budget, as JSON")
    plan.add_argument("--save-schedule", metavar="FILE", help="write the schedule as JSON")
    plan.add_argument("--plot", metavar="FILE", help="draw the schedule as .png, .svg or .pdf")
    plan.add_argument("--force", action="store_true", help="overwrite files that exist")

    side_by_side = command(
        "compare",
        _compare,
        "Put methods side by side.",
        "The exit code is 0 if some method fits every model; otherwise it is that of 'plan' for a model that none fits.",
    )
    _add_model(side_by_side, several=True)
    side_by_side.add_argument("--methods", default=HEURISTICS, help="names with commas between (default: %(default)s)")

    check = command("check", _check, "Judge a schedule: whether it is valid and fits, and what it costs.", _EXIT_CODES)
    _add_model(check)
    check.add_argument("schedule", metavar="SCHEDULE", help="a schedule file, from anywhere")

    command("list", _list, "List models with their parameters, hardware and methods.")
    return top


_EXIT_CODES = "Exit codes: 0 fits, 1 proven infeasible, 2 bad input or usage, 3 nothing found though nothing is proven."


def _add_model(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    help_ = "a model that 'slackswap list' names, or an instance file (one named like a model: ./NAME)"
    parser.add_argument("model", nargs="+" if several else None, metavar="NAME-OR-FILE", help=help_)
    parser.add_argument("--budget", help="50%% of the unconstrained peak, 12GiB or 24GB (default: that of the file, or none)")
    parser.add_argument("--hardware", metavar="NAME", help="the device that a named model is for")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of a named model, such as batch=8"
    )


def _plan(arguments: argparse.Namespace) -> int:
    _choose("method", arguments.method, METHODS)
    _check_outputs(arguments)
    instance = _load(arguments.model, arguments)
    result = solve(instance, arguments.method, budget=arguments.budget, on_progress=_log_progress)
    _save(result, arguments)
    if arguments.json:
        from slackswap_opt.report.records import result_record

        _print_json(result_record(result))
    else:
        from slackswap_opt.report.tables import result_table

        _print_tables([result_table(result)])
    return _exit_code([result])


def _compare(arguments: argparse.Namespace) -> int:
    methods = [method.strip() for method in arguments.methods.split(",")]
    for position, method in enumerate(methods):
        _choose("method", method, METHODS)
        if method in methods[:position]:
            raise InputError(f"--methods names {shown(method)} twice")
    loaded = [_load(model, arguments) for model in arguments.model]
    found = [compare(instance, methods, budget=arguments.budget) for instance in loaded]
    results = [result for of_model in found for result in of_model]
    if arguments.json:
        from slackswap_opt.report.records import result_record

        _print_json([result_record(result) for result in results])
    else:
        from slackswap_opt.report.tables import compare_table

        _print_tables([compare_table(results)])
    return max(_exit_code(of_model) for of_model in found)


def _check(arguments: argparse.Namespace) -> int:
    instance = _load(arguments.model, arguments)
    if arguments.budget is not None:
        instance = instance.with_budget(parse_budget(arguments.budget, instance.peak))
    schedule = Schedule.load(arguments.schedule)
    try:
        timeline = simulate(instance, schedule)
    except ScheduleError as error:
        raise InputError(f"{arguments.schedule}: {error}") from None
    if arguments.json:
        from slackswap_opt.report.records import instance_record, timeline_record

        _print_json({"instance": instance_record(instance), "timeline": timeline_record(timeline)})
    else:
        from slackswap_opt.report.tables import timeline_table

        _print_tables([timeline_table(instance, timeline)])
    return PLANNED


def _list(arguments: argparse.Namespace) -> int:
    models = {name: instances.parameters(name) for name in instances.names()}
    if arguments.json:
        known = {name: {key: asdict(parameter) for key, parameter in of.items()} for name, of in models.items()}
        _print_json({"models": known, "hardware": hardware.names(), "methods": dict(METHODS)})
        return PLANNED
    from slackswap_opt.report.tables import choice_table

    defaults = [(name, " ".join(f"{key}={p.default}" for key, p in of.items())) for name, of in models.items()]
    meanings = {(p.name, p.meaning): (p.name, p.meaning, _values(p)) for of in models.values() for p in of.values()}
    devices = [
        (device.name, *map(format_bandwidth, (device.memory_bandwidth, device.offload_bandwidth, device.prefetch_bandwidth)))
        for device in map(hardware.get, hardware.names())
    ]
    _print_tables(
        [
            choice_table("Models", ("name", "parameters and their defaults"), defaults),
            choice_table("Parameters", ("name", "meaning", "values"), meanings.values()),
            choice_table("Hardware", ("name", "memory bandwidth", "to the host", "back"), devices),
            choice_table("Methods", ("name", "what it is"), METHODS.items()),
        ]
    )
    return PLANNED


def _values(parameter: instances.Parameter) -> str:
    if isinstance(parameter.default, bool):
        return "true, false"
    upward = "or more" if parameter.most == LARGEST else f"to {parameter.most}"
    return ", ".join(parameter.choices) or f"{parameter.least} {upward}"


def _load(model: str, arguments: argparse.Namespace) -> Instance:
    """Return the instance that a name or a file stands for; a name goes before a file of that name."""
    if model in instances.names():
        return _load_named(model, arguments)
    path = Path(model)
    if not path.exists() and path.suffix != ".json" and os.sep not in model:
        _choose("model or file", model, instances.names())
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
        _choose("parameter", key, instances.parameters(model), f" of '{model}'")
        if key in texts:
            raise InputError(f"--set names {shown(key)} twice")
        texts[key] = value
    if arguments.hardware is not None:
        if "hardware" in texts:
            raise InputError(f"--hardware and --set name the hardware twice: {arguments.hardware} and {texts['hardware']}")
        _choose("hardware", arguments.hardware, hardware.names())
        texts["hardware"] = arguments.hardware
    return instances.load(model, **instances.parse(model, texts))


def _choose(kind: str, name: str, choices: Iterable[str], of: str = "") -> None:
    """Raise `InputError`, with what was probably meant and what there is, unless `name` is among the choices."""
    choices = list(choices)
    if name not in choices:
        near = get_close_matches(name, choices, 1)
        suggestion = f"did you mean {shown(near[0])}? " if near else ""
        raise InputError(f"unknown {kind} {shown(name)}{of}; {suggestion}choose from {', '.join(choices)}")


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Find out before planning whether every file that is asked for can be written."""
    taken: dict[Path, str] = {}
    for option in ("save-instance", "save-schedule", "plot"):
        name = getattr(arguments, option.replace("-", "_"))
        if name is None:
            continue
        check_target(name, overwrite=arguments.force)
        if (other := taken.setdefault(Path(name).resolve(), option)) != option:
            raise InputError(f"--{other} and --{option} name the same file {name}")
    if arguments.plot is not None:
        from slackswap_opt.report.plots import check_plot_path

        check_plot_path(arguments.plot, overwrite=arguments.force)


def _save(result: Result, arguments: argparse.Namespace) -> None:
    if arguments.save_instance is not None:
        result.instance.save(arguments.save_instance, overwrite=arguments.force)
    if result.schedule is None:
        unwritten = [name for name in (arguments.save_schedule, arguments.plot) if name is not None]
        if unwritten:
            print(f"slackswap: no schedule was found; not written: {', '.join(unwritten)}", file=sys.stderr)
        return
    if arguments.save_schedule is not None:
        result.schedule.save(arguments.save_schedule, overwrite=arguments.force)
    if arguments.plot is not None:
        from slackswap_opt.report.plots import plot

        plot(result, arguments.plot, overwrite=arguments.force)


def _exit_code(results: Sequence[Result]) -> int:
    if any(result.schedule for result in results):
        return PLANNED
    return INFEASIBLE if any(result.status is Status.INFEASIBLE for result in results) else UNKNOWN


def _print_json(value: object) -> None:
    _print(json.dumps(value, allow_nan=False))


def _print_tables(tables: "Iterable[Table]") -> None:
    from slackswap_opt.report.tables import rendered

    _print(rendered(tables, encoding=sys.stdout.encoding, terminal=sys.stdout.isatty()))


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except OSError as error:
        # The interpreter flushes once more at exit, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise InputError(f"the results cannot be written to standard output: {error.strerror}") from None


def _log_progress(progress: Progress) -> None:
    best, bound = ("none" if time is None else format_time(time) for time in (progress.makespan, progress.bound))
    log.info("after %.1f s: makespan %s, bound %s", progress.elapsed, best, bound)


@contextmanager
def _logging(verbose: bool) -> Iterator[None]:
    logger, handler = logging.getLogger("slackswap_opt"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("slackswap: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
