"""Tensors that are not one strided array of numbers, very many, very small, or one very large."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.runtime.cases import Case, Scope, mean_square, plain_step


class _Neighbours(nn.Module):
    """Averages over a sparse graph, on embeddings whose gradient is sparse."""

    def __init__(self, nodes: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(nodes, width, sparse=True)
        self.mixes = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, graph: Tensor, nodes: Tensor) -> Tensor:
        x: Tensor = self.table(nodes)
        for mix in self.mixes:
            x = torch.sparse.mm(graph, mix(x)).relu()
        return x


def _graph(_: int) -> tuple[Tensor, ...]:
    return (torch.rand(6, 6) < 0.5).float().to_sparse(), torch.randperm(6)


class _Crumbs(nn.Module):
    """Saves hundreds of tensors of a few bytes: scalars, empty ones, truth values, positions."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.4))
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(x)
        for turn in range(40):
            x = x.cos() * (self.gain - 0.01 * turn).tanh() + (self.gain * x.mean()).exp() / 50
        order = x.argsort(-1, descending=True)
        nothing = x[x.shape[0] :]
        total: Tensor = torch.where(x < 0, x / 3, x).gather(-1, order).cumsum(-1) + (nothing * nothing).sum()
        return total


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 6, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.end = nn.Linear(12, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed, _ = self.cells(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        padded, _ = pad_packed_sequence(packed, batch_first=True)
        return self.end(padded)  # type: ignore[no-any-return]


class Marked(torch.Tensor):
    """A tensor of a type of its own, which operations keep."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x + x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient: Tensor = 2 * gradients[0] + 0 * x
        return gradient


class _Marking(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.mix(x).sigmoid()
        if type(hidden) is not Marked:
            raise TypeError(f"the type of the tensor was lost: {type(hidden)}")
        return _Double.apply(hidden * x)  # type: ignore[no-untyped-call, no-any-return]


def _marked_step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
    torch.manual_seed(90 + iteration)
    inputs = torch.randn(3, 5).as_subclass(Marked)
    with scope():
        out = model(inputs)
        loss = out.square().mean()
    loss.backward()
    return [float(loss.item()), float(isinstance(out, Marked))]


def _pixels(channels: int, width: int) -> nn.Module:
    layers = nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(2, width), nn.Hardtanh(inplace=True), nn.MaxPool2d(2)
    return nn.Sequential(*layers)


class _Words(nn.Module):
    """A narrow body under a head many times as large."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.SiLU())
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.table(tokens)))  # type: ignore[no-any-return]


def _shifted(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    (tokens,) = inputs
    labels = torch.cat((tokens[:, 1:], tokens.new_full((len(tokens), 1), -1)), 1)
    return functional.cross_entropy(model(tokens).float().flatten(0, 1), labels.flatten(), ignore_index=-1)


CASES = {
    "sparse_graph": Case(
        "sparse tensors are saved and sparse gradients arrive: code for strided ones crashes",
        ("mixes.0",),
        lambda: _Neighbours(6, 5),
        plain_step(_graph, mean_square),
    ),
    "crumbs": Case(
        "hundreds of saved tensors hold a few bytes or none, of any type",
        (),
        _Crumbs,
        plain_step(lambda iteration: (torch.randn(0 if iteration == 2 else 3, 4),), lambda model, x: model(*x).square().sum()),
    ),
    "packed_lstm": Case(
        "a recurrent network over ragged sequences saves buffers whose contents only it knows",
        (),
        _Recurrent,
        plain_step(lambda iteration: (torch.randn(3, 5, 4), torch.tensor([2, 5, 1 + iteration % 3])), mean_square),
    ),
    "tensor_subclass": Case(
        "tensors of a type of their own flow through the model and a custom Function: they must come back as such",
        ("0",),
        lambda: nn.Sequential(_Marking(5)),
        _marked_step,
    ),
    "channels_last": Case(
        "convolutions in another memory format: strides must survive",
        ("0", "1"),
        lambda: nn.Sequential(_pixels(2, 6), _pixels(6, 4)).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        plain_step(lambda _: (torch.randn(2, 2, 12, 12).to(memory_format=torch.channels_last),), mean_square),
    ),
    "large_head": Case(
        "the peak lies in the loss, which no plan for the body can lower",
        ("body",),
        lambda: _Words(2048, 6),
        plain_step(lambda _: (torch.randint(0, 2048, (2, 20)),), _shifted),
    ),
}
