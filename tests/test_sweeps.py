"""Every model from a fifth of its unconstrained peak up to all of it, and the three large ones at half against what people do.

Small versions run by default; the full sizes are marked slow.
"""

from functools import cache
from typing import Any

import pytest

from slackswap_opt import Instance, Result, load, solve
from slackswap_opt.instances import names, random_instance

BUDGETS = range(20, 101, 10)
"""In percent of the unconstrained peak."""
TOLERATED = 0.002
"""By how much a budget may retain more than a larger one."""
BASELINES = ("keep-all", "recompute-all", "first-blocks", "swap-all")
SMALL: dict[str, dict[str, Any]] = {
    "bert-large": {"layers": 2, "vocabulary": 2000},
    "gpt2-xl": {"layers": 2, "vocabulary": 2000},
    "llama-7b": {"layers": 2, "vocabulary": 2000},
    "resnet-50": {"batch": 4},
    "chain": {"blocks": 12},
    "random": {"tensors": 50},
}


@cache
def step(name: str, full: bool) -> Instance:
    return load(name, **({} if full else SMALL[name]))


@cache
def swept(name: str, full: bool) -> dict[int, Result]:
    """Return greedy's result for each budget in percent."""
    return {percent: solve(step(name, full), budget=f"{percent}%") for percent in BUDGETS}


def sizes(names: tuple[str, ...]) -> list[Any]:
    """Return each name small, and in full, marked slow."""
    small = [pytest.param(name, False, id=f"{name}-small") for name in names]
    return small + [pytest.param(name, True, id=name, marks=pytest.mark.slow) for name in names]


def test_there_is_a_small_version_of_each_model() -> None:
    assert set(SMALL) == set(names())


@pytest.mark.parametrize(("name", "full"), sizes(names()))
def test_the_budget_holds_and_what_fits_has_a_plan(name: str, full: bool) -> None:
    instance = step(name, full)
    for percent, result in swept(name, full).items():
        budget = instance.peak * percent // 100
        if all(tensor.swappable for tensor in instance.tensors):
            assert (result.schedule is not None) == (budget >= instance.largest_need), percent
        if result.schedule is not None:
            assert result.peak is not None
            assert result.peak <= budget
    assert swept(name, full)[100].makespan == instance.ideal


@pytest.mark.parametrize(("name", "full"), sizes(names()))
def test_no_budget_is_noticeably_better_than_a_larger_one(name: str, full: bool) -> None:
    retained = {percent: result.retained or 0.0 for percent, result in swept(name, full).items()}
    worse = {
        (small, large): f"{retained[small]:.2%} > {retained[large]:.2%}"
        for small in retained
        for large in retained
        if small < large and retained[small] > retained[large] + TOLERATED
    }
    assert not worse


@pytest.mark.parametrize(("name", "full"), sizes(names()))
def test_there_is_a_plan_where_a_baseline_has_one_and_it_is_no_longer(name: str, full: bool) -> None:
    instance = step(name, full)
    for percent, result in swept(name, full).items():
        for method in BASELINES:
            baseline = solve(instance, method, budget=f"{percent}%")
            if baseline.makespan is not None:
                assert result.makespan is not None, (percent, method)
                assert result.makespan <= baseline.makespan, (percent, method)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int) -> None:
    instance = random_instance(seed, tensors=120)
    retained = 0.0
    for percent in BUDGETS:
        result = solve(instance, budget=f"{percent}%")
        if result.schedule is None:
            assert retained == 0.0, percent
            continue
        assert result.peak is not None
        assert result.retained is not None
        assert result.peak <= instance.peak * percent // 100
        assert result.retained >= retained - TOLERATED, percent
        retained = max(retained, result.retained)


@pytest.mark.parametrize(("name", "least"), [("bert-large", 0.945), ("gpt2-xl", 0.972), ("llama-7b", 0.994)])
def test_half_the_peak_of_the_seed_models(name: str, least: float) -> None:
    instance = load(name)
    retained = {
        method: solve(instance, method, budget="50%").retained for method in ("greedy", "recompute-all", "recompute-only")
    }
    greedy, recompute_all, recompute_only = retained.values()
    assert greedy is not None
    assert recompute_all is not None
    assert recompute_only is not None
    assert greedy >= least
    assert greedy >= recompute_all + 0.10
    assert greedy > recompute_only
