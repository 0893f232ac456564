"""Trains models the plain way and under programs, and compares bit by bit."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from slackswap_opt.runtime.choose import Choosing
from slackswap_opt.runtime.execute import Execution, Route
from slackswap_opt.runtime.lanes import Immediate
from slackswap_opt.runtime.pool import Pool, layout
from slackswap_opt.runtime.program import Program
from slackswap_opt.runtime.running import Running
from slackswap_opt.runtime.transfers import Lanes, Transfers
from tests.runtime.cases import Case
from tests.runtime.scale import Scale


@dataclass(slots=True)
class History:
    """What a training leaves behind: losses, then after every step each gradient, parameter and buffer, and the generator."""

    losses: list[list[float]] = field(default_factory=list)
    states: list[dict[str, Tensor]] = field(default_factory=list)


def bits(tensor: Tensor) -> tuple[object, ...]:
    """Return all that a tensor is, so that two of them are equal if and only if every bit is."""
    if tensor.is_sparse:
        return bits(tensor._indices()), bits(tensor._values())
    return tensor.dtype, tensor.shape, tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def state(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of parameters, buffers and gradients."""
    found: dict[str, Tensor] = dict((*model.named_parameters(), *model.named_buffers()))
    gradients = {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    copies = {name: tensor.detach().clone() for name, tensor in (found | gradients).items()}
    return copies | {"generator": torch.get_rng_state()}


def train(case: Case, scope: Callable[[], AbstractContextManager[object]], steps: int = 4, *, inside: bool = True) -> History:
    """Train for some steps of gradient descent; `scope` is around a whole step if `inside`, else where the case puts it."""
    model, step = case.make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = History()
    for iteration in range(steps):
        optimizer.zero_grad()
        with scope() if inside else nullcontext():
            history.losses.append(step(model, iteration, nullcontext if inside else scope))
        history.states.append(state(model))
        optimizer.step()
    return history


def difference(one: History, two: History) -> str:
    """Return the first difference, or an empty string."""
    for number, (losses, others) in enumerate(zip(one.losses, two.losses, strict=True)):
        if list(map(float.hex, map(float, losses))) != list(map(float.hex, map(float, others))):
            return f"losses {losses} and {others} in step {number}"
    for number, (mine, theirs) in enumerate(zip(one.states, two.states, strict=True)):
        if mine.keys() != theirs.keys():
            return f"tensors {mine.keys() ^ theirs.keys()} in step {number}"
        for name, tensor in mine.items():
            if bits(tensor) != bits(theirs[name]):
                return f"tensor {name} in step {number}"
    return ""


@dataclass(slots=True)
class Runs:
    """Steps under one program, and what became of each.

    Attributes
    ----------
    program, lanes
        What is carried out, and what copies.
    weigh
        Whether a meter looks on.
    lasting
        Whether a step lasts until the next one begins, so that backward may come after its scope.
    others
        Programs for other kinds of steps: each step chooses.
    executions, scales
        Those so far.
    """

    program: Program
    lanes: Lanes = field(default_factory=Immediate)
    weigh: bool = False
    lasting: bool = False
    others: tuple[Program, ...] = ()
    executions: list[Execution] = field(default_factory=list)
    scales: list[Scale] = field(default_factory=list)
    pool: Pool = field(init=False)
    transfers: Transfers = field(init=False)
    latest: Running | None = None

    def __post_init__(self) -> None:
        layouts = [layout(program.instance, program.schedule) for program in (self.program, *self.others)]
        self.pool = Pool(layouts, self.program.device)
        self.transfers = Transfers(self.lanes)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Return a context for one step."""
        if self.latest is not None:
            self.latest.end()
        scale = Scale(self.program)
        routes = [Route(*pair) for pair in zip((self.program, *self.others), self.pool.slots, strict=True)]
        if self.others:
            execution: Execution = Choosing(routes, self.transfers)
        else:
            execution = Execution(routes[0], self.transfers, watch=scale.instruction if self.weigh else None)
        running = self.latest = Running(execution)
        self.executions.append(execution)
        self.scales.append(scale)
        if self.weigh:
            gc.disable()
        try:
            with scale.weighing(execution) if self.weigh else nullcontext(), running.scope():
                yield
        finally:
            if not self.lasting:
                running.end()
            if self.weigh:
                gc.enable()

    def check(self) -> None:
        """Assert that every step followed the program to its end, and held what the judge says."""
        for execution, scale in zip(self.executions, self.scales, strict=True):
            assert execution.reason == ""
            assert execution.index == len(self.program)
            assert execution.holdings.still_held == []
            assert scale.faults == []
            assert not self.weigh or scale.readings > len(self.program)
