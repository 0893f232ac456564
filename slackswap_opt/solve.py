"""The one door: a registry of methods, and what solves, judges and compares with any of them."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Unpack

from slackswap_opt import baselines
from slackswap_opt.files import InputError, check_type, shown
from slackswap_opt.greedy import NoPlanError, greedy, smallest_budget
from slackswap_opt.instance import Instance
from slackswap_opt.place import PlacementError, place
from slackswap_opt.plan import Plan
from slackswap_opt.result import TOLERANCE, Answer, Options, Progress, Result, SolveOptions, Status
from slackswap_opt.simulate import simulate
from slackswap_opt.units import format_size, parse_budget

__all__ = ["HEURISTICS", "METHODS", "check_options", "compare", "solve"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Method:
    """What a method is, in a line, and the function that answers for it.

    `chooses` says whether it plans by choice, so that its failure says something about the budget; `runs_solver` whether a
    solver's options mean something to it; `takes_solver` whether the caller may name that solver.
    """

    meaning: str
    answer: Callable[[Instance, Options], Answer]
    chooses: bool = False
    runs_solver: bool = False
    takes_solver: bool = False


def _baseline(plan: Callable[[Instance], Plan]) -> Callable[[Instance, Options], Answer]:
    def answer(instance: Instance, options: Options) -> Answer:
        return Answer(plan=plan(instance))

    return answer


def _greedy(*, swap: bool = True, recompute: bool = True) -> Callable[[Instance, Options], Answer]:
    def answer(instance: Instance, options: Options) -> Answer:
        try:
            found = greedy(instance, swap=swap, recompute=recompute)
        except NoPlanError as error:
            return Answer(message=str(error))
        return Answer(found.plan, found.placement.schedule)

    return answer


def _exact(meaning: str, name: str, *, takes_solver: bool = False) -> _Method:
    def answer(instance: Instance, options: Options) -> Answer:
        from slackswap_opt import exact, portfolio

        methods = {
            "auto": portfolio.auto,
            "cbc": exact.cbc,
            "cp-sat": exact.cp_sat,
            "highs": exact.highs,
            "milp": exact.milp,
        }
        return methods[name](instance, options)

    return _Method(meaning, answer, chooses=True, runs_solver=True, takes_solver=takes_solver)


_METHODS = {
    "greedy": _Method("SlackSwap: swap what the slack hides, recompute the cheap rest", _greedy(), chooses=True),
    "keep-all": _Method("keep every tensor: the ideal step, if it fits", _baseline(baselines.keep_all)),
    "recompute-all": _Method("recompute each block from its input", _baseline(baselines.recompute_all)),
    "first-blocks": _Method("recompute only as many blocks as needed, the first ones", _baseline(baselines.first_blocks)),
    "swap-all": _Method("swap everything that can be, overlapped", _baseline(baselines.swap_all)),
    "recompute-only": _Method("greedy without swaps", _greedy(swap=False)),
    "swap-only": _Method("greedy without recomputation", _greedy(recompute=False)),
    "auto": _exact("greedy, what the relaxation suggests, a local search, an exact solver", "auto"),
    "cbc": _exact("the slack formulation by CBC, which comes with PuLP", "cbc"),
    "highs": _exact("the slack formulation by HiGHS, through PuLP", "highs"),
    "cp-sat": _exact("the slack formulation by OR-Tools CP-SAT", "cp-sat"),
    "milp": _exact("the slack formulation by a solver of your choice that PuLP lists", "milp", takes_solver=True),
}

METHODS = {name: method.meaning for name, method in _METHODS.items()}
"""The methods that `solve` knows, each with what it is in a line."""

HEURISTICS = tuple(name for name, method in _METHODS.items() if not method.runs_solver)
"""The methods that run no solver, so that none of a solver's options has an effect on them."""


