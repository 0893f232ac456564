"""The largest batch that a budget holds, on a network whose memory is known."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from slackswap_opt.files import InputError
from slackswap_opt.runtime import largest_batch, profile_fake


def build(batch: int) -> Callable[[], Any]:
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))
    return lambda: model(torch.ones(batch, 64)).sum().backward()


def need(batch: int) -> tuple[int, int]:
    """Return the smallest budget of any schedule, and that of keeping everything."""
    instance = profile_fake(lambda: build(batch)).instance
    return max(instance.floor), instance.peak


@pytest.mark.parametrize("batch", [1, 6])
def test_the_next_batch_would_not_fit(batch: int) -> None:
    found, result = largest_batch(build, need(batch)[0])
    assert found == batch
    assert result.peak is not None
    assert result.peak <= need(batch)[0] < need(batch + 1)[0]


def test_throughput_can_be_asked_for() -> None:
    # All of it is kept only where nothing has to leave.
    found, result = largest_batch(build, need(5)[1], retained=1.0)
    assert found == 5
    assert result.retained == 1.0


def test_not_even_one_sequence_fits() -> None:
    with pytest.raises(InputError, match="not even a batch of one fits: no schedule fits in 1000 bytes"):
        largest_batch(build, 1000)


def test_a_share_is_not_a_percentage() -> None:
    with pytest.raises(InputError, match="'retained' is a share from 0 to 1, got 95"):
        largest_batch(build, 1000, retained=95)
