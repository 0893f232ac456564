"""Random numbers: what is drawn in forward must be the same wherever it is drawn again."""

import torch
from torch import Tensor, nn

from tests.runtime.cases import Case, Scope, mean_square, normal, plain_step


def _dropping(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Dropout(0.25))


def _dropout_step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    torch.manual_seed(7 * iteration + 1)
    inputs = torch.rand(6, 12) - 0.5
    with scope():
        loss: Tensor = model(inputs).abs().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.item(), *torch.randn(2).tolist()]


CASES = {
    "dropout": Case(
        "masks are drawn anew when a block runs again, or the generator is left somewhere else than by plain training",
        ("0", "1"),
        lambda: nn.Sequential(_dropping(12), _dropping(12)),
        _dropout_step,
    ),
    "late_noise": Case(
        "the noise of a randomized leaky rectifier is filled after autograd has saved it: a copy made then holds garbage",
        ("0",),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(10, 14), nn.RReLU(0.2, 0.8)), nn.Linear(14, 2)),
        plain_step(normal(7, 10), mean_square),
    ),
}
