"""Language models in plain PyTorch, of the shapes that others publish, train under budgets as they do without."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from slackswap_opt.runtime.language_models import Bert, Gpt2, Llama, Shape
from tests.runtime.budgets import check
from tests.runtime.cases import Case, Scope

SHAPE = Shape(layers=2, width=16, heads=2, feed_forward=32, vocabulary=31, length=8)
MODELS: dict[str, tuple[type[nn.Module], Shape]] = {
    "bert": (Bert, replace(SHAPE, dropout=0.1)),
    "gpt-2": (Gpt2, replace(SHAPE, dropout=0.1)),
    "llama": (Llama, SHAPE),
    "mixture of experts": (Llama, replace(SHAPE, experts=4)),
}


def step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    torch.manual_seed(iteration)
    tokens = torch.randint(0, SHAPE.vocabulary, (2, SHAPE.length))
    with scope():
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.item()]


@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward after"])
@pytest.mark.parametrize("name", MODELS)
def test_language_models(name: str, inside: bool) -> None:
    model, shape = MODELS[name]
    check(Case("", (), lambda: model(shape), step), inside=inside)
