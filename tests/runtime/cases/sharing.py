"""One parameter or one module in several places, and parameters that do not train."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.cases import Case, Scope, plain_step


class _Tied(nn.Module):
    """The table of embeddings is the head too, once as it is and once through a transposed copy."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.body = nn.Sequential(nn.Linear(width, 3 * width), nn.ReLU(), nn.Linear(3 * width, width))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        copied = self.table.weight.t().contiguous()
        return self.head(self.body(x) - x) + 0.2 * x @ copied  # type: ignore[no-any-return]


class _Repeated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(width, width), nn.Softsign(), nn.Dropout(0.1))
        self.end = nn.Linear(width, 2)
        self.fired: list[int] = []
        next(self.layer.parameters()).register_hook(lambda _: self.fired.append(1))  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.layer(self.layer(self.layer(x)) + x))  # type: ignore[no-any-return]


class _Adapted(nn.Module):
    """A frozen layer beside a low-rank one that trains."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, 3, bias=False), nn.Linear(3, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.frozen(x) + self.up(self.down(x)))


def _next_token(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    (tokens,) = inputs
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def _repeated_step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    assert isinstance(model, _Repeated)
    torch.manual_seed(50 + iteration)
    model.fired.clear()
    with scope():
        loss = model(torch.randn(4, 8)).square().sum()
    loss.backward()
    return [loss.item(), float(len(model.fired))]


def _adapted_step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    torch.manual_seed(60 + iteration)
    tokens = torch.randint(0, 15, (2, 5))
    with scope():
        loss = model(tokens).square().mean()
    loss.backward()
    trained = [p for p in model.parameters() if p.grad is not None]
    return [loss.item(), float(len(trained))]


CASES = {
    "tied_table": Case(
        "a parameter that is saved, also transposed, is taken for an activation and moved",
        ("body",),
        lambda: _Tied(40, 12),
        plain_step(lambda _: (torch.randint(0, 40, (3, 6)),), _next_token),
    ),
    "one_block_three_times": Case(
        "plans that know blocks by name or by id mix up the calls; hooks on gradients fire more than once",
        ("layer",),
        lambda: _Repeated(8),
        _repeated_step,
    ),
    "frozen_base": Case(
        "inputs need no gradient and most parameters do not train: the first adapters must still get theirs",
        ("1", "2"),
        lambda: nn.Sequential(nn.Embedding(15, 10).requires_grad_(False), _Adapted(10), _Adapted(10)),
        _adapted_step,
    ),
}
