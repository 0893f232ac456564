"""Language models of the shapes that the library holds, in plain PyTorch.

They are written as their authors' own code is, one operation a line, so that what autograd saves is what a training script of
today would save; weights are random, and no package but PyTorch is needed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a transformer.

    Attributes
    ----------
    layers, width, heads, feed_forward, vocabulary
        As usual; heads divide the width.
    length
        Tokens in a sequence.
    dropout
        Probability; 0 for none.
    experts
        Feed-forward parts among which each token is routed to two; 0 for one part and no routing.
    """

    layers: int
    width: int
    heads: int
    feed_forward: int
    vocabulary: int
    length: int
    dropout: float = 0.0
    experts: int = 0


BERT_LARGE = Shape(24, 1024, 16, 4096, 30522, 512, 0.1)
GPT2_XL = Shape(48, 1600, 25, 6400, 50257, 1024, 0.1)
LLAMA_7B = Shape(32, 4096, 32, 11008, 32000, 2048)
SMALL_MOE = Shape(12, 1024, 16, 2816, 32000, 1024, experts=8)


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, by a fused kernel; query, key and value from one projection or from three."""

    def __init__(self, shape: Shape, *, joined: bool, causal: bool, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.joined, self.causal = shape.heads, joined, causal
        parts = 3 if joined else 1
        self.projections = nn.ModuleList(nn.Linear(shape.width, shape.width * parts, bias=bias) for _ in range(3 // parts))
        self.output = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return what each token takes from the others."""
        parts = self.projections[0](x).chunk(3, -1) if self.joined else [projection(x) for projection in self.projections]
        query, key, value = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in parts)
        if rotation is not None:
            query, key = rotate(query, *rotation), rotate(key, *rotation)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn pairs of features by an angle that grows with the position."""
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat((-high, low), -1) * sine


class FeedForward(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.expand, self.contract = nn.Linear(shape.width, shape.feed_forward), nn.Linear(shape.feed_forward, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return what both layers make of each token."""
        return self.contract(functional.gelu(self.expand(x)))  # type: ignore[no-any-return]


class GatedFeedForward(nn.Module):
    """Two linear layers side by side, one of them as the gate of the other, and one back."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layers make of each token."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Each token goes to the two experts of the highest score; every expert takes an equal share of them.

    A fixed share is what large models train with, and what makes shapes independent of data: of tokens that score an expert
    highest, those of the highest scores are taken until the share is full.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.score = nn.Linear(shape.width, shape.experts, bias=False)
        self.parts = nn.ModuleList(GatedFeedForward(shape) for _ in range(shape.experts))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the experts make of their tokens, by token."""
        tokens = x.flatten(0, 1)
        share = 2 * len(tokens) // len(self.parts)
        weights, chosen = self.score(tokens).softmax(-1).topk(share, dim=0)
        out = torch.zeros_like(tokens)
        for number, part in enumerate(self.parts):
            rows = chosen[:, number]
            out = out.index_add(0, rows, part(tokens[rows]) * weights[:, number, None])
        return out.view_as(x)


class BertLayer(nn.Module):
    """A layer that normalises after each sum (Devlin et al. 2018)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = SelfAttention(shape, joined=False, causal=False)
        self.feed_forward = FeedForward(shape)
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.dropout_1, self.dropout_2 = nn.Dropout(shape.dropout), nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after this layer."""
        x = self.norm_1(x + self.dropout_1(self.attention(x)))
        return self.norm_2(x + self.dropout_2(self.feed_forward(x)))  # type: ignore[no-any-return]


class Bert(nn.Module):
    """An encoder with the head of masked language modelling."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.types, self.positions = nn.Embedding(2, shape.width), nn.Embedding(shape.length, shape.width)
        self.norm, self.dropout = nn.LayerNorm(shape.width), nn.Dropout(shape.dropout)
        self.layers = nn.ModuleList(BertLayer(shape) for _ in range(shape.layers))
        self.transform, self.head_norm = nn.Linear(shape.width, shape.width), nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores over the vocabulary for each place."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.types(torch.zeros_like(tokens)) + self.positions(places)
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.head_norm(functional.gelu(self.transform(x))), self.words.weight)


class Gpt2Layer(nn.Module):
    """A layer that normalises before each branch (Radford et al. 2019)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention, self.feed_forward = SelfAttention(shape, joined=True, causal=True), FeedForward(shape)
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.dropout_1, self.dropout_2 = nn.Dropout(shape.dropout), nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after this layer."""
        x = x + self.dropout_1(self.attention(self.norm_1(x)))
        return x + self.dropout_2(self.feed_forward(self.norm_2(x)))  # type: ignore[no-any-return]


class Gpt2(nn.Module):
    """A decoder whose head is its table of embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(shape.vocabulary, shape.width), nn.Embedding(shape.length, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.layers = nn.ModuleList(Gpt2Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores over the vocabulary for each place."""
        x = self.dropout(self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device)))
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.words.weight)


class LlamaLayer(nn.Module):
    """A layer with RMS norms, rotary positions and a gated feed-forward part, or experts (Touvron et al. 2023)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = SelfAttention(shape, joined=False, causal=True, bias=False)
        self.feed_forward = Experts(shape) if shape.experts else GatedFeedForward(shape)
        self.norm_1, self.norm_2 = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return the residual stream after this layer."""
        x = x + self.attention(self.norm_1(x), rotation)
        return x + self.feed_forward(self.norm_2(x))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """A decoder with a head of its own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(LlamaLayer(shape) for _ in range(shape.layers))
        self.norm, self.head = nn.RMSNorm(shape.width), nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.features = shape.width // shape.heads

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores over the vocabulary for each place."""
        x = self.words(tokens)
        frequencies = 10_000 ** -torch.linspace(0, 1, self.features // 2, device=tokens.device)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), frequencies).repeat(1, 2)
        rotation = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.head(self.norm(x))  # type: ignore[no-any-return]
