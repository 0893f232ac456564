"""Reduced precision and complex numbers."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.cases import Case, Scope, mean_square, normal, plain_step


class _InFull(nn.Module):
    """Leaves autocast for a moment."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return functional.softplus(self.inner(x.float()))


def _autocast() -> nn.Module:
    twice = nn.Linear(10, 10)
    return nn.Sequential(nn.Sequential(twice, nn.SiLU()), _InFull(10), nn.Sequential(twice, nn.Sigmoid()))


def _autocast_step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    torch.manual_seed(70 + iteration)
    inputs = torch.randn(4, 10)
    with scope(), torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(inputs).float().abs().mean()
    loss.backward()
    return [loss.item()]


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Sequential(nn.Linear(6, 9), nn.GELU()), nn.Linear(9, 1))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def _scaled_step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    assert isinstance(model, _Scaled)
    torch.manual_seed(80 + iteration)
    overflows = iteration == 1
    inputs = torch.randn(3, 6) * (1e32 if overflows else 1.0)
    with scope(), torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(inputs).float().square().mean()
    model.scaler.scale(loss).backward()
    model.scaler.step(model.optimizer)
    model.scaler.update()
    return [0.0 if overflows else loss.item(), model.scaler.get_scale()]


class _Spectral(nn.Module):
    """Filters in the frequency domain; conjugates and imaginary parts are views that share storages."""

    def __init__(self, frequencies: int) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.view_as_complex(torch.randn(frequencies, 2)) / 4)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        mirrored = (spectrum * self.filter).conj()
        mixed = mirrored * spectrum + mirrored.conj() * self.filter.conj()
        power = mixed.imag.mean(-1, keepdim=True) * mirrored.conj().imag.sum()
        signal: Tensor = torch.fft.irfft(mixed, n=x.shape[-1]) - power
        return signal


CASES = {
    "autocast_weights": Case(
        "autocast keeps copies of weights until it ends, part of the model leaves it, and backward runs outside of it",
        ("0", "1", "2"),
        _autocast,
        _autocast_step,
    ),
    "overflowing_scaler": Case(
        "a scaled loss overflows once and the scaler skips the step",
        ("net.0",),
        _Scaled,
        _scaled_step,
    ),
    "lazy_conjugates": Case(
        "saved complex tensors carry conjugate and negative bits: same bytes, other meaning",
        ("1",),
        lambda: nn.Sequential(nn.Linear(5, 12), _Spectral(7)),
        plain_step(normal(2, 5), mean_square),
    ),
}
