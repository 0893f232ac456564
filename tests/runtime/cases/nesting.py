"""Structures, graphs inside graphs, and graphs that are used in part."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.runtime.cases import Case, Scope, mean_square, normal, plain_step


@dataclass
class _Result:
    hidden: Tensor
    parts: list[Any]
    calls: int
    absent: None = None


class _Structured(nn.Module):
    """Takes a dictionary by keyword, counts in it, and returns tensors inside of lists and dictionaries."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.main, self.side = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, *, features: dict[str, Any], strength: float) -> _Result:
        features["calls"] = features.get("calls", 0) + 1
        hidden = torch.sigmoid(self.main(features["x"])) * strength
        return _Result(hidden - features["x"], [{"side": self.side(hidden)}, hidden.amax()], features["calls"])


class _Structures(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = _Structured(width), _Structured(width)

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        one = self.first(features={"x": x}, strength=0.7)
        two = self.second(features={"x": one.hidden, "calls": one.calls}, strength=1.5)
        loss = two.hidden.square().mean() + one.parts[0]["side"].abs().mean() + two.parts[1]
        return loss * two.calls, two.calls


def _structures_step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    torch.manual_seed(110 + iteration)
    with scope():
        loss, calls = model(torch.randn(3, 6))
    loss.backward()
    return [loss.item(), float(calls)]


class _Checkpointed(nn.Module):
    """Part of the model is recomputed by torch.utils.checkpoint already, one part inside of another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.outer = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1), nn.SiLU())
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        def both(t: Tensor) -> Tensor:
            return checkpoint(self.inner, self.outer(t), use_reentrant=False) + t  # type: ignore[no-any-return]

        return checkpoint(both, checkpoint(self.inner, x, use_reentrant=False), use_reentrant=False)  # type: ignore[no-any-return]


class _Descending(nn.Module):
    """Moves its input down the slope of a learned function, in forward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(width, 8), nn.Softplus(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            (slope,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
            x = x - 0.2 * slope
        return x


class _Partial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Sequential(nn.Linear(4, 7), nn.Sigmoid())
        self.high = nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.low(x)
        return middle, self.high(middle)


def _partial_step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    torch.manual_seed(120 + iteration)
    inputs = torch.randn(3, 4, requires_grad=True)
    with scope():
        middle, out = model(inputs)
        loss = out.square().mean()
    (slope,) = torch.autograd.grad(loss, middle, retain_graph=True)
    middle.backward(slope)
    with scope():
        unused = model(torch.randn(3, 4))[1].sum()
    del unused
    assert inputs.grad is not None
    return [loss.item(), inputs.grad.sum().item()]


class _Teaching(nn.Module):
    """A student and a teacher without gradients share a frozen norm; one output is cut off from the graph."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.norm.eval()
        with torch.no_grad():
            taught = self.norm(self.teacher(x).sigmoid())
        learned = self.norm(self.student(x).sigmoid())
        return learned, taught, (learned.detach() - taught).square()


class _Taught(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.pair, self.end = _Teaching(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        learned, taught, distance = self.pair(x)
        loss: Tensor = (self.end(learned) - taught).abs().mean() + (learned * distance).sum()
        return loss


CASES = {
    "dictionaries": Case(
        "modules take and return nested structures, and change a dictionary that they are given",
        ("first", "second"),
        lambda: _Structures(6),
        _structures_step,
    ),
    "checkpoint_inside": Case(
        "the model recomputes parts of itself already: they must not be handled twice",
        ("0",),
        lambda: nn.Sequential(_Checkpointed(6), nn.Linear(6, 2)),
        plain_step(normal(4, 6), mean_square),
    ),
    "gradient_in_forward": Case(
        "autograd runs inside of forward and its operations are part of the graph",
        ("1",),
        lambda: nn.Sequential(nn.Linear(3, 5), _Descending(5)),
        plain_step(normal(4, 3), mean_square),
    ),
    "partial_backward": Case(
        "one part of the graph is differentiated, then another, and a second graph never",
        ("low", "high"),
        _Partial,
        _partial_step,
    ),
    "modules_without_gradient": Case(
        "a module switches gradients off for part of its work: outputs that need none must stay so",
        ("pair",),
        lambda: _Taught(6),
        plain_step(normal(5, 6), lambda model, x: model(*x)),
    ),
}
