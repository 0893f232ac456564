"""Greedy, its certified gap and the baselines over budgets, links and ways of attention, and on profiled steps."""

from dataclasses import replace

from slackswap_opt import Result, Status, load, solve
from slackswap_opt.formulations.certificate import lower_bound
from slackswap_opt.hardware import get
from slackswap_opt.instance import Instance
from tests.benchmarks.results.table import (
    ALONE,
    BEST,
    GAIN,
    NONE,
    Row,
    Table,
    at_most,
    gain,
    gap,
    largest_gap,
    reached,
    recomputation,
)

MODELS = ("bert-large", "gpt2-xl", "llama-7b", "resnet-50")
PROFILES = tuple(f"library/{name}" for name in ("bert-large", "gpt2-xl", "llama-7b", "moe", "resnet-50", "unet"))
BUDGETS = (20, 30, 40, 50, 60, 70, 80, 90)
BASELINES = (ALONE, "swap-only", "first-blocks", "recompute-all", "swap-all", "keep-all")
LINKS = ("8", "16", "25", "32", "64", "C2C", "gh200")
SECONDS = 10.0
"""How long the best plan that only recomputes is looked for."""
SEARCHING = 30.0
"""How long `auto` looks for a plan that is better than greedy's."""
AUTO, AUTOS_GAP = "auto", "auto's gap"


def at(instance: Instance, percent: int) -> Instance:
    """Return an instance with a budget in percent of its peak."""
    return instance.with_budget(instance.peak * percent // 100)


def without_swaps(instance: Instance) -> Instance:
    """Return the instance with swapping switched off: the slack formulation is then one of recomputation."""
    return replace(instance, tensors=tuple(replace(tensor, swappable=False) for tensor in instance.tensors))


def best_recompute_only(instance: Instance, seconds: float) -> tuple[str, int | None]:
    """Return the certified interval of the best plan that only recomputes, and the bound on its makespan.

    `auto` looks for it: greedy, the rounded relaxation, a local search, HiGHS. None stands for a proof that nothing fits.
    """
    instance = without_swaps(instance)
    result = solve(instance, "auto", time_limit=seconds, threads=1)
    bound = None if result.status is Status.INFEASIBLE else lower_bound(instance).bound
    if bound is None:
        return NONE, None
    return f"{reached(result)} to {at_most(instance.ideal, bound)}", bound


def judged(instance: Instance) -> tuple[Result, int | None, Row]:
    """Return greedy's result, the certified bound, and the cells for the two and for the gap."""
    result, bound = solve(instance, "greedy"), lower_bound(instance).bound
    return result, bound, (reached(result), at_most(instance.ideal, bound), gap(result.makespan, bound))


def budget_row(model: str, percent: int, seconds: float = SECONDS, searching: float = SEARCHING) -> Row:
    """Return greedy, bound, gap, auto and all baselines at one budget."""
    instance = at(load(model), percent)
    result, least, cells = judged(instance)
    longer = solve(instance, AUTO, time_limit=searching, threads=1)
    interval, bound = best_recompute_only(instance, seconds)
    others = (reached(solve(instance, name)) for name in BASELINES)
    found = (reached(longer), gap(longer.makespan, least))
    return (f"{percent} %", *cells, *found, interval, gain(result, bound), *others)


def profile_row(name: str, percent: int, seconds: float = SECONDS) -> Row:
    """Return greedy, bound, gap and recomputation alone on a profiled step."""
    instance = at(load(name), percent)
    result, _, cells = judged(instance)
    interval, bound = best_recompute_only(instance, seconds)
    return (f"{name} {percent} %", *cells, reached(solve(instance, ALONE)), interval, gain(result, bound))


def link_row(model: str, link: str) -> Row:
    """Return greedy, bound, gap and swapping alone behind one link, at half of the peak."""
    instance = at(load(model, hardware="gh200") if link == "gh200" else load(model), 50)
    if link == "C2C":
        instance = instance.with_link(get("gh200").link())
    elif link != "gh200":
        rate = int(link) * 10**9
        instance = instance.with_link(replace(instance.link, offload_bandwidth=rate, prefetch_bandwidth=rate))
    words = {"C2C": "NVLink-C2C", "gh200": "NVLink-C2C, and its GPU"}.get(link, f"{link} GB/s")
    _, _, cells = judged(instance)
    return (f"{model} {words}", *cells, reached(solve(instance, "swap-only")), reached(solve(instance, "swap-all")))


def attention_row(model: str, attention: str, percent: int, seconds: float = SECONDS) -> Row:
    """Return peak, ideal step, greedy, bound, gap and recomputation alone with one way of attention."""
    instance = at(load(model, attention=attention), percent)
    result, _, cells = judged(instance)
    interval, bound = best_recompute_only(instance, seconds)
    sizes = (f"{instance.peak / 1e9:.2f} GB", f"{instance.ideal / 1e6:.1f} ms")
    return (f"{model} {attention} {percent} %", *sizes, *cells, interval, gain(result, bound))


JUDGED = ("greedy", "no schedule exceeds", "gap")
TABLES = {
    **{
        f"budgets {model}": Table(
            ("budget", *JUDGED, AUTO, AUTOS_GAP, BEST, GAIN, *BASELINES),
            tuple((model, percent) for percent in BUDGETS),
            budget_row,
            recomputation,
        )
        for model in MODELS
    },
    "links": Table(
        ("model, link", *JUDGED, "swap-only", "swap-all"),
        tuple((model, link) for model in MODELS for link in LINKS),
        link_row,
        largest_gap,
    ),
    "attention": Table(
        ("model, attention, budget", "peak", "ideal step", *JUDGED, BEST, GAIN),
        tuple((model, way, percent) for model in MODELS[:3] for way in ("flash", "eager") for percent in (30, 50, 70)),
        attention_row,
        recomputation,
    ),
    "profiles": Table(
        ("step, budget", *JUDGED, ALONE, BEST, GAIN),
        tuple((name, percent) for name in PROFILES for percent in (30, 50, 70)),
        profile_row,
        recomputation,
    ),
}
