"""Steps that do something else than they were planned for: results stay those of plain training, and nothing is left behind."""

import gc
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from random import Random

import pytest
import torch
from torch import Tensor, nn

from slackswap_opt.runtime import Profile, Profiler
from slackswap_opt.runtime.coarse import coarse
from slackswap_opt.runtime.program import Program, program_of
from tests.runtime.plans import random_plan, recompute_all, schedule_of, swap_all
from tests.runtime.scale import Alive
from tests.runtime.training import Runs, bits, state

Scope = Callable[[], AbstractContextManager[object]]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.narrow(nn.functional.gelu(self.wide(self.norm(x)))))  # type: ignore[no-any-return]


class Model(nn.Module):
    """Three blocks, and a place between them where a test can do something."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(6) for _ in range(3))
        self.register_buffer("scale", torch.full((6,), 1.5))
        self.between: Callable[[int, Tensor], Tensor] = lambda number, x: x

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = self.between(number, block(x) * self.scale)
        return x


def inputs(rows: int = 4) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(5))


def usual(model: Model, scope: Scope) -> None:
    with scope():
        loss = model(inputs()).square().mean()
    loss.backward()


@cache
def profiled() -> Profile:
    torch.manual_seed(0)
    model = Model()
    # Profiled as it will run: the gradient of the loss is made outside of the scope, so the clock does not see it.
    profiler = Profiler(timed=False)
    for _ in range(3):
        model.zero_grad()
        usual(model, profiler.step)
    return profiler.profile()


@cache
def programs() -> tuple[Program, ...]:
    result = profiled()
    random = Random(4)
    schedules = [schedule_of(result.instance, plan(result.instance)) for plan in (swap_all, recompute_all)]
    schedules += [schedule_of(result.instance, random_plan(result.instance, random), random) for _ in range(2)]
    found = []
    for schedule in schedules:
        program = program_of(result, schedule)
        standing = coarse(result, program)
        assert standing is not None
        found += [program, standing]
    return tuple(found)


KINDS = [f"{kind}, {clock}" for kind in ("swap", "recompute", "random", "other random") for clock in ("whole", "coarse")]
OFTEN = (1, 2, 5)


@pytest.fixture(params=[pytest.param(k, id=KINDS[k], marks=[pytest.mark.slow] * (k not in OFTEN)) for k in range(8)])
def program(request: pytest.FixtureRequest) -> Program:
    number: int = request.param
    return programs()[number]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training leaves: every bit of it, what was raised, and the bytes that are still alive."""

    state: dict[str, tuple[object, ...]]
    results: list[object]
    left: int


Deviation = Callable[[Model, Scope], list[object]]


def outcome(deviation: Deviation, scope: Scope) -> Outcome:
    """Run a usual step, the deviating one, and another usual one."""
    torch.manual_seed(0)
    model = Model()
    gc.collect()
    with Alive() as alive:
        usual(model, scope)
        results = deviation(model, scope)
        model.between = lambda number, x: x
        usual(model, scope)
    found = {name: bits(tensor) for name, tensor in state(model).items()}
    model.zero_grad()
    gc.collect()
    return Outcome(found, results, alive.held)


def other_batch(model: Model, scope: Scope) -> list[object]:
    with scope():
        loss = model(inputs(7)).square().mean()
    loss.backward()
    return [loss.item()]


def another_operation(model: Model, scope: Scope) -> list[object]:
    model.between = lambda number, x: x * 2 if number == 1 else x
    usual(model, scope)
    return []


def an_operation_in_place(model: Model, scope: Scope) -> list[object]:
    model.between = lambda number, x: x.add_(1) if number == 1 else x
    usual(model, scope)
    return []


def a_write_to_what_was_read(model: Model, scope: Scope) -> list[object]:
    """Change a buffer that operations before have read: what they made must not be made again from it."""

    def between(number: int, x: Tensor) -> Tensor:
        if number == 2:
            model.scale.data.mul_(3)
        return x

    model.between = between
    usual(model, scope)
    return []


