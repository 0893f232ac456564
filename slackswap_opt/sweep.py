"""Methods over budgets and bandwidths: every combination, on any executor, in an order that does not depend on it."""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

from slackswap_opt.files import InputError, check_type, shown
from slackswap_opt.instance import Instance
from slackswap_opt.result import TOLERANCE, Result, SolveOptions, Status
from slackswap_opt.solve import check_options, solve
from slackswap_opt.units import parse_bandwidth, parse_budget

if TYPE_CHECKING:
    from slackswap_opt.formulations.certificate import Certificate


def sweep(
    instances: Iterable[Instance],
    methods: Iterable[str],
    *,
    budgets: Iterable[int | str | None] = (None,),
    bandwidths: Iterable[int | str | None] = (None,),
    executor: Executor | None = None,
    on_done: Callable[[int, int], None] | None = None,
    **options: Unpack[SolveOptions],
) -> tuple[Result, ...]:
    """Return the results of methods on instances, for every budget over every bandwidth.

    Parameters
    ----------
    instances, methods
        The steps, and names of methods.
    budgets
        Each as for `solve`: bytes, a text such as ``"50%"`` or ``"12GiB"``, or None for the instance's own.
    bandwidths
        Of the link in both directions: bytes per second, a text such as ``"25GB/s"``, or None for the instance's own.
    executor
        Where to run: a pool of threads or processes, or any other; by default here, one after the other. The methods on one
        instance, budget and bandwidth are one task. It stays open.
    on_done
        Called here with the number of tasks that are done and of all tasks, whenever one is.
    **options
        As for `solve`. A bound is proven once for all methods on the same instance, budget and bandwidth.

    Returns
    -------
    tuple of Result
        By instance, then bandwidth, then budget, then method, in the order given.

    Raises
    ------
    InputError
        If a method, budget, bandwidth or option is not one; before anything is solved.
    """
    methods = check_options(methods, **options)
    budgets, bandwidths = _several("budgets", budgets), _several("bandwidths", bandwidths)
    instances = tuple(instances) if isinstance(instances, Iterable) else (instances,)
    for n, instance in enumerate(instances):
        check_type(instance, Instance, f"instances[{n}]", "an Instance")
    linked = [_with_bandwidth(instance, bandwidth) for instance in instances for bandwidth in bandwidths]
    tasks = [_Task(_with_budget(instance, budget), methods, options) for instance in linked for budget in budgets]
    found = _here(tasks, on_done) if executor is None else _on(executor, tasks, on_done)
    return tuple(result for results in found for result in results)


@dataclass(frozen=True, slots=True)
class _Task:
    """Methods on one instance and budget; what is not said of an attribute is as for `sweep`."""

    instance: Instance
    methods: tuple[str, ...]
    options: SolveOptions


def _several(what: str, values: Iterable[int | str | None]) -> tuple[int | str | None, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"'{what}' must be a sequence, got {shown(values)}")
    return tuple(values)


def _with_budget(instance: Instance, budget: int | str | None) -> Instance:
    if budget is None:
        return instance
    return instance.with_budget(parse_budget(budget, instance.peak) if isinstance(budget, str) else budget)


def _with_bandwidth(instance: Instance, bandwidth: int | str | None) -> Instance:
    if bandwidth is None:
        return instance
    rate = parse_bandwidth(bandwidth) if isinstance(bandwidth, str) else bandwidth
    return instance.with_link(replace(instance.link, offload_bandwidth=rate, prefetch_bandwidth=rate))


def _here(tasks: list[_Task], on_done: Callable[[int, int], None] | None) -> list[tuple[Result, ...]]:
    found = []
    for task in tasks:
        found.append(_results(task))
        if on_done is not None:
            on_done(len(found), len(tasks))
    return found


def _on(executor: Executor, tasks: list[_Task], on_done: Callable[[int, int], None] | None) -> list[tuple[Result, ...]]:
    futures = [executor.submit(_results, task) for task in tasks]
    try:
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            if on_done is not None:
                on_done(done, len(tasks))
    finally:
        for future in futures:
            future.cancel()
    return [future.result() for future in futures]


def _results(task: _Task) -> tuple[Result, ...]:
    """Return the results of a task; the first certificate that is made serves the methods after it too."""
    options = task.options.copy()
    results: list[Result] = []
    certificate: Certificate | None = None
    for method in task.methods:
        result = solve(task.instance, method, **options)
        if certificate is not None and result.status is not Status.INFEASIBLE:
            result = result.certified(certificate).optimal_within(options.get("tolerance", TOLERANCE))
        certificate = certificate or result.certificate
        options["bound"] = options.get("bound", False) and certificate is None
        results.append(result)
    return tuple(results)
