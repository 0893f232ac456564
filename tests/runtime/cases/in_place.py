"""Writes in place on what autograd saves as a result."""

import torch
from torch import Tensor, nn

from tests.runtime.cases import Case, normal, plain_step


class _Overwriting(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(self.norm(x)).tanh_()
        out: Tensor = self.second(hidden)
        out.add_(x)
        return torch.relu_(out)


def _distance(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    result: Tensor = model(*inputs)
    return (result - 0.1).abs().sum()


CASES = {
    "in_place_residual": Case(
        "activations and a residual sum are written over the result of another operation",
        ("0", "1"),
        lambda: nn.Sequential(_Overwriting(10), _Overwriting(10)),
        plain_step(normal(4, 10), _distance),
    )
}
