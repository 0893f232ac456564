"""Training loops that memory savers stumble over: each holds one fault that users met, in a model of a few kilobytes.

`make` seeds and builds the model. `step(model, iteration, scope)` runs one iteration: it enters `scope()` around forward, calls
backward itself, and returns numbers that plain training reproduces bit for bit.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Scope = Callable[[], AbstractContextManager[object]]
Step = Callable[[nn.Module, int, Scope], list[float]]


@dataclass(frozen=True, slots=True)
class Case:
    """One training loop.

    Attributes
    ----------
    fault
        What goes wrong in a tool that is not careful.
    blocks
        Names of the modules that may be recomputed.
    """

    fault: str
    blocks: tuple[str, ...]
    build: Callable[[], nn.Module]
    step: Step

    def make(self) -> tuple[nn.Module, Step]:
        """Return the model, the same at each call, and its step."""
        torch.manual_seed(0)
        return self.build(), self.step


def plain_step(batch: Callable[[int], tuple[Tensor, ...]], loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor]) -> Step:
    """Return the usual step: a batch by iteration, forward in the scope, backward after it."""

    def step(model: nn.Module, iteration: int, scope: Scope) -> list[float]:
        torch.manual_seed(100 + iteration)
        inputs = batch(iteration)
        with scope():
            value = loss(model, inputs)
        value.backward()  # type: ignore[no-untyped-call]
        return [value.item()]

    return step


def normal(*shape: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Return batches of normal numbers."""
    return lambda _: (torch.randn(shape),)


def mean_square(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    """Return the mean square of what the model makes of the inputs."""
    result: Tensor = model(*inputs)
    return result.square().mean()


from tests.runtime.cases import (  # noqa: E402
    attention,
    control,
    in_place,
    layouts,
    nesting,
    precision,
    randomness,
    sharing,
    state,
)

CASES: dict[str, Case] = {
    name: case
    for module in (randomness, state, in_place, attention, sharing, control, precision, layouts, nesting)
    for name, case in module.CASES.items()
}