def exception_in_forward(model: Model, scope: Scope) -> list[object]:
    def fail(number: int, x: Tensor) -> Tensor:
        if number == 1:
            raise ValueError("in forward")
        return x

    model.between = fail
    with suppress(ValueError):
        usual(model, scope)
    return []


def exception_in_a_hook(model: Model, scope: Scope) -> list[object]:
    def fail(gradient: Tensor) -> None:
        raise ValueError("in backward")

    def between(number: int, x: Tensor) -> Tensor:
        if number == 1:
            x.register_hook(fail)  # type: ignore[no-untyped-call]
        return x

    model.between = between
    with suppress(ValueError):
        usual(model, scope)
    return []


def no_backward(model: Model, scope: Scope) -> list[object]:
    with scope():
        loss = model(inputs()).square().mean()
    return [loss.item()]


def backward_twice(model: Model, scope: Scope) -> list[object]:
    with scope():
        loss = model(inputs()).square().mean()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    return [loss.item()]


def backward_after_the_next_step(model: Model, scope: Scope) -> list[object]:
    with scope():
        first = model(inputs()).square().mean()
    with scope():
        second = model(inputs()).abs().sum()
    second.backward()
    first.backward()
    return [first.item(), second.item()]


def both_losses_at_once(model: Model, scope: Scope) -> list[object]:
    losses = []
    for _ in range(2):
        with scope():
            losses.append(model(inputs()).square().mean())
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    return []


def gradient_in_forward(model: Model, scope: Scope) -> list[object]:
    found: list[object] = []

    def between(number: int, x: Tensor) -> Tensor:
        if number == 1:
            (slope,) = torch.autograd.grad(x.square().sum(), model.blocks[0].wide.weight, retain_graph=True)  # type: ignore[union-attr,arg-type]
            found.append(slope.sum().item())
        return x

    model.between = between
    usual(model, scope)
    return found


def an_unused_branch(model: Model, scope: Scope) -> list[object]:
    for _ in range(20):
        with scope():
            x = inputs()
            loss = model(x).square().mean()
            unused = model.blocks[1](x)
        loss.backward()
        del unused
    return []


def part_of_a_graph(model: Model, scope: Scope) -> list[object]:
    with scope():
        middle = model.blocks[0](inputs())
        loss = (model.blocks[1](middle) * model.scale).square().mean()
    (slope,) = torch.autograd.grad(loss, middle, retain_graph=True)
    loss.backward()
    return [bits(slope)]


def written_before_backward(model: Model, scope: Scope) -> list[object]:
    """Write over a saved tensor, which autograd refuses to differentiate."""
    with scope():
        x = model.blocks[0](inputs())
        y = x.exp()
        y.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        return ["modified by an inplace operation" in str(error)]
    return []


def written_after_the_scope(model: Model, scope: Scope) -> list[object]:
    """The same, where the step was as planned until then."""
    with scope():
        x = model(inputs())
        loss = x.square().mean()
    with torch.no_grad():
        x.add_(1)
    try:
        loss.backward()
    except RuntimeError as error:
        return ["modified by an inplace operation" in str(error)]
    return []


def forward_only_in_part(model: Model, scope: Scope) -> list[object]:
    with scope():
        loss = model.blocks[0](inputs()).square().mean()
    loss.backward()
    return [loss.item()]


DEVIATIONS: list[Deviation] = [
    other_batch,
    another_operation,
    an_operation_in_place,
    a_write_to_what_was_read,
    exception_in_forward,
    exception_in_a_hook,
    no_backward,
    backward_twice,
    backward_after_the_next_step,
    both_losses_at_once,
    gradient_in_forward,
    an_unused_branch,
    part_of_a_graph,
    written_before_backward,
    written_after_the_scope,
    forward_only_in_part,
]