def solve(
    instance: Instance,
    method: str = "greedy",
    *,
    budget: int | str | None = None,
    solver: str | None = None,
    bound: bool = False,
    tolerance: float = TOLERANCE,
    time_limit: float | None = None,
    threads: int | None = None,
    seed: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Plan an instance into its budget.

    A time limit, threads and a seed are for methods that run a solver, the time limit also for the bound; the others take no
    notice of them.

    Parameters
    ----------
    instance
        The step.
    method
        One of `METHODS`.
    budget
        Bytes, or a text such as ``"50%"`` of the unconstrained peak or ``"12GiB"``; by default the instance's own.
    solver
        For methods that run an exact solver of the caller's choice, its name.
    bound
        Whether to prove a lower bound on the makespan too, which gives the result its gap.
    tolerance
        The certified gap, as a share of the makespan, within which a result counts as optimal.
    time_limit
        Seconds after which an exact method returns the best that it has, and after which the proof of a bound is given up;
        None for no limit, though `auto` never leaves more than a minute to its exact solver. Greedy, whose plan every method
        begins with, runs to its end.
    threads
        Threads of an exact solver; None leaves the number to it.
    seed
        Of an exact solver's random choices.
    on_progress
        Called with the state of a long solve now and then.

    Returns
    -------
    Result
        The plan, its schedule, and what the simulator says of it; or why there is none.

    Raises
    ------
    InputError
        If a name is unknown or a value out of range.
    ImportError
        If the solver that a method runs is not installed; the message is the command that installs it.
    """
    chosen = _chosen(method)
    options = Options(solver, tolerance, time_limit, threads, seed, on_progress)
    _check_options(chosen, method, options)
    check_type(bound, bool, "'bound'", "true or false")
    instance = _budgeted(instance, budget)
    began = time.perf_counter_ns()
    if instance.budget is not None and instance.budget < max(instance.floor, default=0):
        return _infeasible(instance, method, began)
    answer = chosen.answer(instance, options)
    result = _judged(instance, method, answer, began)
    if bound and result.status is not Status.INFEASIBLE:
        result = _bounded(result, options)
    result = result.optimal_within(tolerance)
    log.info("%s on %s: %s", method, instance.name, result.status)
    return result


def compare(
    instance: Instance, methods: Iterable[str], *, budget: int | str | None = None, **options: Unpack[SolveOptions]
) -> tuple[Result, ...]:
    """Return the results of several methods on one instance, in their order; parameters are those of `solve`.

    See Also
    --------
    slackswap_opt.sweep.sweep : the same for several instances, budgets and bandwidths, with one proof for all methods.
    """
    methods = check_options(methods, **options)
    return tuple(solve(instance, method, budget=budget, **options) for method in methods)


def check_options(methods: Iterable[str], **options: Unpack[SolveOptions]) -> tuple[str, ...]:
    """Return the names of methods as a tuple.

    Raises
    ------
    InputError
        If a name is unknown, or an option is out of range or not one of a method's.
    """
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise InputError(f"'methods' must be a sequence of names, got {shown(methods)}")
    methods = tuple(methods)
    check_type(options.get("bound", False), bool, "'bound'", "true or false")
    of_methods: dict[str, Any] = {name: value for name, value in options.items() if name != "bound"}
    for method in methods:
        _check_options(_chosen(method), method, Options(**of_methods))
    return methods


def _chosen(method: str) -> _Method:
    if not isinstance(method, str) or method not in _METHODS:
        near = get_close_matches(str(method), _METHODS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise InputError(f"unknown method {shown(method)}; {hint}choose from {', '.join(_METHODS)}")
    return _METHODS[method]


def _check_options(chosen: _Method, method: str, options: Options) -> None:
    if options.solver is not None and not chosen.takes_solver:
        able = [name for name, other in _METHODS.items() if other.takes_solver]
        where = f"; methods that do: {', '.join(able)}" if able else ""
        raise InputError(f"method '{method}' takes no solver, got {shown(options.solver)}{where}")
    if not _is_number(options.tolerance) or not 0 <= options.tolerance < 1:
        raise InputError(f"tolerance must be a number from 0 to below 1, got {shown(options.tolerance)}")
    limit, threads, seed = options.time_limit, options.threads, options.seed
    if limit is not None and (not _is_number(limit) or limit < 0):
        raise InputError(f"time_limit must be 0 or more seconds, or None for no limit, got {shown(limit)}")
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise InputError(f"threads must be an integer of 1 or more, or None, got {shown(threads)}")
    if options.on_progress is not None and not callable(options.on_progress):
        raise InputError(f"on_progress must be a function, or None, got {shown(options.on_progress)}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise InputError(f"seed must be an integer from 0 to {2**31 - 1}, got {shown(seed)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _budgeted(instance: Instance, budget: int | str | None) -> Instance:
    check_type(instance, Instance, "'instance'", "an Instance, such as load('gpt2-xl') returns")
    if budget is None:
        return instance
    return instance.with_budget(parse_budget(budget, instance.peak) if isinstance(budget, str) else budget)


def _judged(instance: Instance, method: str, answer: Answer, began: int) -> Result:
    """Place and judge an answer."""
    schedule, message = answer.schedule, answer.message
    if schedule is None and answer.plan is not None:
        try:
            schedule = place(instance, answer.plan)
        except PlacementError as error:
            message = f"{method}: {error}"
    runtime = time.perf_counter_ns() - began
    if schedule is None:
        return Result(
            Status.INFEASIBLE if answer.infeasible else Status.UNKNOWN,
            method,
            instance,
            runtime=runtime,
            solver=answer.solver,
            solver_status=answer.solver_status,
            message=message,
            smallest_budget=smallest_budget(instance) if _METHODS[method].chooses else None,
        )
    return Result(
        Status.FEASIBLE,
        method,
        instance,
        answer.plan,
        schedule,
        simulate(instance, schedule),
        bound=answer.bound,
        runtime=runtime,
        solver=answer.solver,
        solver_status=answer.solver_status,
        message=message,
    )


def _bounded(result: Result, options: Options) -> Result:
    """Return a result with a certified lower bound on the makespan, or with the proof that nothing fits."""
    from slackswap_opt.formulations.certificate import lower_bound
    from slackswap_opt.formulations.relaxation import RelaxationError

    if result.instance.budget is None:
        return replace(result, bound=result.instance.ideal)
    began = time.monotonic()
    try:
        certificate = lower_bound(result.instance, time_limit=options.time_limit)
    except RelaxationError as error:
        return replace(result, message=f"no bound was proven: {error}")
    proven = result.certified(certificate)
    late = options.time_limit is not None and time.monotonic() - began >= options.time_limit
    if late and not proven.message and proven.bound == result.ideal != proven.makespan:
        message = f"no bound above the ideal step was proven within the time limit of {options.time_limit:g} s"
        proven = replace(proven, message=message)
    return proven


def _infeasible(instance: Instance, method: str, began: int) -> Result:
    """Return the result for a budget below what some operation needs and what cannot leave while it runs."""
    t = max(range(len(instance.floor)), key=lambda t: (instance.floor[t], -t))
    smallest = smallest_budget(instance)
    needs = f"{_needs(instance, t)}; the smallest budget with a plan is {smallest} bytes"
    message = f"no schedule fits in {instance.budget} bytes: {needs}"
    runtime = time.perf_counter_ns() - began
    return Result(Status.INFEASIBLE, method, instance, runtime=runtime, message=message, smallest_budget=smallest)


def _needs(instance: Instance, t: int) -> str:
    """Say what must be on the device while operation `t` runs, and what for."""
    operation = instance.operations[t]
    present = [i for i, accesses in enumerate(instance.accesses) if t in accesses]
    largest = sorted(present, key=lambda i: (-instance.tensors[i].size, i))
    parts = [f"'{instance.tensors[i].name}' {format_size(instance.tensors[i].size)}" for i in largest[:3]]
    parts += [f"{len(largest) - 3} more tensors"] * (len(largest) > 3)
    parts += [f"workspace {format_size(operation.workspace)}"] * (operation.workspace > 0)
    staying = instance.floor[t] - instance.need[t]
    parts += [f"tensors that cannot leave meanwhile {format_size(staying)}"] * (staying > 0)
    return f"while operation '{operation.name}' runs, {instance.floor[t]} bytes must be there ({', '.join(parts)})"
