"""Durations by the clock: what is repeated, what is not, and what they add up to."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from slackswap_opt.instance import Link
from slackswap_opt.runtime import LinkRates, profile, profiler
from slackswap_opt.runtime.durations import REPEATS, OnDevice
from slackswap_opt.runtime.signatures import signature


def measured(function: Any, *args: Any, device: OnDevice | None = None) -> tuple[list[torch.Tensor], int, int]:
    """Return the results of all runs of an operation that is measured once, its duration and its bytes."""
    results: list[torch.Tensor] = []

    class Counted:
        """An operator that keeps what it returned."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            results.append(function(*args, **kwargs))
            return results[-1]

    _, duration, peak = (device or OnDevice(timed=True)).run(signature(function), Counted(), args, {})
    return results, duration, peak


def test_what_leaves_no_trace_is_repeated_once_a_kind() -> None:
    device, x = OnDevice(timed=True), torch.ones(64, 64)
    runs, duration, peak = measured(torch.ops.aten.mm.default, x, x, device=device)
    assert len(runs) == 1 + REPEATS + 1
    assert duration > 0
    assert peak >= 64 * 64 * 4
    assert len(measured(torch.ops.aten.mm.default, x, x, device=device)[0]) == 1
    assert len(measured(torch.ops.aten.mm.default, x.t(), x, device=device)[0]) == 1 + REPEATS + 1


@pytest.mark.parametrize("function", [torch.ops.aten.add_.Tensor, torch.ops.aten.bernoulli.default])
def test_what_changes_its_arguments_or_draws_numbers_runs_once(function: Any) -> None:
    x = torch.full((8,), 0.5)
    args = (x, torch.ones(8)) if function is torch.ops.aten.add_.Tensor else (x,)
    assert len(measured(function, *args)[0]) == 1


def test_batch_norm_runs_once_as_it_writes_what_it_does_not_say() -> None:
    function = torch.ops.aten.native_batch_norm.default
    mean, variance = torch.zeros(3), torch.ones(3)
    assert len(measured(function, torch.ones(2, 3), None, None, mean, variance, True, 0.1, 1e-5)[0]) == 1
    assert torch.allclose(mean, torch.full((3,), 0.1))


def test_untimed_operations_run_once() -> None:
    runs, duration, _ = measured(torch.ops.aten.mm.default, torch.ones(2, 2), torch.ones(2, 2), device=OnDevice(timed=False))
    assert (len(runs), duration) == (1, 0)


def test_bytes_are_the_most_at_any_moment() -> None:
    # A mean over all: 4 bytes for the sum, which becomes the result; the count as a number of 8 bytes, and as a float of 4.
    assert measured(torch.ops.aten.mean.default, torch.ones(100))[2] == 4 + 8 + 4


def timed_step() -> Callable[[], Any]:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.ones(128, 64)
    return lambda: model(x).square().mean().backward()


def test_durations_are_scaled_to_a_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounding takes less than a nanosecond of each operation.
    monkeypatch.setattr(profiler, "_measured", lambda *_: 1_000_000_000)
    result = profile(timed_step())
    assert 1_000_000_000 - len(result.operations) < result.instance.ideal <= 1_000_000_000
    products = [o.duration for o in result.instance.operations if "mm" in o.name]
    views = [o.duration for o, facts in zip(result.instance.operations, result.operations, strict=True) if facts.view]
    assert min(products) > 0
    assert set(views) == {0}


def test_repeats_are_no_operations_of_the_step() -> None:

    timed, untimed = profile(timed_step()), profile(timed_step(), timed=False)
    assert [o.function for o in timed.operations] == [o.function for o in untimed.operations]
    assert timed.instance.fingerprint == untimed.instance.fingerprint


def test_a_link_that_carries_more_both_ways_is_duplex() -> None:
    # 24 and 13 GB/s together are more than 4/3 of 25: both ways count, at the rates that they have together.
    rates = LinkRates(25_000_000_000, 25_000_000_000, 24_000_000_000, 13_000_000_000, 7_000)
    assert rates.link() == Link(24_000_000_000, 13_000_000_000, 7_000, True)


def test_a_link_that_carries_no_more_both_ways_is_shared() -> None:
    rates = LinkRates(12_000_000_000, 12_000_000_000, 6_000_000_000, 6_500_000_000, 7_000)
    assert rates.link() == Link(12_000_000_000, 12_000_000_000, 7_000, False)