@cache
def plainly(deviation: Deviation) -> Outcome:
    return outcome(deviation, nullcontext)


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_deviations(deviation: Deviation, program: Program) -> None:
    expected = plainly(deviation)
    runs = Runs(program, lasting=True)
    found = outcome(deviation, runs.step)
    assert found.results == expected.results
    assert [name for name, value in found.state.items() if value != expected.state[name]] == []
    assert found.left == expected.left
    assert runs.executions[0].reason == ""


def test_the_usual_step_follows_its_program(program: Program) -> None:
    runs = Runs(program, lasting=True)

    def start_again(model: Model, scope: Scope) -> list[object]:
        model.zero_grad()
        return []

    outcome(start_again, runs.step)
    assert [(execution.reason, execution.index) for execution in runs.executions] == [("", len(program))] * 2


def test_nothing_is_held_once_a_graph_is_gone_without_backward(program: Program) -> None:
    torch.manual_seed(0)
    model = Model()
    runs = Runs(program, lasting=True)
    with Alive() as alive:
        usual(model, runs.step)
        model.zero_grad()
        before = alive.held
        with runs.step():
            loss = model(inputs()).square().mean()
        assert alive.held > before
        del loss
        assert alive.held == before


def written_before_backward_in(name: str, scope: Scope) -> tuple[Model, str]:
    """Write a parameter between forward and backward; return the model and what backward raised."""
    torch.manual_seed(0)
    model = Model()
    with scope():
        loss = model(inputs()).square().mean()
    with torch.no_grad():
        model.get_parameter(name).add_(1)
    try:
        loss.backward()
    except RuntimeError as error:
        return model, str(error)
    return model, ""


