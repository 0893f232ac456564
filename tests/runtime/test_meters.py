"""Lifetimes are real: plain training holds, at every operation, the bytes that the instance says, by two meters of its own."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from slackswap_opt.runtime import Profile, profile
from tests.runtime.cases import CASES
from tests.runtime.meters import Reading, allocated, living, untouched_peak


def plain(model: nn.Module, run: Callable[[], object]) -> Callable[[], object]:
    """Return a step that starts without gradients, as every profiled run did."""
    for parameter in model.parameters():
        parameter.grad = None
    return run


def undetached(readings: list[Reading]) -> list[Reading]:
    """Leave out the views that autograd adds where saved tensors pass hooks: they hold nothing."""
    return [reading for reading in readings if reading.function != "aten.detach.default"]


def predicted(result: Profile, *, workspace: bool) -> list[Reading]:
    operations, memory = result.instance.operations, result.instance.keep_all_memory
    return [
        Reading(facts.function, held if workspace else held - operation.workspace)
        for facts, operation, held in zip(result.operations, operations, memory, strict=True)
    ]


def check(model: nn.Module, step: Callable[[], object]) -> Profile:
    result = profile(step, timed=False)
    assert undetached(predicted(result, workspace=False)) == undetached(living(plain(model, step)))
    assert undetached(predicted(result, workspace=True)) == undetached(allocated(plain(model, step)))
    return result


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    model, step = CASES[name].make()
    check(model, lambda: step(model, 1, nullcontext))


@pytest.mark.parametrize("name", ["dropout", "batch_norm", "large_head", "channels_last", "expanded_mask"])
def test_cases_with_no_mode_at_all_hold_no_more(name: str) -> None:
    # Without a dispatch mode autograd adds some gradients in place. The allowance is for numbers that Python code passes.
    model, step = CASES[name].make()
    result = profile(lambda: step(model, 1, nullcontext), timed=False)
    peak = untouched_peak(plain(model, lambda: step(model, 1, nullcontext)))
    assert result.instance.peak - 64 <= peak <= result.instance.peak + 64


class Layer(nn.Module):
    """A transformer layer with every trap: views of one projection, fused attention, dropout, sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow, self.dropout = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inputs(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.dropout(self.output(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.narrow(functional.gelu(self.wide(self.norm_2(x)))))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Four layers between a table of embeddings and a head that is the same table."""

    def __init__(self, vocabulary: int = 61, width: int = 32, heads: int = 4, length: int = 16) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(4))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.table.weight)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_transformer(autocast: bool) -> None:
    torch.manual_seed(0)
    model, tokens = Transformer(), torch.randint(0, 61, (3, 16))

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()  # type: ignore[no-untyped-call]

    result = check(model, step)
    assert len(result.instance.operations) > 300
    assert {operation.block for operation in result.instance.operations} == {None, *(f"layers.{k}" for k in range(4))}
