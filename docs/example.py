"""A training step to profile: a GPT-2-like model, built and run by `make`, for a batch of choice by `of_batch`.

cd docs
slackswap profile 'example:make()' --hardware a100-40gb --budget 6GiB --save-instance step.json
slackswap profile example:of_batch --hardware a100-40gb --budget 6GiB --largest batch --retained 95%
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, TOKENS, VOCABULARY = 1024, 16, 24, 1024, 50257


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm and around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.contract = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def attend(self, x: Tensor) -> Tensor:
        """Return causal attention of a batch of (batch, tokens, width)."""
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of `x`."""
        x = x + self.dropout(self.attend(self.norm_1(x)))
        return x + self.dropout(self.contract(functional.gelu(self.expand(self.norm_2(x)))))  # type: ignore[no-any-return]


class Model(nn.Module):
    """Tokens to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, tokens, vocabulary) for numbers of words (batch, tokens)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.layers(self.words(tokens) + self.positions(places))))  # type: ignore[no-any-return]


def of_batch(batch: int) -> Callable[[], None]:
    """Return a step over so many sequences: forward, loss, backward."""
    model = Model().bfloat16()
    tokens = torch.randint(0, VOCABULARY, (batch, TOKENS))

    def step() -> None:
        logits = model(tokens)[:, :-1].flatten(0, 1)
        functional.cross_entropy(logits, tokens[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]

    return step


def make() -> Callable[[], None]:
    """Return a step over 8 sequences."""
    return of_batch(8)
