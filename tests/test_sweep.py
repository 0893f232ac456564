"""Sweeps: the order of results, any executor, and one bound for all methods at a point."""

from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest

from slackswap_opt.files import InputError
from slackswap_opt.formulations import certificate
from slackswap_opt.result import Result, Status
from slackswap_opt.solve import solve
from slackswap_opt.sweep import sweep
from tests.example import STEP

OTHER = replace(STEP, name="other")
METHODS, BUDGETS, BANDWIDTHS = ("greedy", "swap-only"), ("100%", 200), (10**9, "2GB/s")


def told(results: tuple[Result, ...]) -> list[tuple[object, ...]]:
    """What does not depend on the clock."""
    return [
        (r.instance.name, r.instance.link.offload_bandwidth, r.instance.budget, r.method, r.makespan, r.bound) for r in results
    ]


def test_results_come_by_instance_bandwidth_budget_and_method() -> None:
    results = sweep([STEP, OTHER], METHODS, budgets=BUDGETS, bandwidths=BANDWIDTHS)
    found = [point[:4] for point in told(results)]
    rates, sizes = (10**9, 2 * 10**9), (300, 200)
    assert found == [(name, b, m, method) for name in ("step", "other") for b in rates for m in sizes for method in METHODS]
    # Keeping all takes 1100 ns. A copy of 100 bytes back takes 100 ns at 1 GB/s, which nothing hides, and 50 at 2 GB/s.
    assert [r.makespan for r in results[:8]] == [1100, 1100, 1200, 1200, 1100, 1100, 1150, 1150]


@pytest.mark.parametrize("processes", [False, True])
def test_an_executor_changes_nothing(processes: bool) -> None:
    done: list[tuple[int, int]] = []
    alone = sweep([STEP, OTHER], METHODS, budgets=BUDGETS, bound=True)
    pool: Executor
    if processes:
        pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    else:
        pool = ThreadPoolExecutor(2)
    with pool:
        spread = sweep(
            [STEP, OTHER], METHODS, budgets=BUDGETS, bound=True, executor=pool, on_done=lambda *state: done.append(state)
        )
    assert told(spread) == told(alone)
    assert done == [(n, 4) for n in (1, 2, 3, 4)]


def test_one_certificate_serves_all_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = certificate.lower_bound

    def counted(*arguments: object, **options: object) -> certificate.Certificate:
        made.append(arguments)
        return original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(certificate, "lower_bound", counted)
    methods = ("keep-all", "greedy", "recompute-only")
    together = sweep([STEP], methods, bound=True)
    assert len(made) == 1
    apart = [solve(STEP, method, bound=True) for method in methods]
    assert [(r.status, r.bound, r.gap) for r in together] == [(r.status, r.bound, r.gap) for r in apart]
    assert len({id(r.certificate) for r in together}) == 1


def test_what_is_proven_impossible_is_so_for_all_methods() -> None:
    # Nothing may leave, and a, b and c are all alive in h: 300 bytes, for a budget of 200.
    fixed = replace(
        STEP,
        tensors=tuple(replace(tensor, swappable=False) for tensor in STEP.tensors),
        operations=tuple(replace(operation, recomputable=False) for operation in STEP.operations),
    )
    assert [r.status for r in sweep([fixed], ("keep-all", "greedy"), bound=True)] == [Status.INFEASIBLE] * 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"budgets": ["50%", "12"]}, "budget needs a unit"),
        ({"budgets": "50%"}, "'budgets' must be a sequence, got '50%'"),
        ({"bandwidths": "25GB/s"}, "'bandwidths' must be a sequence, got '25GB/s'"),
        ({"solver": "CBC"}, "method 'greedy' takes no solver"),
        ({"bandwidths": ["fast"]}, "bandwidth must be"),
        ({"bandwidths": [0]}, "offload_bandwidth"),
        ({"time_limit": -1.0}, "time_limit"),
    ],
)
def test_bad_points_are_refused_before_anything_is_solved(
    options: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackswap_opt.sweep.solve", None)
    with pytest.raises(InputError, match=reason):
        sweep([STEP], ["greedy"], **options)  # type: ignore[arg-type]
    with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match=reason):
        sweep([STEP], ["greedy"], executor=pool, **options)  # type: ignore[arg-type]
