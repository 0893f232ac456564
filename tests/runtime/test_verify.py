"""A step that checks itself finds a wrong bit, in what was saved or in a gradient, and changes nothing of the training."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from random import Random

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from slackswap_opt.instance import Instance
from slackswap_opt.runtime.budget import MemoryBudget, PlanLeftWarning
from slackswap_opt.runtime.rehearsal import same_bits
from slackswap_opt.runtime.transfers import Transfers
from slackswap_opt.runtime.verify import VerificationError, Verifying
from tests.runtime.cases import CASES
from tests.runtime.loops import (
    LOOPS,
    Loop,
    Net,
    Scope,
    accumulating,
    batches,
    checkpointed,
    checkpointed_with_reentry,
    compare,
    custom_function,
    everything,
    followed,
    ordinary,
    scaled,
    with_hooks,
)
from tests.runtime.plans import random_plan, recompute_all, schedule_of, swap_all
from tests.runtime.training import bits, difference, state, train

Counts = list[tuple[int, int]]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """What each verifying step compared: saved tensors and gradients."""
    found: Counts = []
    close = Verifying.close

    def closing(self: Verifying) -> None:
        found.append((self.compared, self.gradients))
        close(self)

    monkeypatch.setattr(Verifying, "close", closing)
    return found


def verifying(plan: Callable[[Instance], object] = lambda instance: random_plan(instance, Random(8))) -> MemoryBudget:
    return everything(lambda instance: schedule_of(instance, plan(instance)), verify=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("plan", [swap_all, recompute_all, lambda instance: random_plan(instance, Random(8))])
def test_each_first_step_verifies_what_comes_back(plan: Callable[[Instance], object], counts: Counts) -> None:
    budget = verifying(plan)
    compare(ordinary, budget)
    assert followed(budget) == [4]
    assert budget._plans[0].verified
    ((saved, gradients),) = counts
    assert saved > 10
    assert gradients == len(list(Net().parameters()))


@pytest.mark.parametrize("loop", [accumulating, scaled, checkpointed])
def test_a_pass_ahead_changes_nothing(loop: Loop, counts: Counts) -> None:
    budget = verifying()
    compare(loop, budget)
    assert all(plan.verified for plan in budget._plans)
    assert {gradients for _, gradients in counts} == {len(list(Net().parameters()))}


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_no_loop_is_changed(loop: Loop) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanLeftWarning)
        compare(loop, verifying())


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_no_case_is_changed(name: str, inside: bool) -> None:
    plain = train(CASES[name], nullcontext, 6, inside=inside)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PlanLeftWarning)
        assert difference(plain, train(CASES[name], verifying().step, 6, inside=inside)) == ""


@pytest.mark.parametrize("loop", [with_hooks, custom_function, checkpointed_with_reentry])
def test_python_code_runs_once(loop: Loop, counts: Counts) -> None:
    """A pass that runs any is not run ahead: only what was saved is compared."""
    compare(loop, verifying())
    assert [gradients for _, gradients in counts] == [0]
    assert all(saved > 10 for saved, _ in counts)


def test_a_hook_on_a_tensor_runs_once(counts: Counts) -> None:
    calls = list[int]()

    def hooked(model: Net, scope: Scope) -> list[object]:
        for step, x in enumerate(batches(4)):
            with scope():
                y = model(x)
                y.register_hook(lambda gradient, step=step: calls.append(step))
                loss = y.square().mean()
            loss.backward()
        return []

    compare(hooked, verifying())
    assert calls == [0, 1, 2, 3] * 2
    assert [gradients for _, gradients in counts] == [0]


@pytest.mark.parametrize("preserves", [True, False])
def test_what_a_checkpoint_runs_again_is_put_back(preserves: bool, counts: Counts) -> None:
    """It changes the running statistics of a norm and draws random numbers: in the pass ahead as in the real one."""
    outcomes = []
    for budget in (None, verifying(swap_all)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in batches(5):
            with budget.step() if budget else nullcontext():
                y = checkpoint(model[:4], x, use_reentrant=False, preserve_rng_state=preserves)
                model[4](y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        outcomes.append({name: bits(tensor) for name, tensor in state(model).items()})
    assert outcomes[0] == outcomes[1]
    assert next(gradients for _, gradients in counts) == 6


def test_verification_finds_a_wrong_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    offload = Transfers.offload

    def spoilt(self: Transfers, *args: object) -> object:
        copy = offload(self, *args)  # type: ignore[arg-type]
        copy.slot.contents[3] ^= 1
        return copy

    monkeypatch.setattr(Transfers, "offload", spoilt)
    budget = verifying(swap_all)
    with pytest.raises(VerificationError, match="came back with other bits than it was saved with"):
        ordinary(Net(), budget.step)
    budget.close()


def test_verification_finds_a_wrong_gradient() -> None:
    """The gradient is spoilt in the fourth pass, the real one of the third step: nothing that was saved is touched."""
    budget, model, passes = verifying(), Net(), list[int]()

    def spoil(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        passes.append(0)
        return tuple(g * (1 + 1e-6) for g in gradients) if len(passes) == 4 else gradients

    def step(x: Tensor) -> None:
        model.zero_grad()
        with budget.step():
            loss = model(x).square().mean()
        assert loss.grad_fn is not None
        loss.grad_fn.register_prehook(spoil)
        loss.backward()

    first, second, third = batches(3)
    step(first)
    step(second)
    with pytest.raises(VerificationError, match=r"gradient of a leaf of shape .* has other bits than in the all-swapped step"):
        step(third)
    assert len(passes) == 4
    budget.close()


def test_bits_are_compared_and_not_numbers() -> None:
    zero, nan = torch.zeros(3), torch.full((3,), torch.nan)
    assert not same_bits(zero, -zero)
    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, zero.double())
    assert not same_bits(zero, torch.zeros(1, 3))
    assert same_bits(torch.zeros(()), torch.zeros(()))
    assert same_bits(zero.to_sparse(), zero.to_sparse())
    assert not same_bits(torch.ones(2).to_sparse(), torch.tensor([1.0, 2.0]).to_sparse())
