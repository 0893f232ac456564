"""What following a step costs the host: `python tests/benchmarks/bench_host_cost.py [repeats]`.

A small model on the CPU, so that the host's work is nearly all of the step, which one thread does. What counts is the time that
this thread had a processor. Every round runs each variant once, so that a busy moment hits all alike; the figure is the lower
quartile over the rounds of the difference from the plain step of the same round, by operation.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

# A script's own folder is on the path, but not the root of the repository.
sys.path.append(str(Path(__file__).parents[2]))

from slackswap_opt.instance import Instance
from slackswap_opt.plan import Plan
from slackswap_opt.runtime import Profile, profile
from slackswap_opt.runtime.coarse import coarse
from slackswap_opt.runtime.execute import Execution, Route
from slackswap_opt.runtime.lanes import Immediate
from slackswap_opt.runtime.pool import Pool, layout
from slackswap_opt.runtime.program import Program, program_of
from slackswap_opt.runtime.running import Running
from slackswap_opt.runtime.transfers import Transfers
from slackswap_opt.schedule import Schedule
from tests.runtime.plans import recompute_all, schedule_of, swap_all

Scope = Callable[[], AbstractContextManager[object]]


class Layer(nn.Module):
    """A layer of a decoder."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend, then mix."""
        parts = self.inputs(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norm_2(x))))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Layers between a table and a head."""

    def __init__(self, layers: int, width: int, heads: int = 2, vocabulary: int = 32) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss of predicting each token from itself."""
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


class NoOperation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that does nothing."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class NoWrapper(NoOperation):  # type: ignore[no-untyped-call]
    """The same without what torch wraps around it for its compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def keep_all(instance: Instance) -> Plan:
    """Keep everything."""
    return Plan.keep_all(instance)


def under(program: Program) -> Scope:
    """Return what steps run in under a program."""
    slots = Pool([layout(program.instance, program.schedule)], program.device).slots[0]
    route, transfers = Route(program, slots), Transfers(Immediate())

    @contextmanager
    def scope() -> Any:
        running = Running(Execution(route, transfers))
        with running.scope():
            yield
        running.end()
        if running.execution.reason:
            raise RuntimeError(running.execution.reason)

    return scope


def variants(result: Profile) -> dict[str, Scope]:
    """Return what to compare."""
    found: dict[str, Scope] = {
        "plain": nullcontext,
        "hooks that do nothing": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
        "no-op mode": NoOperation,
        "no-op mode, not wrapped": NoWrapper,
    }
    for name, plan in (("keep-all", keep_all), ("swap-all", swap_all), ("recompute-all", recompute_all)):
        schedule: Schedule = schedule_of(result.instance, plan(result.instance))
        whole = program_of(result, schedule)
        standing = coarse(result, whole)
        found[f"{name}, whole clock"] = under(whole)
        if standing is not None:
            found[f"{name}, forward clock"] = under(standing)
    return found


def measure(step: Callable[[Scope], None], scopes: dict[str, Scope], repeats: int) -> dict[str, list[int]]:
    """Return the nanoseconds of each variant in each round."""
    times: dict[str, list[int]] = {name: [] for name in scopes}
    gc.disable()
    for _ in range(repeats):
        for name, scope in scopes.items():
            began = time.thread_time_ns()
            step(scope)
            times[name].append(time.thread_time_ns() - began)
        gc.collect()
    gc.enable()
    return times


def main(repeats: int = 150, layers: int = 3, width: int = 32) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, tokens = Decoder(layers, width), torch.randint(0, 32, (2, 16))

    def step(scope: Scope) -> None:
        for parameter in model.parameters():
            parameter.grad = None
        with scope():
            model(tokens).backward()

    result = profile(lambda: step(nullcontext), timed=False)
    gc.collect()
    gc.freeze()
    scopes = variants(result)
    measure(step, scopes, 3)
    times = measure(step, scopes, repeats)
    print("\n".join(lines(times, len(result.instance.operations))))


def lines(times: dict[str, list[int]], operations: int) -> Iterator[str]:
    """Yield a table: microseconds an operation beyond plain, the same as a multiple of the no-op mode's, and of the step."""
    plain = times["plain"]
    typical = {name: lower_quartile(taken) for name, taken in times.items()}
    beyond = {
        name: lower_quartile([mine - base for mine, base in zip(taken, plain, strict=True)]) / operations / 1e3
        for name, taken in times.items()
    }
    yield f"{operations} operations, plain step {typical['plain'] / 1e6:.2f} ms"
    yield f"{'':32}{'us an operation':>16}{'of no-op mode':>16}{'step':>12}"
    for name in times:
        multiple = beyond[name] / beyond["no-op mode"] if beyond["no-op mode"] else 0.0
        yield f"{name:32}{beyond[name]:16.2f}{multiple:16.2f}{typical[name] / 1e6:9.2f} ms"


def lower_quartile(values: list[int]) -> int:
    """Return the value that a quarter of them lies below."""
    return sorted(values)[len(values) // 4]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
