"""Attention: many tensors on one storage, at offsets and strides that must survive."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.runtime.cases import Case, mean_square, normal, plain_step


class _OneProjection(nn.Module):
    """Query, key and value are slices of one storage, each saved with strides of its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inputs(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = (parts[:, :, k].transpose(1, 2) for k in range(3))
        weights = (query @ key.mT * key.shape[-1] ** -0.5).softmax(-1)
        return x + self.output((weights @ value).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class _Fused(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.pair = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        key, value = self.pair(x).tensor_split(2, dim=-1)
        query, key, value = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.query(x), key, value))
        out = functional.scaled_dot_product_attention(query, key, value, mask, self.dropout, is_causal=mask is None)
        return x - out.transpose(1, 2).flatten(2)


class _Masked(nn.Module):
    """One layer with a learned mask whose rows are longer than it shows and whose heads share it, one causal layer."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(length, 2 * length))
        self.first, self.second = _Fused(width, 2, 0.1), _Fused(width, 4, 0.0)

    def forward(self, x: Tensor, padded: Tensor) -> Tensor:
        length = x.shape[1]
        mask = self.bias[:, :length] + padded.unsqueeze(1).unsqueeze(1)
        return self.second(self.first(x, mask.expand(-1, 2, -1, -1)))  # type: ignore[no-any-return]


def _padded(_: int) -> tuple[Tensor, ...]:
    padding = torch.where(torch.rand(2, 6) < 0.3, -1e4, 0.0)
    padding[:, 0] = 0
    return torch.randn(2, 6, 16), padding


CASES = {
    "slices_of_one_storage": Case(
        "three saved views of one storage are copied three times, or come back without their offsets and strides",
        ("0", "1"),
        lambda: nn.Sequential(_OneProjection(12, 3), _OneProjection(12, 3)),
        plain_step(normal(2, 4, 12), mean_square),
    ),
    "expanded_mask": Case(
        "the mask of fused attention is expanded over heads and padded in its rows: kernels check its strides",
        ("first", "second"),
        lambda: _Masked(16, 6),
        plain_step(_padded, mean_square),
    ),
}
