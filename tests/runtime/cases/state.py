"""State that a forward pass moves: it must move once a step."""

import torch
from torch import Tensor, nn

from tests.runtime.cases import Case, mean_square, normal, plain_step


def _stage(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.GELU())


class _Moving(nn.Module):
    """Counts its calls in an attribute and keeps a running mean in a buffer; both enter its result."""

    average: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)
        self.register_buffer("average", torch.zeros(width))
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        hidden: Tensor = self.mix(x) / (1 + 0.05 * len(self.seen)) - self.average
        with torch.no_grad():
            self.average.lerp_(hidden.mean(0), 0.2)
        return hidden.sigmoid()


CASES = {
    "batch_norm": Case(
        "running statistics are updated twice when a block runs again; the operator's schema does not say that it writes them",
        ("0", "1"),
        lambda: nn.Sequential(_stage(4), _stage(4)),
        plain_step(normal(3, 4, 6, 6), mean_square),
    ),
    "moving_average": Case(
        "a module moves a buffer and a list in forward: running it again changes the state and the result",
        ("0",),
        lambda: nn.Sequential(_Moving(8), nn.Linear(8, 3)),
        plain_step(normal(5, 8), mean_square),
    ),
}
