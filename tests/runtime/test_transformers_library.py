"""Models of the transformers package, unmodified, train under budgets as they do without; skipped where it is not installed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.budgets import check
from tests.runtime.cases import Case, Scope

transformers: Any = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")

VOCABULARY, LENGTH = 61, 12
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TOKENS = {"vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "bos_token_id": 1, "eos_token_id": 2}


def text(tokens: Tensor) -> dict[str, Tensor]:
    return {"input_ids": tokens, "labels": tokens}


def pictures(tokens: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(len(tokens), 3, 16, 16), "labels": tokens[:, 0] % 5}


def gpt2() -> nn.Module:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, "vocab_size": VOCABULARY}
    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
    return transformers.GPT2LMHeadModel(config)  # type: ignore[no-any-return]


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **TOKENS, num_key_value_heads=1))  # type: ignore[no-any-return]


def bert() -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **TOKENS))  # type: ignore[no-any-return]


def t5() -> nn.Module:
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "vocab_size": VOCABULARY}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))  # type: ignore[no-any-return]


def vit() -> nn.Module:
    config = transformers.ViTConfig(**SIZES, image_size=16, patch_size=4, num_labels=5, hidden_dropout_prob=0.1)
    return transformers.ViTForImageClassification(config)  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], dict[str, Tensor]]]] = {
    "gpt2": (gpt2, text),
    "llama": (llama, text),
    "bert": (bert, text),
    "t5": (t5, text),
    "vit": (vit, pictures),
}


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_library(name: str, checkpointed: bool) -> None:
    make, batch = MODELS[name]

    def build() -> nn.Module:
        model = make().train()
        if checkpointed:
            model.gradient_checkpointing_enable()  # type: ignore[operator]
        return model

    def step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
        torch.manual_seed(iteration)
        tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
        inputs = batch(tokens)
        with scope():
            loss = model(**inputs).loss
        loss.backward()
        return [loss.item()]

    check(Case("", (), build, step), inside=checkpointed)
