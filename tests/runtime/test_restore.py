"""A profile leaves a training as it found it."""

import random
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from slackswap_opt.runtime import Profiler, profile
from tests.runtime.cases import CASES
from tests.runtime.cases.sharing import _Repeated

STEPS = 4


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(bits(one[name]), bits(two[name])) for name in one)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor: what is no number is equal to itself."""
    return torch.view_as_real(tensor).view(torch.uint8) if tensor.is_complex() else tensor.reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("name", ["batch_norm", "top_two_experts", "evaluation_between", "moving_average"])
def test_buffers_parameters_gradients_and_random_numbers_are_put_back(name: str) -> None:
    model, step = CASES[name].make()
    before, numbers, python = state(model), torch.get_rng_state(), random.getstate()
    result = profile(lambda: step(model, 1, nullcontext), timed=True)
    assert same(state(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert random.getstate() == python
    assert len(result.restored) == 2


def test_gradients_that_were_there_are_put_back_too() -> None:
    # A step that adds to gradients is another step: their additions are operations of it.
    model, step = CASES["dropout"].make()
    fresh = profile(lambda: step(model, 0, nullcontext), timed=False)
    step(model, 0, nullcontext)
    gradients = [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in gradients if gradient is not None]
    added = profile(lambda: step(model, 0, nullcontext), timed=False)
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(p.grad, value) for p, value in zip(model.parameters(), values, strict=True) if p.grad is not None)
    assert sum("add_" in o.function for o in added.operations) == sum("add_" in o.function for o in fresh.operations) + 4


def test_an_optimizer_inside_of_the_step_is_undone() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, before = torch.ones(2, 3), state(model)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    result = profile(step, timed=False)
    assert same(state(model), before)
    assert "2 buffers, parameters or gradients that it wrote (48 bytes)" in result.restored


def test_an_optimizer_that_makes_its_state_in_every_step_leaves_it_behind() -> None:
    # Adam's averages: 12 numbers of 4 bytes, twice, and a counter of 4 bytes for each of the two parameters.
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step() -> None:
        optimizer.state.clear()
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()

    before = state(model)
    assert profile(step, timed=False).left == (6, 2 * 12 * 4 + 2 * 4)
    assert same(state(model), before)


def trained(name: str, profiler: Profiler | None) -> tuple[list[list[float]], nn.Module, torch.Tensor]:
    model, step = CASES[name].make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for iteration in range(STEPS):
        optimizer.zero_grad()
        losses.append(step(model, iteration, nullcontext if profiler is None else profiler.step))
        optimizer.step()
    return losses, model, torch.get_rng_state()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.to_dense() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", CASES)
def test_training_under_a_profiler_gives_the_same_bits(name: str) -> None:
    plain, model, numbers = trained(name, None)
    profiled, other, other_numbers = trained(name, Profiler(timed=False))
    assert repr(profiled) == repr(plain)
    assert same(state(model), state(other))
    assert same(gradients(model), gradients(other))
    assert torch.equal(numbers, other_numbers)


def test_the_last_two_equal_steps_of_a_training_are_its_profile() -> None:
    profiler = Profiler(timed=False, name="training")
    model, step = CASES["one_block_three_times"].make()
    for iteration in range(3):
        model.zero_grad()
        step(model, iteration, profiler.step)
    result = profiler.profile()
    assert isinstance(model, _Repeated)
    assert result.instance.name == "training"
    assert result.steps == 3
    assert any(operation.phase == "backward" for operation in result.instance.operations)
    assert result.instance.rebuildable.count(True) > 3
