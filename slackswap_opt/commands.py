"""What each command does: from its arguments to what it has to say, which nothing here prints."""

import argparse
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from slackswap_opt import hardware, instances
from slackswap_opt.arguments import check_outputs, choose, load_model, parse_bandwidths, parse_sweep, solver_options
from slackswap_opt.files import LARGEST, InputError, shown, shown_path, write_text
from slackswap_opt.instance import Instance
from slackswap_opt.instances import saved
from slackswap_opt.result import Progress, Result, Status
from slackswap_opt.schedule import Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from slackswap_opt.solve import METHODS, solve
from slackswap_opt.sweep import sweep
from slackswap_opt.timeline import Timeline
from slackswap_opt.units import format_bandwidth, format_size, parse_budget

if TYPE_CHECKING:
    from rich.table import Table

    from slackswap_opt.formulations.certificate import Certificate
    from slackswap_opt.formulations.prices import Prices

log = logging.getLogger(__name__)
progress = logging.getLogger("slackswap_opt.progress")
"""How far a long solve is, which the command always tells."""

PLANNED, INFEASIBLE, USAGE, UNKNOWN, INTERRUPTED, CLOSED = 0, 1, 2, 3, 130, 141


@dataclass(frozen=True, slots=True)
class Report:
    """What a command has to say.

    Attributes
    ----------
    code
        The exit code.
    record
        Makes the value that ``--json`` prints.
    tables
        Makes what is printed otherwise, from top to bottom.
    text
        What is printed where there are neither.
    """

    code: int
    record: "Callable[[], object] | None" = None
    tables: "Callable[[], Iterable[Table]] | None" = None
    text: str = ""


def plan(arguments: argparse.Namespace) -> Report:
    """Plan a model, and write the files that are asked for."""
    choose("method", arguments.method, METHODS)
    bound = arguments.bound or arguments.save_certificate is not None
    names = ("solver", "tolerance", "time_limit", "threads", "seed")
    options = solver_options(arguments, [arguments.method], names, bound=bound)
    check_outputs(arguments)
    instance = load_model(arguments.model, arguments)
    if arguments.budget is None and instance.budget is None:
        if arguments.save_certificate is not None:
            raise InputError(
                "--save-certificate needs a budget: without one the ideal step is the bound, with nothing to prove"
            )
        if arguments.prices:
            raise InputError("--prices needs a budget: without one memory costs nothing")
    result = solve(
        instance, arguments.method, budget=arguments.budget, bound=bound, on_progress=_teller(instance.ideal), **options
    )
    save(result, arguments)
    return _told(result, _prices(result) if arguments.prices else None)


def _prices(result: Result) -> "Prices | None":
    """Return prices, or say why there are none."""
    from slackswap_opt.formulations.prices import prices
    from slackswap_opt.formulations.relaxation import RelaxationError

    if result.status is Status.INFEASIBLE:
        log.warning("there are no prices where no schedule fits")
        return None
    try:
        return prices(result.instance)
    except (InputError, RelaxationError) as error:
        log.warning("there are no prices: %s", error)
        return None


def _told(result: Result, prices: "Prices | None") -> Report:
    def record() -> object:
        from slackswap_opt.report.records import prices_record, result_record

        priced = {"prices": prices_record(result.instance, prices)} if prices else {}
        return {**result_record(result), **priced}

    def tables() -> "list[Table]":
        from slackswap_opt.report.tables import prices_table, result_table

        return [result_table(result), *([prices_table(result.instance, prices)] if prices else [])]

    return Report(exit_code([result]), record, tables)


def _teller(ideal: int) -> Callable[[Progress], None]:
    """Return what tells of progress, a line whenever there is something new."""
    told: tuple[int | None, int | None] = (None, None)

    def tell(state: Progress) -> None:
        nonlocal told
        from slackswap_opt.report.tables import bounds_in_words

        known = (state.makespan, state.bound)
        if known != told:
            told = known
            progress.info("after %.1f s: %s", state.elapsed, bounds_in_words(ideal, *known))

    return tell


def save(result: Result, arguments: argparse.Namespace) -> None:
    """Write what there is of the files that are asked for, and say what there is not."""
    if arguments.save_instance is not None:
        result.instance.save(arguments.save_instance, overwrite=arguments.force)
    if getattr(arguments, "save_certificate", None) is not None:
        if result.certificate is None:
            log.warning("no certificate was made; not written: %s", arguments.save_certificate)
        else:
            result.certificate.save(arguments.save_certificate, overwrite=arguments.force)
    if result.schedule is None:
        names = (getattr(arguments, "save_schedule", None), arguments.plot)
        if unwritten := [name for name in names if name is not None]:
            log.warning("no schedule was found; not written: %s", ", ".join(unwritten))
        return
    if getattr(arguments, "save_schedule", None) is not None:
        result.schedule.save(arguments.save_schedule, overwrite=arguments.force)
    if arguments.plot is not None:
        from slackswap_opt.report.plots import plot as draw

        draw(result, arguments.plot, overwrite=arguments.force)


