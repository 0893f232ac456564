"""A plan's recompute half as selective checkpointing: the same bits, and the operations that the plan re-runs run again."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from slackswap_opt.files import InputError
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.runtime import Profile, profile
from slackswap_opt.runtime.export import checkpoint_policies
from slackswap_opt.runtime.language_models import Gpt2, Llama, Shape
from slackswap_opt.schedule import Schedule
from slackswap_opt.solve import solve
from tests.runtime.meters import untouched_peak
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


SHAPE = Shape(layers=3, width=32, heads=2, feed_forward=64, vocabulary=31, length=16)
MODELS = {"gpt-2": (Gpt2, replace(SHAPE, dropout=0.1)), "llama": (Llama, SHAPE)}


def language_model(name: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    kind, shape = MODELS[name]
    return kind(shape), torch.randint(0, shape.vocabulary, (4, shape.length))


def loss_of(network: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten())


def train_on(network: nn.Module, tokens: torch.Tensor) -> None:
    loss_of(network, tokens).backward()  # type: ignore[no-untyped-call]


def losses(network: nn.Module, tokens: torch.Tensor, steps: int = 3) -> tuple[list[object], int]:
    """Train; return all that is left after every step, and the most bytes that one more step holds."""
    optimizer, left = torch.optim.AdamW(network.parameters(), lr=0.01), list[object]()
    torch.manual_seed(1)
    for _ in range(steps):
        train_on(network, tokens)
        left += [bits(tensor) for tensor in state(network).values()]
        optimizer.step()
        optimizer.zero_grad()
    return left, untouched_peak(lambda: train_on(network, tokens))


@pytest.mark.parametrize("name", MODELS)
def test_training_goes_on_as_without_policies_in_less_memory(name: str) -> None:
    plain = losses(*language_model(name))
    network, tokens = language_model(name)
    found = profile(lambda: train_on(network, tokens), timed=False)
    instance = replace(found.instance, operations=tuple(replace(o, duration=1) for o in found.instance.operations))
    least = max(instance.floor)
    result = solve(instance, budget=(least + instance.peak) // 2, method="recompute-only")
    assert result.schedule is not None
    policies = checkpoint_policies(found, Schedule.of(found.instance, result.schedule.instructions))
    assert not any("swaps" in words for words in policies.lost)
    with policies.applied(network):
        left, peak = losses(network, tokens)
    assert left == plain[0]
    assert peak < plain[1]


class Compiler:
    """Compiles to what it is given, and counts the operators of the backward graph."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def compiled(self, network: nn.Module) -> Any:
        backend = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph), bw_compiler=self._backward)
        return torch.compile(network, backend=backend)

    def _backward(self, graph: torch.fx.GraphModule, _: object) -> Any:
        self.calls.update(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph)


@pytest.mark.parametrize("functions", [("aten.gelu.default",), ("aten.addmm.default",), ("aten.native_layer_norm.default",)])
def test_a_compiled_model_runs_the_same_again(functions: tuple[str, ...]) -> None:
    _, eagerly_plain = trained(model())
    policies, eager = checkpoint_policies(*planned(*functions)), model()
    with policies.applied(eager):
        _, eagerly = trained(eager)
    results = []
    for context in (nullcontext, policies.applied):
        torch._dynamo.reset()
        network, compiler = model(), Compiler()
        with context(network):
            torch.manual_seed(1)
            compiler.compiled(network)(X).square().sum().backward()
        results.append({name: bits(tensor) for name, tensor in state(network).items()})
    assert results[0] == results[1]
    for function in ("aten.gelu.default", "aten.addmm.default", "aten.native_layer_norm.default"):
        assert compiler.calls[function] == eagerly[function] - eagerly_plain[function]


def test_the_example_of_the_documents(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "runtime.md").read_text()
    (example,) = [block for block in text.split("```python\n")[1:] if "checkpoint_policies" in block]
    network, tokens = language_model("gpt-2")

    def train(trained: nn.Module) -> None:
        assert trained is network
        assert "forward" in trained.layers[0].__dict__  # type: ignore[index]
        train_on(trained, tokens)

    exec(example.partition("```")[0], {"model": network, "step": lambda: train_on(network, tokens), "train": train})
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert "that the schedule swaps" not in capsys.readouterr().out


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
