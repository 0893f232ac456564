"""Methods over budgets and bandwidths: every combination, on any executor, in an order that does not depend on it."""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slackswap_opt.instance import Instance
from slackswap_opt.result import Result, Status
from slackswap_opt.solve import solve
from slackswap_opt.units import parse_bandwidth

if TYPE_CHECKING:
    from slackswap_opt.formulations.certificate import Certificate


def sweep(
    instances: Iterable[Instance],
    methods: Iterable[str],
    *,
    budgets: Iterable[int | str | None] = (None,),
    bandwidths: Iterable[int | str | None] = (None,),
    bound: bool = False,
    tolerance: float = 1e-4,
    time_limit: float | None = None,
    executor: Executor | None = None,
    on_done: Callable[[int, int], None] | None = None,
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
    bound
        Whether to prove a lower bound on the makespan, once for all methods on the same instance, budget and bandwidth.
    tolerance, time_limit
        As for `solve`.
    executor
        Where to run: a pool of threads or processes, or any other; by default here, one after the other. The methods on one
        instance, budget and bandwidth are one task. It stays open.
    on_done
        Called here with the number of tasks that are done and of all tasks, whenever one is.

    Returns
    -------
    tuple of Result
        By instance, then bandwidth, then budget, then method, in the order given.

    Raises
    ------
    InputError
        If a method, budget or bandwidth is not one.
    """
    methods, budgets = tuple(methods), tuple(budgets)
    linked = [_with_bandwidth(instance, bandwidth) for instance, bandwidth in _pairs(instances, tuple(bandwidths))]
    tasks = [_Task(instance, budget, methods, bound, tolerance, time_limit) for instance in linked for budget in budgets]
    found = _here(tasks, on_done) if executor is None else _on(executor, tasks, on_done)
    return tuple(result for results in found for result in results)


@dataclass(frozen=True, slots=True)
class _Task:
    """Methods on one instance and budget; what is not said of an attribute is as for `sweep`."""

    instance: Instance
    budget: int | str | None
    methods: tuple[str, ...]
    bound: bool
    tolerance: float
    time_limit: float | None

    def solve(self, method: str, *, bound: bool) -> Result:
        """Return the result of one method."""
        return solve(
            self.instance, method, budget=self.budget, bound=bound, tolerance=self.tolerance, time_limit=self.time_limit
        )


def _pairs(instances: Iterable[Instance], bandwidths: tuple[int | str | None, ...]) -> list[tuple[Instance, int | str | None]]:
    return [(instance, bandwidth) for instance in instances for bandwidth in bandwidths]


def _with_bandwidth(instance: Instance, bandwidth: int | str | None) -> Instance:
    if bandwidth is None:
        return instance
    rate = parse_bandwidth(bandwidth) if isinstance(bandwidth, str) else bandwidth
    return replace(instance, link=replace(instance.link, offload_bandwidth=rate, prefetch_bandwidth=rate))


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
    results: list[Result] = []
    certificate: Certificate | None = None
    for method in task.methods:
        result = task.solve(method, bound=task.bound and certificate is None)
        if certificate is None:
            certificate = result.certificate
        elif result.status is not Status.INFEASIBLE:
            result = _bounded(result, certificate, task.tolerance) or task.solve(method, bound=True)
        results.append(result)
    return tuple(results)


def _bounded(result: Result, certificate: "Certificate", tolerance: float) -> Result | None:
    """Return a result with the bound that a certificate of its instance proves, or None where the two contradict."""
    if certificate.bound is None:
        return None if result.schedule else replace(result, status=Status.INFEASIBLE, certificate=certificate)
    if result.makespan is not None and result.makespan < certificate.bound:
        return None
    proven = replace(result, bound=max(certificate.bound, result.bound or 0), certificate=certificate)
    optimal = proven.gap is not None and proven.gap <= tolerance
    return replace(proven, status=Status.OPTIMAL) if optimal else proven
