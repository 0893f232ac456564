from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from slackswap_opt import Instance
from slackswap_opt.instances import load

STATISTICS = {"mean", "deviation", "log-sum-exp"}
MODELS = ("bert-large", "gpt2-xl", "llama-7b")


def saved(instance: Instance, block: str = "") -> list[int]:
    """Tensors that the forward pass makes and the backward pass (of one block) reads."""
    made = {i for operation in instance.operations if operation.phase == "forward" for i in operation.writes}
    backward = [o for o in instance.operations if o.phase == "backward" and (not block or o.block == block)]
    return sorted(made & {i for operation in backward for i in operation.reads})


def saved_in_a_layer(name: str, **parameters: bool | int | float | str) -> int:
    """Bytes that one more layer saves, without statistics."""
    totals = []
    for layers in (1, 2):
        instance = load(name, layers=layers, vocabulary=10, **parameters)
        tensors = [instance.tensors[i] for i in saved(instance)]
        totals.append(sum(tensor.size for tensor in tensors if tensor.kind not in STATISTICS))
    return totals[1] - totals[0]


shapes = st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 5), st.integers(1, 8))


@settings(deadline=None)
@given(shapes, st.sampled_from(["bert-large", "gpt2-xl"]), st.booleans())
def test_a_layer_saves_what_korthikanti_et_al_count(shape: tuple[int, int, int, int], name: str, dropout: bool) -> None:
    b, s, a, h = shape
    h *= a
    sizes = {"batch": b, "sequence": s, "heads": a, "hidden": h, "feed_forward": 4 * h, "dropout": 0.1 if dropout else 0}
    # The masks take one byte for each element: 2 s b h, and of the 5 bytes for each score all but the softmax.
    flash, eager = (34 * s * b * h, 5 * a * s * s * b) if dropout else (32 * s * b * h, 2 * a * s * s * b)
    assert saved_in_a_layer(name, **sizes) == flash
    assert saved_in_a_layer(name, **sizes, attention="eager") == flash + eager


@settings(deadline=None)
@given(shapes, st.integers(1, 100))
def test_a_llama_layer_saves_its_gates_too(shape: tuple[int, int, int, int], f: int) -> None:
    b, s, a, h = shape
    h *= a
    sizes = {"batch": b, "sequence": s, "heads": a, "hidden": h, "feed_forward": f}
    assert saved_in_a_layer("llama-7b", **sizes) == 16 * s * b * h + 8 * s * b * f
    assert saved_in_a_layer("llama-7b", **sizes, attention="eager") == 16 * s * b * h + 8 * s * b * f + 2 * a * s * s * b


class Additions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts additions of two tensors, and joins of several."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func in (torch.ops.aten.add.Tensor, torch.ops.aten.cat.default)
        return func(*args, **(kwargs or {}))


class RMSNorm(torch.autograd.Function):
    """A fused RMS norm: it saves its input and one number for each token."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        scale = x.float().pow(2).mean(-1).add(1e-6).rsqrt()
        ctx.save_for_backward(x, scale)
        return x * scale[..., None].to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * ctx.saved_tensors[1][..., None].to(gradient.dtype)


class Rotary(torch.autograd.Function):
    """A fused rotation: it saves nothing that the step allocates."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.flip(-1)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient.flip(-1)