def compare_methods(arguments: argparse.Namespace) -> Report:
    """Put methods side by side, on each of several models, budgets and bandwidths."""
    methods = [method.strip() for method in arguments.methods.split(",")]
    for position, method in enumerate(methods):
        choose("method", method, METHODS)
        if method in methods[:position]:
            raise InputError(f"--methods names {shown(method)} twice")
    options = solver_options(arguments, methods, ("time_limit",), bound=arguments.bound)
    if arguments.sweep is not None and arguments.budget is not None:
        raise InputError("--sweep sets the budgets, so that --budget has no effect beside it")
    budgets = (arguments.budget,) if arguments.sweep is None else parse_sweep(arguments.sweep)
    bandwidths = (None,) if arguments.bandwidth is None else parse_bandwidths(arguments.bandwidth)
    loaded = [load_model(model, arguments) for model in arguments.model]
    from slackswap_opt.report.bar import bar

    with bar("planning") as on_done:
        results = sweep(
            loaded, methods, budgets=budgets, bandwidths=bandwidths, bound=arguments.bound, on_done=on_done, **options
        )
    points = [results[n : n + len(methods)] for n in range(0, len(results), len(methods))]

    def record() -> object:
        from slackswap_opt.report.records import result_record

        return [result_record(result) for result in results]

    def tables() -> "list[Table]":
        from slackswap_opt.report.tables import compare_table

        return [compare_table(results)]

    return Report(max(map(exit_code, points)), record, tables)


def check(arguments: argparse.Namespace) -> Report:
    """Judge a schedule, and verify a certificate without a solver."""
    if arguments.schedule is None and arguments.certificate is None:
        raise InputError("check needs a SCHEDULE to judge, a --certificate FILE to verify, or both")
    instance = load_model(arguments.model, arguments)
    if arguments.budget is not None:
        instance = instance.with_budget(parse_budget(arguments.budget, instance.peak))
    timeline = None if arguments.schedule is None else _judged(instance, arguments.schedule)
    certificate = None if arguments.certificate is None else _verified(instance, arguments.certificate)

    def record() -> object:
        from slackswap_opt.report.records import check_record

        return check_record(instance, timeline, certificate)

    def tables() -> "list[Table]":
        from slackswap_opt.report.tables import check_table

        return [check_table(instance, timeline, certificate)]

    return Report(PLANNED, record, tables)


def _judged(instance: Instance, path: str) -> Timeline:
    try:
        return simulate(instance, Schedule.load(path))
    except ScheduleError as error:
        raise InputError(f"{shown_path(path)}: {error}") from None


def _verified(instance: Instance, path: str) -> "Certificate":
    from slackswap_opt.formulations.certificate import Certificate, verify

    certificate = Certificate.load(path)
    try:
        verify(instance, certificate)
    except InputError as error:
        raise InputError(f"{shown_path(path)}: {error}") from None
    return certificate


def export_model(arguments: argparse.Namespace) -> Report:
    """Write the formulation of a model for other solvers."""
    from slackswap_opt.formulations.export import export
    from slackswap_opt.formulations.rounding import Rounding

    check_outputs(arguments)
    instance = load_model(arguments.model, arguments)
    if arguments.budget is not None:
        instance = instance.with_budget(parse_budget(arguments.budget, instance.peak))
    text = export(instance, arguments.format, rounding=Rounding(arguments.rounding))
    if arguments.output is None:
        return Report(PLANNED, text=text)
    write_text(arguments.output, text, overwrite=arguments.force)
    return Report(PLANNED)


def list_choices(arguments: argparse.Namespace) -> Report:
    """Name everything that can be asked for."""
    models = {name: instances.parameters(name) for name in instances.names()}
    library = {name: saved.about(name.removeprefix(instances.LIBRARY)) for name in instances.library()}

    def record() -> object:
        known = {name: {key: asdict(parameter) for key, parameter in of.items()} for name, of in models.items()}
        return {"models": known, "library": library, "hardware": hardware.names(), "methods": dict(METHODS)}

    def tables() -> "list[Table]":
        from slackswap_opt.report.tables import choice_table

        defaults = [(name, " ".join(f"{key}={p.default}" for key, p in of.items())) for name, of in models.items()]
        meanings = {(p.name, p.meaning): (p.name, p.meaning, _values(p)) for of in models.values() for p in of.values()}
        profiled = [
            (name, of["model"], " x ".join(map(str, of["batch"])), str(of["operations"]), format_size(of["peak"]))
            for name, of in library.items()
        ]
        devices = [
            (
                device.name,
                *map(format_bandwidth, (device.memory_bandwidth, device.offload_bandwidth, device.prefetch_bandwidth)),
            )
            for device in map(hardware.get, hardware.names())
        ]
        return [
            choice_table("Models", ("name", "parameters and their defaults"), defaults),
            choice_table("Parameters", ("name", "meaning", "values"), meanings.values()),
            choice_table("Library of profiled steps", ("name", "model", "batch", "operations", "peak"), profiled),
            choice_table("Hardware", ("name", "memory bandwidth", "to the host", "back"), devices),
            choice_table("Methods", ("name", "what it is"), METHODS.items()),
        ]

    return Report(PLANNED, record, tables)


def _values(parameter: instances.Parameter) -> str:
    if isinstance(parameter.default, bool):
        return "true, false"
    upward = "or more" if parameter.most == LARGEST else f"to {parameter.most}"
    return ", ".join(parameter.choices) or f"{parameter.least} {upward}"


def exit_code(results: Sequence[Result]) -> int:
    """Return 0 if one of them has a schedule, 1 if it is proven that there is none, 3 otherwise."""
    if any(result.schedule for result in results):
        return PLANNED
    return INFEASIBLE if any(result.status is Status.INFEASIBLE for result in results) else UNKNOWN
