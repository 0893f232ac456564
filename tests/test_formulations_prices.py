"""Prices are what the bound really changes by."""

from dataclasses import replace

import pytest

from slackswap_opt.files import InputError
from slackswap_opt.formulations.certificate import lower_bound
from slackswap_opt.formulations.prices import GB, GIB, prices
from slackswap_opt.instance import Instance
from slackswap_opt.instances import load
from tests.handmade import step


def at_half(name: str, *, duplex: bool = True) -> Instance:
    instance = load(name, layers=6)
    return instance.with_budget(instance.peak // 2).with_link(replace(instance.link, duplex=duplex))


def bound(instance: Instance) -> int:
    certificate = lower_bound(instance)
    assert certificate.bound is not None
    return certificate.bound


@pytest.mark.parametrize("name", ["bert-large", "llama-7b"])
@pytest.mark.parametrize("duplex", [True, False])
def test_prices_are_the_slopes_of_the_bound(name: str, duplex: bool) -> None:
    instance = at_half(name, duplex=duplex)
    found, here = prices(instance), bound(instance)
    size = 2**24
    assert instance.budget is not None
    assert (here - bound(instance.with_budget(instance.budget + size))) / size * GIB == pytest.approx(found.memory, rel=0.02)
    for field, price in (("offload_bandwidth", found.offload), ("prefetch_bandwidth", found.prefetch)):
        link = replace(instance.link, **{field: getattr(instance.link, field) + GB // 20})
        slope = (here - bound(instance.with_link(link))) * 20
        assert slope == pytest.approx(price, rel=0.05, abs=5000)


def test_a_budget_that_does_not_bind_costs_nothing() -> None:
    instance = load("bert-large", layers=2)
    for budget in (None, instance.peak):
        found = prices(instance.with_budget(budget))
        assert (found.memory, found.offload, found.prefetch, found.operations, found.intervals) == (0, 0, 0, (), ())


def test_where_nothing_fits_memory_has_no_price() -> None:
    # a and b are both read in h, and c is written.
    fixed = step("f! 5: -> a=4!", "g! 5: -> b=4!", "h 5: a b -> c=4!", budget=11)
    with pytest.raises(InputError, match="no schedule of 'step' fits in 11 bytes"):
        prices(fixed)


def test_operations_and_intervals_that_bind_come_first() -> None:
    instance = at_half("bert-large")
    found = prices(instance)
    assert sum(price for _, price in found.operations) == pytest.approx(found.memory)
    assert instance.budget is not None
    for t, price in found.operations:
        assert price > 0
        assert instance.keep_all_memory[t] > instance.budget
    costs = [cost for _, cost in found.intervals]
    assert costs == sorted(costs, reverse=True)
    binding = {t for t, _ in found.operations}
    assert all(any(interval.start < t < interval.end for t in binding) for interval, _ in found.intervals)
