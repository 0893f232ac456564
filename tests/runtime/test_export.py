"""A plan's recompute half as selective checkpointing: the same bits, and the operations that the plan re-runs run again."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from slackswap_opt.files import InputError
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.runtime import Profile, profile
from slackswap_opt.runtime.export import checkpoint_policies
from slackswap_opt.schedule import Schedule
from tests.runtime.plans import schedule_of, swap_all
from tests.runtime.training import bits, state


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow, self.dropout = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.narrow(functional.gelu(self.wide(self.norm(x)))))  # type: ignore[no-any-return]


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(function)] += 1
        return function(*args, **(kwargs or {}))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer(), Layer())


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def trained(network: nn.Module) -> tuple[dict[str, tuple[object, ...]], Counter[str]]:
    torch.manual_seed(1)
    with Counting() as counting:
        network(X).square().sum().backward()
    return {name: bits(tensor) for name, tensor in state(network).items()}, counting.calls


def planned(*functions: str) -> tuple[Profile, Schedule]:
    """Return a profile, and a schedule that recomputes what some operators make."""
    network = model()
    result = profile(lambda: network(X).square().sum().backward(), timed=False)
    instance = result.instance
    chosen = {
        i for t, facts in enumerate(result.operations) if facts.function in functions for i in instance.operations[t].writes
    }
    intervals = tuple(
        Decision.RECOMPUTE if g.tensor in chosen and instance.can_recompute(g) else Decision.KEEP
        for g in instance.idle_intervals
    )
    return result, schedule_of(instance, Plan(intervals, (Decision.DISCARD,) * len(instance.tensors)))


@pytest.mark.parametrize(
    ("functions", "extra"),
    [
        # gelu's result is wanted by the second product; the first product's by gelu, and comes back from the norm. The second
        # product's is wanted by nobody, so that it is not saved, and runs again on the way to the dropout.
        (("aten.gelu.default",), {"aten.gelu.default": 3, "aten.addmm.default": 3}),
        (("aten.addmm.default",), {"aten.gelu.default": 0, "aten.addmm.default": 6}),
        (("aten.native_layer_norm.default",), {"aten.native_layer_norm.default": 3}),
    ],
)
def test_what_the_plan_recomputes_runs_again(functions: tuple[str, ...], extra: dict[str, int]) -> None:
    plain, calls = trained(model())
    policies = checkpoint_policies(*planned(*functions))
    network = model()
    with policies.applied(network):
        found, again = trained(network)
    assert found == plain
    for function, times in extra.items():
        assert again[function] == calls[function] + times
    assert [region.module for region in policies.regions] == ["0", "1", "2"]
    assert policies.lost == ()


def test_what_is_left_out_is_said() -> None:
    result, _ = planned()
    policies = checkpoint_policies(result, schedule_of(result.instance, swap_all(result.instance)))
    assert policies.regions == ()
    assert len(policies.lost) == 1
    assert policies.lost[0].endswith("that the schedule swaps are saved on the device")


def test_policies_for_another_model_are_refused() -> None:
    policies = checkpoint_policies(*planned("aten.gelu.default"))
    with pytest.raises(InputError, match="a module '0', which this one lacks"), policies.applied(nn.Linear(2, 2)):
        pass


def test_the_model_is_as_before_afterwards() -> None:
    network = model()
    with checkpoint_policies(*planned("aten.gelu.default")).applied(network):
        assert "forward" in network[0].__dict__  # type: ignore[index]
    assert "forward" not in network[0].__dict__  # type: ignore[index]
