"""Profiles worked out by hand: what each trap looks like, operation by operation.

Every step here is on x (2 by 4) and, where it trains, w (4 numbers) or a linear layer; a float has 4 bytes. A stretch [a, b) is
alive while operations a to b - 1 run.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from slackswap_opt.instance import IdleInterval
from slackswap_opt.runtime import Profile, profile
from slackswap_opt.runtime.lifetimes import TensorFacts


@pytest.fixture
def x() -> Tensor:
    return torch.arange(8.0).view(2, 4) / 8


@pytest.fixture
def w() -> Tensor:
    return torch.ones(4, requires_grad=True)


def seen(step: Callable[[], Any]) -> Profile:
    return profile(step, timed=False)


def numbered(result: Profile, name: str) -> int:
    (number,) = [i for i, tensor in enumerate(result.instance.tensors) if tensor.name == name]
    return number


def facts(result: Profile, name: str) -> TensorFacts:
    return result.tensors[numbered(result, name)]


def gaps(result: Profile, name: str) -> list[IdleInterval]:
    number = numbered(result, name)
    return [interval for interval in result.instance.idle_intervals if interval.tensor == number]


def test_a_dropout_mask_is_one_tensor_with_three_writers(x: Tensor, w: Tensor) -> None:
    # 0 mul x w -> h; 1 empty_like h -> m; 2 bernoulli_ m; 3 div_ m; 4 mul h m -> y; 5 sum; 6 ones_like;
    # 7 expand; 8 mul by m; 9 mul by x; 10 sum over rows; 11 view; 12 detach into w.grad.
    # m is saved with y, between 3 and 4, and asked for before 8; its only use there ends its life.
    result = seen(lambda: functional.dropout(x * w, 0.5).sum().backward())  # type: ignore[no-untyped-call]
    mask = facts(result, "empty_like")
    assert (mask.writers, mask.packs, mask.unpacks) == ((1, 2, 3), (4,), (8,))
    assert (mask.lives, mask.death) == (((1, 5), (8, 9)), 9)
    assert gaps(result, "empty_like") == [IdleInterval(numbered(result, "empty_like"), 4, 8)]
    assert [t for t, operation in enumerate(result.operations) if operation.random] == [2]
    assert result.instance.rebuildable[numbered(result, "empty_like")]
    assert result.instance.tensors[numbered(result, "empty_like")].kind == "mask"
    # h is an argument of dropout until it returns, and nobody saves it: x has no gradient, and m needs none.
    assert facts(result, "mul").lives == ((0, 5),)
    assert facts(result, "mul").packs == ()


def test_views_are_one_storage(x: Tensor) -> None:
    # 0 t; 1 mm -> h; 2 split; 3 mul of its halves; 4 sum; 5 ones_like; 6 expand; 7 and 8 detach, one for each half that is
    # asked for; 9 and 10 mul; 11 cat; and the weight's gradient. The halves are local variables until 4 has run.
    layer = nn.Linear(4, 6, bias=False)

    def forward() -> Tensor:
        first, second = layer(x).chunk(2, -1)
        product: Tensor = (first * second).sum()
        return product

    result = seen(lambda: forward().backward())  # type: ignore[no-untyped-call]
    whole = facts(result, "Linear.mm")
    assert result.instance.tensors[numbered(result, "Linear.mm")].size == 2 * 6 * 4
    assert (whole.packs, whole.unpacks) == ((3, 3), (7, 8))
    assert (whole.lives, whole.death) == (((1, 5), (7, 11)), 11)
    assert gaps(result, "Linear.mm") == [IdleInterval(numbered(result, "Linear.mm"), 4, 7)]
    assert result.operations[2].view
    assert result.instance.operations[2].writes == ()


def test_an_alias_keeps_its_storage(x: Tensor, w: Tensor) -> None:
    # One element of h is kept from one step to the next: all of h is.
    kept: list[Tensor] = []

    def step() -> None:
        h = x * w
        kept[:] = [h.detach()[:1, :1]]
        loss = h.exp().sum()
        del h
        loss.backward()  # type: ignore[no-untyped-call]

    result = seen(step)
    end = len(result.operations)
    assert facts(result, "mul").lives == ((0, end),)
    assert facts(result, "mul").fixed == "something holds it until the step ends"
    assert gaps(result, "mul") == []
    assert result.left == (1, 32)


def test_an_activation_in_an_attribute_cannot_leave(x: Tensor) -> None:
    # 0 t; 1 addmm; 2 tanh -> kept; 3 sin; 4 sum; ... It is saved twice, by sin and by itself, and never away.
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.kept = self.mix(x).tanh()
            total: Tensor = self.kept.sin().sum()
            return total

    model = Keeping()
    result = seen(lambda: model(x).backward())
    kept = facts(result, "Keeping.tanh")
    assert (kept.packs, len(kept.unpacks)) == ((3, 3), 2)
    assert kept.lives == ((2, len(result.operations)),)
    assert gaps(result, "Keeping.tanh") == []
    # What tanh reads is nobody's once it has run.
    assert facts(result, "mix.addmm").lives == ((1, 3),)


def test_noise_that_is_written_after_it_was_saved(x: Tensor, w: Tensor) -> None:
    # 0 mul -> h; 1 empty_like -> n; 2 rrelu fills n and returns y, but h and n are saved before it runs; 3 sum; 4 ones_like;
    # 5 expand; 6 detach of what is asked for; 7 the backward of rrelu; 8 mul; ...
    result = seen(lambda: functional.rrelu(x * w, 0.1, 0.9, training=True).sum().backward())  # type: ignore[no-untyped-call]
    noise = facts(result, "empty_like")
    assert noise.late
    assert (noise.writers, noise.packs, noise.unpacks) == ((1, 2), (2,), (6,))
    assert (noise.lives, noise.death) == (((1, 3), (6, 8)), 8)
    # The noise can be drawn again; y cannot, as running its operation alone would write noise that is there already.
    assert result.instance.rebuildable[numbered(result, "empty_like")]
    assert not result.instance.rebuildable[numbered(result, "rrelu_with_noise")]


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_changes_its_buffers_without_saying_so(x: Tensor, w: Tensor, training: bool) -> None:
    norm = nn.BatchNorm1d(4).train(training)
    result = seen(lambda: norm(x * w).sum().backward())
    (operation,) = [t for t, o in enumerate(result.operations) if o.function == "aten.native_batch_norm.default"]
    assert result.operations[operation].obstacle == ("it changes a tensor from outside of the step" if training else "")
    assert result.instance.operations[operation].recomputable is not training


def test_what_reads_a_buffer_that_is_written_later_is_not_run_again(x: Tensor, w: Tensor) -> None:
    # 0 mul by the buffer: its value is gone once 1 has doubled it. 2 mul by the new value could run again.
    buffer = torch.ones(2, 4)

    def step() -> None:
        first = x * buffer
        buffer.mul_(2)
        (first * buffer * w).sum().backward()  # type: ignore[no-untyped-call]

    result = seen(step)
    assert result.operations[0].obstacle == "it reads a tensor from outside of the step that is written later"
    assert result.operations[1].obstacle == "it changes a tensor from outside of the step"
    assert result.operations[2].obstacle == ""
    assert torch.equal(buffer, torch.ones(2, 4))


def test_a_tied_parameter_is_no_tensor_of_the_step() -> None:
    # 0 embedding -> h; 1 t of the table; 2 mm; 3 sum; 4 ones_like; 5 expand; ... 9 the gradient of the table as a head,
    # 14 as embeddings, 15 their sum, 16 detach into the table's gradient.
    table = nn.Embedding(5, 4)
    tokens = torch.tensor([0, 3])

    def forward() -> Tensor:
        hidden = table(tokens)
        scores: Tensor = hidden @ table.weight.t()
        return scores.sum()

    result = seen(lambda: forward().backward())  # type: ignore[no-untyped-call]
    assert [tensor.name for tensor in result.instance.tensors][:2] == ["Embedding.embedding", "mm"]
    assert facts(result, "Embedding.embedding").packs == (2,)
    made = {tensor.kind: tensor.size for tensor in result.instance.tensors if "gradient" in tensor.kind}
    assert made["parameter gradient"] == 5 * 4 * 4
    (total,) = [i for i, tensor in enumerate(result.instance.tensors) if tensor.kind == "parameter gradient"]
    assert result.tensors[total].maker == 15
    assert result.tensors[total].death == len(result.operations)
    assert table.weight.grad is None


def test_autocast_keeps_copies_of_weights_until_it_ends(x: Tensor) -> None:
    # 0 copy of the weight; 1 copy of x; 2 t; 3 mm -> h; 4 t; 5 mm; 6 sum; autocast ends; 7 ones_like; ... 9 the weight is
    # asked for; 15 is its last use, the gradient of h. The second call finds the copy in autocast's cache.
    layer = nn.Linear(4, 4, bias=False)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = layer(layer(x)).sum()
        loss.backward()

    result = seen(step)
    copies = [tensor.name for tensor in result.instance.tensors if tensor.kind == "copy"]
    assert copies == ["Linear._to_copy", "Linear._to_copy#2"]
    weight = facts(result, "Linear._to_copy")
    assert (weight.lives, weight.packs, weight.unpacks) == (((0, 7), (9, 16)), (5,), (9,))
    assert gaps(result, "Linear._to_copy") == [IdleInterval(numbered(result, "Linear._to_copy"), 6, 9)]
    assert facts(result, "Linear._to_copy#2").lives == ((1, 4), (17, 20))


def test_a_custom_function_is_not_run_again(x: Tensor, w: Tensor) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * 2

    result = seen(lambda: Twice.apply(x * w).sum().backward())  # type: ignore[no-untyped-call]
    assert [operation.obstacle for operation in result.operations[:3]] == ["", "it runs inside a custom autograd Function", ""]


def test_what_is_filled_out_of_sight_is_not_run_again(x: Tensor, w: Tensor) -> None:
    # NumPy writes into the storage: no operator is seen between the allocation and the first read.
    def step() -> None:
        noise = torch.empty(4)
        noise.numpy()[:] = 3
        (x * (w * noise)).sum().backward()  # type: ignore[no-untyped-call]

    assert seen(step).operations[0].obstacle == "what it allocates is filled out of sight"


def test_a_generator_of_the_users_own_is_not_drawn_from_again(x: Tensor, w: Tensor) -> None:
    generator = torch.Generator()

    def step() -> None:
        generator.manual_seed(1)
        (x * w * torch.rand(4, generator=generator)).sum().backward()  # type: ignore[no-untyped-call]

    result = seen(step)
    (drawing,) = [operation for operation in result.operations if operation.random]
    assert drawing.obstacle == "it draws from a generator of the user's own"


def test_what_the_host_reads_is_not_run_again(x: Tensor, w: Tensor) -> None:
    def step() -> None:
        scale = (x * w).sum().item()
        (x * w * scale).sum().backward()  # type: ignore[no-untyped-call]

    reading = [o.obstacle for o in seen(step).operations if o.function == "aten._local_scalar_dense.default"]
    assert reading == ["the host reads its data"]


def test_modules_and_layers_name_operations_in_both_passes(x: Tensor) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    result = seen(lambda: model(x).sum().backward())
    blocks = [operation.block for operation in result.instance.operations]
    forward = [block for block, o in zip(blocks, result.instance.operations, strict=True) if o.phase == "forward"]
    assert forward == ["0", "0", "0", "1", "1", "1", None, None]
    tanh = [o for o in result.instance.operations if "tanh_backward" in o.name]
    assert [(o.name, o.block) for o in tanh] == [
        ("1.1.tanh_backward.backward", "1"),
        ("0.1.tanh_backward.backward", "0"),
    ]


def test_a_module_called_again_is_another_layer(x: Tensor) -> None:
    block = nn.Sequential(nn.Linear(4, 4))
    model = nn.ModuleList([block])
    holder = nn.Module()
    holder.layers = model
    holder.forward = lambda x: block(block(x))
    result = seen(lambda: holder(x).sum().backward())
    layers = [operation.block for operation in result.instance.operations if "addmm" in operation.name]
    assert layers == ["layers.0", "layers.0 (call 2)"]


def test_what_an_operation_allocates_inside_is_workspace(x: Tensor, w: Tensor) -> None:
    # 3 div_ of the mask by 0.5: the CPU makes a tensor of the number (8 bytes), and of that a float (4 bytes).
    result = seen(lambda: functional.dropout(x * w, 0.5).sum().backward())  # type: ignore[no-untyped-call]
    assert [operation.workspace for operation in result.instance.operations[:7]] == [0, 0, 0, 12, 0, 0, 0]
