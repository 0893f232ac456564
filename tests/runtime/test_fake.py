"""Profiles on shapes alone: the same step as on data, with the kernels of an accelerator where they differ."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from slackswap_opt import hardware, instances
from slackswap_opt.instance import Instance
from slackswap_opt.runtime import Profile, profile, profile_fake
from slackswap_opt.runtime import language_models as models
from slackswap_opt.runtime.library import language


class Small(nn.Module):
    """Nothing in it runs another kernel on an accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.wide(self.norm(self.table(tokens))).chunk(3, -1)
        mixed = (query @ key.mT).softmax(-1) @ value
        return self.narrow(functional.gelu(mixed) + mixed)  # type: ignore[no-any-return]


def small_step() -> Callable[[], Any]:
    model, tokens = Small(), torch.arange(22).view(2, 11) % 11

    def step() -> None:
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()  # type: ignore[no-untyped-call]

    return step


def structure(instance: Instance) -> object:
    """Return all of an instance that is not measured on a device."""
    operations = [(o.name, o.reads, o.writes, o.recomputable, o.phase, o.block) for o in instance.operations]
    return instance.tensors, operations


def test_shapes_alone_give_the_instance_that_data_give() -> None:
    assert structure(profile_fake(small_step).instance) == structure(profile(small_step(), timed=False).instance)


def test_a_model_that_exists_is_profiled_and_left_as_it_is() -> None:
    model, tokens = Small(), torch.arange(22).view(2, 11) % 11
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def step() -> None:
        functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()  # type: ignore[no-untyped-call]

    result = profile(step, hardware="h100", name="on paper")
    assert structure(result.instance) == structure(profile_fake(small_step).instance)
    assert result.instance.name == "on paper"
    assert result.instance.link == hardware.get("h100").link()
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_can_be_cast_while_it_is_built() -> None:
    def build() -> Callable[[], Any]:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(torch.float64).bfloat16()
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
        return lambda: (model(torch.ones(2, 4, dtype=torch.bfloat16)) * scale).sum().backward()

    result = profile_fake(build)
    assert result.tensors[0].dtype == "bfloat16"


def built(module: Callable[[], nn.Module], *shape: int, dtype: torch.dtype = torch.bfloat16) -> Profile:
    def build() -> Callable[[], Any]:
        model, weight = module().to(dtype), torch.ones(shape[-1], dtype=dtype, requires_grad=True)
        return lambda: model(torch.ones(shape, dtype=dtype) * weight).sum().backward()

    return profile_fake(build)


def sizes(result: Profile) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for tensor, facts in zip(result.instance.tensors, result.tensors, strict=True):
        if facts.packs:
            found.setdefault(tensor.kind, []).append(tensor.size)
    return found


def test_a_dropout_mask_has_a_byte_an_element() -> None:
    result = built(lambda: nn.Dropout(0.1), 3, 16)
    assert sizes(result)["mask"] == [3 * 16]
    assert "aten.native_dropout.default" in [operation.function for operation in result.operations]


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_dropout_of_nothing_or_all_has_no_mask(chance: float) -> None:
    assert "mask" not in sizes(built(lambda: nn.Dropout(chance), 3, 16))


def test_statistics_of_a_norm_have_four_bytes_a_row() -> None:
    # On a CPU they would have two, like the input. The batch of ones is saved for the gradient of what it is multiplied by.
    saved = {"ones": [96], "product": [96], "mean": [12], "deviation": [12]}
    assert sizes(built(lambda: nn.LayerNorm(16), 3, 16)) == saved


def test_an_rms_norm_saves_its_input_and_a_number_a_row() -> None:
    result = built(lambda: nn.RMSNorm(16), 3, 16)
    assert sizes(result) == {"ones": [96], "product": [96], "deviation": [12]}
    assert [o.obstacle for o in result.operations if o.function == "slackswap._fused_rms_norm.default"] == [""]


class Attention(nn.Module):
    def __init__(self, *, dropout: float = 0.0, causal: bool = False, mask: Tensor | None = None) -> None:
        super().__init__()
        self.dropout, self.causal, self.mask = dropout, causal, mask

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x, self.mask, self.dropout, self.causal)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_in_16_bits_is_flash_attention(dropout: float) -> None:
    # 2 sequences, 4 heads, 16 rows of width 8: output in 16 bits, log-sum-exp in 32. In backward the query's gradient is summed
    # in 32 bits, rows rounded up to 128 and widths to 32, with one number besides for each row.
    result = built(lambda: Attention(dropout=dropout, causal=True), 2, 4, 16, 8)
    assert sizes(result)["attention output"] == [2 * 4 * 16 * 8 * 2]
    assert sizes(result)["log-sum-exp"] == [2 * 4 * 16 * 4]
    (backward,) = [o for o in result.instance.operations if "flash_attention_backward" in o.name]
    assert backward.workspace == 4 * 2 * 4 * 128 * 33


def test_attention_with_a_mask_or_in_32_bits_is_memory_efficient() -> None:
    masked = built(lambda: Attention(mask=torch.ones(16, 16, dtype=torch.bool)), 2, 4, 16, 8)
    single = built(Attention, 2, 4, 16, 8, dtype=torch.float32)
    for result in (masked, single):
        assert "aten._scaled_dot_product_efficient_attention.default" in [o.function for o in result.operations]
        assert "softmax output" not in sizes(result)


