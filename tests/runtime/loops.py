"""Training loops as people write them, around one small model, and what compares them under a budget with plain training."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from slackswap_opt.instance import Instance
from slackswap_opt.runtime.budget import MemoryBudget
from slackswap_opt.schedule import Schedule
from tests.runtime.plans import recompute_all, schedule_of
from tests.runtime.scale import Alive
from tests.runtime.training import bits, state

Scope = Callable[[], AbstractContextManager[object]]


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        layers = (
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
            )
            for _ in range(3)
        )
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


Loop = Callable[[Net, Scope], list[object]]


def batches(steps: int, rows: Callable[[int], int] = lambda step: 16) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        yield torch.randn(rows(step), 8, generator=generator)


def everything(plan: Callable[[Instance], Schedule] | None = None, **options: object) -> MemoryBudget:
    return MemoryBudget("1000%", method=plan or (lambda instance: schedule_of(instance, recompute_all(instance))), **options)  # type: ignore[arg-type]


def compare(loop: Loop, budget: MemoryBudget) -> None:
    """Assert that a loop under a budget leaves every bit as the plain one does, and no byte more."""
    outcomes = []
    for scope in (nullcontext, budget.step):
        torch.manual_seed(0)
        model = Net()
        with Alive() as alive:
            found = loop(model, scope)
            left = {name: bits(tensor) for name, tensor in state(model).items()}
            model.zero_grad()
            budget.close()
            memory = sum(plan.ready.host for plan in budget.report().plans) if scope is not nullcontext else 0
            outcomes.append((found, left, alive.held - memory))
    assert outcomes[0] == outcomes[1]


def followed(budget: MemoryBudget) -> list[int]:
    """Return how many steps followed each plan to its end."""
    return [sum(step.complete and not step.reason for step in plan.steps) for plan in budget.report().plans]


def ordinary(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses: list[object] = []
    for x in batches(6):
        with scope():
            loss = model(x).square().mean()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def backward_outside(model: Net, scope: Scope) -> list[object]:
    losses: list[object] = []
    for x in batches(6):
        with scope():
            loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
        losses.append(loss.item())
    return losses


def accumulating(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[object] = []
    for step, x in enumerate(batches(16)):
        with scope():
            loss = model(x).square().mean() / 2
            loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def scaled(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    losses: list[object] = []
    for step, x in enumerate(batches(8)):
        optimizer.zero_grad()
        with scope(), torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x * (1e30 if step == 5 else 1.0)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses += [scaler.get_scale()]
    return losses


def backward_under_autocast(model: Net, scope: Scope) -> list[object]:
    """Part of forward leaves autocast, and backward does not: what runs again must not meet it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[object] = []
    for x in batches(6):
        with scope(), torch.autocast("cpu", dtype=torch.bfloat16):
            y = model.layers[0](x)
            with torch.autocast("cpu", enabled=False):
                loss = model(y.float()).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def evaluating(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[object] = []
    for x in batches(6):
        with scope():
            loss = model(x).square().mean()
            model.eval()
            with torch.inference_mode():
                found.append(model(x[:5]).sum().item())
            model.train()
        loss.backward()
        model.eval()
        with torch.no_grad():
            found.append(model(x[:3]).sum().item())
        model.train()
        optimizer.step()
        optimizer.zero_grad()
    return found


def checkpointed(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second, third = model.layers
    losses: list[object] = []
    for x in batches(6):
        with scope():
            y = checkpoint(second, first(x), use_reentrant=False)
            loss = third(y).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def with_hooks(model: Net, scope: Scope) -> list[object]:
    """Hooks on modules, on gradients, and one that steps the optimizer as soon as a gradient is there."""
    seen: list[object] = []
    model.layers[1].register_full_backward_hook(lambda module, ingoing, outgoing: seen.append(outgoing[0].sum().item()))  # type: ignore[index]
    model.layers[0].register_forward_hook(lambda module, args, out: out * 2)

    def update(parameter: Tensor) -> None:
        with torch.no_grad():
            assert parameter.grad is not None
            parameter.sub_(0.1 * parameter.grad)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
    for x in batches(6):
        with scope():
            loss = model(x).square().mean()
        loss.backward()
        seen.append(loss.item())
    return seen


def optimizer_inside(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses: list[object] = []
    for x in batches(7):
        with scope():
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        losses.append(loss.item())
    return losses


def gradients_set_to_zero(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses: list[object] = []
    for x in batches(7):
        with scope():
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        losses.append(loss.item())
    return losses


def several_backwards_in_a_scope(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[object] = []
    for x in batches(6):
        with scope():
            for part in x.chunk(2):
                loss = model(part).square().mean() / 2
                loss.backward()
                losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def scaler_inside(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scales: list[object] = []
    for step, x in enumerate(batches(9)):
        with scope():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(x * (1e30 if step == 5 else 1.0)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        scales.append(scaler.get_scale())
    return scales


def evaluating_after_backward(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[object] = []
    for x in batches(6):
        with scope():
            model(x).square().mean().backward()
            with torch.no_grad():
                found.append(model(x[:5]).sum().item())
        optimizer.step()
        optimizer.zero_grad()
    return found


def checkpointed_with_reentry(model: Net, scope: Scope) -> list[object]:
    return _in_parts(model, scope, lambda y: checkpoint(model.layers[1], y, use_reentrant=True))


def hooks_on_saved_tensors(model: Net, scope: Scope) -> list[object]:
    """The user's own hooks inside of the scope: those on the inside are the ones that see a tensor."""

    def second(y: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, torch.Tensor.clone):
            return model.layers[1](y)  # type: ignore[no-any-return]

    return _in_parts(model, scope, second)


def copies_on_the_host_outside(model: Net, scope: Scope) -> list[object]:
    @contextmanager
    def both() -> Iterator[None]:
        with torch.autograd.graph.save_on_cpu(), scope():
            yield

    return backward_outside(model, both)


class Shifted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of the user's that changes what an operator does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result + 1 if function is torch.ops.aten.gelu.default else result


def mode_outside(model: Net, scope: Scope) -> list[object]:
    """What runs again after the mode's scope was left has to run under it all the same."""

    @contextmanager
    def both() -> Iterator[None]:
        with Shifted(), scope():
            yield

    return backward_outside(model, both)


def mode_inside(model: Net, scope: Scope) -> list[object]:
    """What the runtime saw below the mode runs again while it is active, and must not pass it."""

    @contextmanager
    def both() -> Iterator[None]:
        with scope(), Shifted():
            yield

    return ordinary(model, both)


def mode_around_a_part(model: Net, scope: Scope) -> list[object]:
    def second(y: Tensor) -> Tensor:
        with Shifted():
            return model.layers[1](y)  # type: ignore[no-any-return]

    return _in_parts(model, scope, second)


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _, y = ctx.saved_tensors
        return gradient * y  # type: ignore[no-any-return]


class Doubled(torch.autograd.Function):
    """Written where no operator is seen, after another operation of the same Function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        factor = torch.full((1,), 2.0)
        y.numpy()[:] *= 2
        ctx.save_for_backward(y, factor)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        y, factor = ctx.saved_tensors
        return gradient * factor * y  # type: ignore[no-any-return]


def kernel_in_a_function(model: Net, scope: Scope) -> list[object]:
    return _in_parts(model, scope, lambda y: model.layers[1](Doubled.apply(y.sin())).sin())  # type: ignore[no-untyped-call]


def custom_function(model: Net, scope: Scope) -> list[object]:
    return _in_parts(model, scope, lambda y: model.layers[1](Exponential.apply(y)))  # type: ignore[no-untyped-call]


@torch.library.custom_op("slackswap_tests::drop", mutates_args=())
def drop(x: Tensor) -> Tensor:
    """Draws random numbers, and does not say so by a tag."""
    return x * (torch.rand(x.shape) > 0.1)


drop.register_autograd(lambda ctx, gradient: gradient)


def custom_operator(model: Net, scope: Scope) -> list[object]:
    return _in_parts(model, scope, lambda y: model.layers[1](drop(y)).sigmoid())


def recurrent(model: Net, scope: Scope) -> list[object]:
    """On the CPU an operator whose results depend on whether gradients are computed."""
    torch.manual_seed(1)
    memory = nn.LSTM(8, 8)
    return _in_parts(model, scope, lambda y: memory(y)[0].sigmoid())


def other_default_type(model: Net, scope: Scope) -> list[object]:
    model.double()

    def second(y: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        try:
            return y * (torch.arange(8) / 7).exp()
        finally:
            torch.set_default_dtype(torch.float32)

    return _in_parts(model, scope, second, torch.float64)


def inference_buffer(model: Net, scope: Scope) -> list[object]:
    """Written again before backward: plain training does not mind, since it saved what was made of it."""
    with torch.inference_mode():
        shift = torch.zeros(8)

    def second(y: Tensor) -> Tensor:
        bias = model.get_parameter("layers.1.0.bias").detach()
        return y * (shift + bias).exp()

    return _in_parts(model, scope, second, before_backward=lambda: _written(shift))


def _written(shift: Tensor) -> None:
    with torch.inference_mode():
        shift.add_(1)


def reused_array(model: Net, scope: Scope) -> list[object]:
    """A loader that fills the same array with each batch."""
    array = np.zeros(8, np.float32)
    shift = torch.from_numpy(array)

    def refill() -> None:
        array[:] += 1

    return _in_parts(model, scope, lambda y: y * (shift * 0.1).exp(), before_backward=refill)


def shapes_on_meta(model: Net, scope: Scope) -> list[object]:
    return _in_parts(model, scope, lambda y: model.layers[1](y) * torch.empty(3, 4, device="meta").t().shape[0])


def differentiated_twice(model: Net, scope: Scope) -> list[object]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[object] = []
    for x in batches(6):
        x.requires_grad_()
        with scope():
            loss = model(x).square().mean()
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            (loss + slope.square().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _in_parts(
    model: Net,
    scope: Scope,
    second: Callable[[Tensor], Tensor],
    dtype: torch.dtype = torch.float32,
    before_backward: Callable[[], None] = lambda: None,
) -> list[object]:
    """Train with `second` in the place of the second layer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[object] = []
    for x in batches(6):
        with scope():
            loss = model.layers[2](second(model.layers[0](x.to(dtype)))).square().mean()
        before_backward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


LOOPS: dict[Loop, int] = {
    ordinary: 4,
    backward_outside: 4,
    accumulating: 12,
    scaled: 6,
    backward_under_autocast: 4,
    evaluating: 4,
    checkpointed: 4,
    with_hooks: 4,
    optimizer_inside: 4,
    gradients_set_to_zero: 4,
    several_backwards_in_a_scope: 4,
    scaler_inside: 4,
    evaluating_after_backward: 4,
    checkpointed_with_reentry: 4,
    hooks_on_saved_tensors: 4,
    copies_on_the_host_outside: 4,
    mode_outside: 4,
    mode_inside: 4,
    mode_around_a_part: 4,
    custom_function: 4,
    kernel_in_a_function: 4,
    custom_operator: 4,
    recurrent: 3,
    other_default_type: 4,
    inference_buffer: 4,
    reused_array: 4,
    shapes_on_meta: 4,
    differentiated_twice: 4,
}
"""The loops, and how many of their steps follow a plan at least."""