def fused(function: type[torch.autograd.Function], x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = function.apply(x)  # type: ignore[no-untyped-call]
    return result


B, S, A, H, F = 2, 16, 4, 64, 176
Tensor = torch.Tensor
Layer = Callable[[Tensor], Tensor]


class Torch:
    """Layers in eager PyTorch, written without a look at the instances' builder."""

    def __init__(self, *, flash: bool, causal: bool, dropout: float) -> None:
        self.flash, self.causal, self.dropout = flash, causal, dropout
        self.weights: list[Tensor] = []

    def linear(self, x: Tensor, width: int) -> Tensor:
        weight = torch.randn(width, x.shape[-1], dtype=x.dtype, requires_grad=True)
        bias = torch.randn(width, dtype=x.dtype, requires_grad=True)
        self.weights += [weight, bias]
        return functional.linear(x, weight, bias)

    def heads(self, x: Tensor) -> Tensor:
        return self.linear(x, H).view(S, B, A, H // A)

    def norm(self, x: Tensor) -> Tensor:
        weight = torch.ones(H, dtype=x.dtype, requires_grad=True)
        self.weights.append(weight)
        return functional.layer_norm(x, (H,), weight)

    def drop(self, x: Tensor) -> Tensor:
        # On the CPU the public function multiplies by a mask in the type of x; this is the operation that a GPU runs.
        return torch.native_dropout(x, self.dropout, True)[0] if self.dropout else x

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.flash:
            q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
            o = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            return o.permute(2, 0, 1, 3).reshape(S, B, H)
        # As Megatron does it on (s, b, h): strided batches of products without a copy.
        q, k, v = (x.flatten(1, 2).transpose(0, 1) for x in (q, k, v))
        mask = torch.zeros(1, S, S, dtype=q.dtype)
        probabilities = torch.softmax(torch.baddbmm(mask, q, k.transpose(1, 2), alpha=0.25), -1)
        context = torch.bmm(self.drop(probabilities), v)
        return context.transpose(0, 1).contiguous().view(S, B, H)

    def gpt2(self, x: Tensor) -> Tensor:
        # Head by head query, key and value, so that each is strided evenly.
        q, k, v = torch.chunk(self.linear(self.norm(x), 3 * H).view(S, B, A, 3 * H // A), 3, -1)
        x = x + self.drop(self.linear(self.attend(q, k, v), H))
        return x + self.drop(self.linear(functional.gelu(self.linear(self.norm(x), F)), H))

    def bert(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x), self.heads(x), self.heads(x)
        x = self.norm(x + self.drop(self.linear(self.attend(q, k, v), H)))
        return self.norm(x + self.drop(self.linear(functional.gelu(self.linear(x, F)), H)))

    def llama(self, x: Tensor) -> Tensor:
        y = fused(RMSNorm, x)
        q, k, v = self.heads(y), self.heads(y), self.heads(y)
        x = x + self.linear(self.attend(fused(Rotary, q), fused(Rotary, k), v), H)
        y = fused(RMSNorm, x)
        return x + self.linear(functional.silu(self.linear(y, F)) * self.linear(y, F), H)


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_a_layer_saves_and_sums_what_eager_pytorch_does(name: str, flash: bool) -> None:
    causal, dropout = name != "bert-large", 0.0 if name == "llama-7b" else 0.1
    reference = Torch(flash=flash, causal=causal, dropout=dropout)
    layer: Layer = {"bert-large": reference.bert, "gpt2-xl": reference.gpt2, "llama-7b": reference.llama}[name]
    storages: dict[int, tuple[Tensor, int]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = (tensor, storage.nbytes())
        return tensor

    leaf = torch.randn(S, B, H, dtype=torch.bfloat16, requires_grad=True)
    x = leaf * 1
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(x)
    with Additions() as additions:  # type: ignore[no-untyped-call]
        y.backward(torch.ones_like(y))  # type: ignore[no-untyped-call]
    for weight in reference.weights:
        storages.pop(weight.untyped_storage().data_ptr(), None)

    instance = load(
        name, layers=1, batch=B, sequence=S, heads=A, hidden=H, feed_forward=F, attention="flash" if flash else "eager"
    )
    tensors = [instance.tensors[i] for i in saved(instance, "layers.0")]
    # PyTorch on the CPU has the statistics of a layer norm in the type of its input: only their number is compared.
    small = 4 * S * B * A
    assert sorted(size for _, size in storages.values() if size > small) == sorted(t.size for t in tensors if t.size > small)
    assert len(storages) == len(tensors)
    sums = [o for o in instance.operations if o.block == "layers.0" and o.name.endswith((".accumulate", ".join"))]
    assert additions.count == len(sums)


@pytest.mark.parametrize(
    ("name", "layer", "peak", "ideal"),
    # Peak: layers * bytes a layer + log-probabilities and logits, or their gradient, of 2 bytes each (the rest is under 1.5 %).
    [
        ("bert-large", 24 * 34 * 512 * 32 * 1024, 15.91e9, 238.3e6),
        ("gpt2-xl", 48 * 34 * 1024 * 8 * 1600, 23.15e9, 502.5e6),
        ("llama-7b", 32 * (16 * 4096 + 8 * 11008) * 2048 * 4, 41.48e9, 1961.2e6),
    ],
)
def test_the_seed_models_have_the_figures_of_the_documentation(name: str, layer: int, peak: float, ideal: float) -> None:
    instance = load(name)
    logits = next(tensor.size for tensor in instance.tensors if tensor.name == "head.logits")
    assert instance.peak == pytest.approx(layer + 2 * logits, rel=0.015)
    assert instance.peak == pytest.approx(peak, rel=1e-3)
    assert instance.ideal == pytest.approx(ideal, rel=1e-3)


def test_durations_by_hand() -> None:
    # 8 tokens of width 4096 on an A100: 2 * 8 * 4096 * 16384 products at 60 % of 312 TFLOP/s take 5.7 us, but the weight's
    # 134,217,728 bytes, with 65,536 in and 262,144 out, take 134,545,408 / (0.85 * 1555) = 101,793.4 ns; 3 us a launch.
    instance = load("gpt2-xl", layers=1, hidden=4096, heads=32, feed_forward=16384, sequence=8, batch=1)
    durations = {operation.name: operation.duration for operation in instance.operations}
    assert durations["layers.0.expand"] == 101_794 + 3_000
    # Backward: twice the bytes, two kernels.
    assert durations["layers.0.expand.backward"] == 203_587 + 6_000
    # GELU: 262,144 in, as many out, and half as much again in backward.
    assert durations["layers.0.gelu"] == 397 + 3_000
    assert durations["layers.0.gelu.backward"] == 595 + 3_000
    # Causal attention: half of 4 * 8 * 8 * 4096 = 524,288 operations takes 4 ns at 50 %; its bytes more: q, k, v and the output
    # of 65,536 each and 4 * 32 * 8 of log-sum-exp, 199.1 ns.
    assert durations["layers.0.attention"] == 200 + 3_000
    assert instance.operations[-1].phase == "backward"


@pytest.mark.parametrize("loss", ["fused", "eager", "eager-fp32"])
def test_the_loss_decides_how_many_tensors_as_large_as_the_logits_live_at_once(loss: str) -> None:
    instance = load("gpt2-xl", layers=1, batch=1, sequence=16, hidden=8, heads=1, feed_forward=8, vocabulary=10_000, loss=loss)
    logits = 16 * 10_000 * 2
    # Log-probabilities and a gradient; with PyTorch's pair a gradient of the log-probabilities too; in 32 bits twice the bytes.
    assert instance.peak // logits == {"fused": 2, "eager": 3, "eager-fp32": 6}[loss]


def test_parameters_that_leave_operations_out() -> None:
    plain = load("bert-large", layers=1, dropout=0, head=False)
    names = {operation.name for operation in plain.operations}
    assert not any("dropout" in name or "logits" in name for name in names)
    assert "head.loss" in names
    wide = load("gpt2-xl", layers=1, precision="fp32")
    narrow = load("gpt2-xl", layers=1)
    by_name = {tensor.name: tensor.size for tensor in narrow.tensors}
    for tensor in wide.tensors:
        expected = 1 if tensor.kind in STATISTICS | {"mask"} else 2
        assert tensor.size == expected * by_name[tensor.name]
    assert wide.ideal > 2 * narrow.ideal


def test_a_thousand_layers() -> None:
    instance = load("gpt2-xl", layers=1000)
    assert len(instance.operations) > 24_000
    assert len({operation.block for operation in instance.operations} - {None}) == 1000