def gradients(model: Model) -> dict[str, tuple[object, ...]]:
    return {name: bits(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def test_a_parameter_written_before_backward_is_the_error_of_plain_training(program: Program) -> None:
    """How far backward came when it raised differs where operations run again: they meet the parameter earlier."""
    expected, plain_error = written_before_backward_in("blocks.0.wide.weight", nullcontext)
    found, error = written_before_backward_in("blocks.0.wide.weight", Runs(program, lasting=True).step)
    assert "modified by an inplace operation" in plain_error
    assert "modified by an inplace operation" in error
    assert gradients(found).items() <= gradients(expected).items()
    assert gradients(found) == gradients(expected) or program.timeline.recomputed


def test_a_parameter_that_only_a_rerun_reads_must_not_be_written_before_backward(program: Program) -> None:
    runs = Runs(program, lasting=True)
    expected, _ = written_before_backward_in("blocks.0.wide.bias", nullcontext)
    found, error = written_before_backward_in("blocks.0.wide.bias", runs.step)
    if error:
        assert program.timeline.recomputed
        assert "has to run again on it: write it after backward, or leave the module" in error
        assert gradients(found).items() <= gradients(expected).items()
    else:
        assert gradients(found) == gradients(expected)


def test_the_error_of_a_rerun_is_raised_where_every_operation_runs_again() -> None:
    for program in programs()[2:4]:
        _, error = written_before_backward_in("blocks.0.wide.bias", Runs(program, lasting=True).step)
        assert "has to run again on it" in error


def test_what_cannot_run_again_is_no_error_where_nothing_asks_for_it() -> None:
    weight, shift = nn.Parameter(torch.linspace(0.1, 0.9, 6)), nn.Parameter(torch.ones(6))

    def forward() -> tuple[Tensor, Tensor]:
        other = weight.cos().sin().sum()
        return (weight * shift + shift).sin().sum(), other

    profiler = Profiler(timed=False)
    for _ in range(2):
        weight.grad = shift.grad = None
        with profiler.step():
            one, two = forward()
        (one + two).backward()  # type: ignore[no-untyped-call]
    result = profiler.profile()
    program = program_of(result, schedule_of(result.instance, recompute_all(result.instance)))
    runs = Runs(program, lasting=True)
    with runs.step():
        one, two = forward()
    with torch.no_grad():
        shift.add_(1)
    (slope,) = torch.autograd.grad(two, weight)
    assert torch.equal(slope, weight.cos().cos() * -weight.sin())
    assert "was changed" in runs.executions[0].reason


@pytest.mark.parametrize(
    ("target", "late", "reason"),
    [
        ("shift", False, "is still needed where it should be dropped"),
        ("shift", True, "may have to run again on something that is about to change"),
        ("base", True, "may have to run again on something that is about to change"),
    ],
)
def test_what_an_unplanned_write_spoils_is_there(target: str, late: bool, reason: str) -> None:
    """The operation is the planned one, but it writes what a planned re-run would read: before it should go, or after."""
    weight, counter = nn.Parameter(torch.linspace(0.1, 0.9, 6)), torch.zeros(6)
    shift = torch.ones(6)

    def forward(written: str) -> Tensor:
        tensors = {"base": weight * 2, "shift": shift, "counter": counter}
        moved = tensors["base"] + shift
        if not late:
            tensors[written].add_(1)
        result = moved.sin()
        del moved
        if late:
            tensors[written].add_(1)
        return result.sum()

    def step(scope: Scope, written: str) -> tuple[object, ...]:
        weight.grad = None
        shift.fill_(1)
        with scope():
            loss = forward(written)
        loss.backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        return bits(weight.grad)

    profiler = Profiler(timed=False)
    for _ in range(3):
        step(profiler.step, "counter")
    result = profiler.profile()
    runs = Runs(program_of(result, schedule_of(result.instance, recompute_all(result.instance))), lasting=True)
    expected = step(nullcontext, target)
    step(runs.step, "counter")
    assert step(runs.step, target) == expected
    assert runs.executions[0].reruns > 0
    assert reason in runs.executions[1].reason


@pytest.mark.parametrize(
    ("deviation", "reason"),
    [(another_operation, r"operation \d+ is aten\.mul\.Tensor, not '"), (other_batch, "makes storages of other sizes than '")],
)
def test_another_step_leaves_its_program_and_says_why(deviation: Deviation, reason: str) -> None:
    for program in programs()[:4]:
        runs = Runs(program, lasting=True)
        outcome(deviation, runs.step)
        assert re.search(reason, runs.executions[1].reason)


def test_a_re_run_that_would_read_another_tensor_leaves_its_program() -> None:
    weight, shift = nn.Parameter(torch.linspace(0.1, 0.9, 6)), torch.ones(6)

    def step(scope: Scope, other: bool = False) -> tuple[object, ...]:
        weight.grad = None
        with scope():
            double, triple = weight * 2, weight * 3
            one, two = (triple, double) if other else (double, triple)
            loss = (one + shift).sin().sum() + two.sum()
        del double, triple, one, two
        loss.backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        return bits(weight.grad)

    profiler = Profiler(timed=False)
    for _ in range(3):
        step(profiler.step)
    result = profiler.profile()
    runs = Runs(program_of(result, schedule_of(result.instance, recompute_all(result.instance))), lasting=True)
    expected = step(nullcontext, other=True)
    step(runs.step)
    assert step(runs.step, other=True) == expected
    assert runs.executions[0].reruns > 0
    assert "reads other tensors than in the profile" in runs.executions[1].reason


def test_a_clock_that_stands_still_notices_another_saved_tensor() -> None:
    """Forward is as planned, and backward begins with another branch."""
    weight = nn.Parameter(torch.linspace(0.1, 0.9, 6))

    def forward() -> tuple[Tensor, Tensor]:
        return (weight * 2).sin().sum(), (weight * 3).cos().sum()

    profiler = Profiler(timed=False)
    for _ in range(3):
        weight.grad = None
        with profiler.step():
            one, two = forward()
        (one + two).backward()  # type: ignore[no-untyped-call]
    result = profiler.profile()
    standing = coarse(result, program_of(result, schedule_of(result.instance, swap_all(result.instance))))
    assert standing is not None
    runs = Runs(standing, lasting=True)
    with runs.step():
        one, _ = forward()
    (slope,) = torch.autograd.grad(one, weight)
    assert torch.equal(slope, (weight * 2).cos() * 2)
    assert "autograd asks for another saved tensor than in the profile" in runs.executions[0].reason