def test_operators_are_the_cpus_own_again_afterwards() -> None:
    built(lambda: nn.Dropout(0.5), 3, 16)
    torch.manual_seed(0)
    dropped = functional.dropout(torch.ones(64), 0.5)
    assert set(dropped.tolist()) == {0.0, 2.0}
    normed = functional.rms_norm(torch.full((2, 4), 3.0), (4,))
    assert torch.allclose(normed, torch.ones(2, 4))


def test_causal_attention_takes_half_the_operations() -> None:
    def duration(*, causal: bool) -> int:
        result = built(lambda: Attention(causal=causal), 4, 16, 4096, 64)
        return next(o.duration for o in result.instance.operations if "flash_attention" in o.name)

    # 4 b a s^2 d floating-point operations: 68.7 billion in each call, well above what memory and launch take.
    device = hardware.get("a100-40gb")
    flops = 4 * 4 * 16 * 4096 * 4096 * 64
    assert duration(causal=False) == device.duration("attention", flops, 0)
    assert duration(causal=True) == device.duration("attention", flops // 2, 0)


def test_products_and_the_rest_take_the_rooflines_time() -> None:
    # 0 mul by the weight; 1 t; 2 mm: 2 n d f operations, and n d, d f and n f elements of 2 bytes.
    result = built(lambda: nn.Linear(512, 2048, bias=False), 1024, 512)
    device = hardware.get("a100-40gb")
    product = next(o for o in result.instance.operations if o.name == "Linear.mm")
    moved = 2 * (1024 * 512 + 512 * 2048 + 1024 * 2048)
    assert product.duration == device.duration("gemm", 2 * 1024 * 512 * 2048, moved)
    scaled = next(o for o in result.instance.operations if o.name == "mul")
    assert scaled.duration == device.duration("elementwise", 0, 2 * (2 * 1024 * 512 + 512))
    assert all(o.duration == 0 for o, facts in zip(result.instance.operations, result.operations, strict=True) if facts.view)


def test_single_precision_follows_the_switch_for_tf32() -> None:
    def duration() -> int:
        result = built(lambda: nn.Linear(512, 2048, bias=False), 1024, 512, dtype=torch.float32)
        return next(o.duration for o in result.instance.operations if o.name == "Linear.mm")

    assert duration() == hardware.get("a100-40gb").duration("gemm", 2 * 1024 * 512 * 2048, 0, "fp32")
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        moved = 4 * (1024 * 512 + 512 * 2048 + 1024 * 2048)
        assert duration() == hardware.get("a100-40gb").duration("gemm", 2 * 1024 * 512 * 2048, moved, "tf32")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


CATALOGUE = {
    "bert-large": (models.Bert, models.BERT_LARGE),
    "gpt2-xl": (models.Gpt2, models.GPT2_XL),
    "llama-7b": (models.Llama, models.LLAMA_7B),
}
KINDS = {
    **dict.fromkeys(("query", "key", "value", "qkv", "gate", "up", "feed-forward hidden", "head hidden"), "matrix product"),
    "gated": "product",
    "rotated": "sum",
}
"""What the catalogue's kinds are in a profile, where the name differs: a rotation ends with a sum."""


def saved_by_kind(instance: Instance) -> Counter[str]:
    """Return the bytes of what forward writes and backward reads."""
    forward = {i for o in instance.operations if o.phase == "forward" for i in o.writes}
    backward = {i for o in instance.operations if o.phase == "backward" for i in o.reads}
    found: Counter[str] = Counter()
    for i in forward & backward:
        found[KINDS.get(instance.tensors[i].kind, instance.tensors[i].kind)] += instance.tensors[i].size
    return found


def compare(name: str, layers: int, batch: int) -> None:
    model, shape = CATALOGUE[name]
    shape = dataclasses.replace(shape, layers=layers)
    counted = saved_by_kind(instances.load(name, layers=layers, batch=batch, loss="eager"))
    profiled: Counter[str] = Counter()
    result = profile_fake(language(model, shape, batch))
    for tensor, facts in zip(result.instance.tensors, result.tensors, strict=True):
        if facts.packs:
            profiled[tensor.kind] += tensor.size
    total = sum(counted.values())
    assert abs(sum(profiled.values()) - total) <= total * 3 // 100
    for kind in counted.keys() | profiled.keys():
        # Below a thousandth of all that is saved: tables of positions and the state of attention's random numbers.
        if max(counted[kind], profiled[kind]) > total // 1000:
            assert abs(profiled[kind] - counted[kind]) <= counted[kind] * 3 // 100, kind


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_counts_what_a_profile_sees(name: str) -> None:
    compare(name, layers=2, batch=2)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers", "batch"), [("bert-large", 24, 32), ("gpt2-xl", 48, 8), ("llama-7b", 32, 1)])
def test_the_catalogue_counts_what_a_profile_sees_in_full(name: str, layers: int, batch: int) -> None:
    compare(name, layers, batch)


def test_a_model_that_copies_its_layers_is_built_without_data() -> None:
    def build() -> Callable[[], Any]:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        return lambda: model(torch.ones(2, 4, 8)).sum().backward()

    assert sum(tensor.kind == "mask" for tensor in profile_fake(build).instance.tensors) == 3 * 3
