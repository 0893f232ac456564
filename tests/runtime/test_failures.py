"""What cannot be profiled or planned is refused in one sentence, and what fails under a plan leaves nothing behind."""

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from slackswap_opt.files import InputError
from slackswap_opt.runtime import MemoryBudget, ProfileError, Profiler, measure_link, profile, profile_fake
from slackswap_opt.runtime.lanes import Immediate
from slackswap_opt.runtime.replay import quiet
from slackswap_opt.runtime.target import find_step
from slackswap_opt.schedule import Schedule
from tests.runtime.loops import Loop, Net, backward_outside, batches, everything, ordinary
from tests.runtime.plans import schedule_of, swap_all
from tests.runtime.scale import Alive
from tests.runtime.training import bits, state


def test_a_step_without_backward() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ProfileError, match=r"ran no backward pass; .* as model\(batch\)\.loss\.backward\(\) does"):
        profile(lambda: model(torch.ones(1, 2)).sum())


def test_a_model_on_the_meta_device() -> None:
    model = nn.Linear(2, 2, device="meta")
    with pytest.raises(InputError, match=r"meta device, which has no data .* FakeTensorMode instead, or on a device"):
        profile(lambda: model(torch.ones(1, 2, device="meta")).sum().backward())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_compiled_module() -> None:
    model = torch.compile(nn.Linear(2, 2))
    with pytest.raises(InputError, match=r"module 'OptimizedModule' is compiled: .* without torch\.compile"):
        profile(lambda: model(torch.ones(1, 2)).sum().backward())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_compiled_in_place() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].compile()
    with pytest.raises(InputError, match="module 'Linear' is compiled"):
        profile(lambda: model(torch.ones(1, 2)).sum().backward())


def test_a_sharded_module() -> None:
    class FSDPModule:
        """Named like the one that FSDP mixes into a module's class."""

    class Sharded(FSDPModule, nn.Linear):
        pass

    model = Sharded(2, 2)
    with pytest.raises(InputError, match=r"module 'Sharded' is sharded by FSDP: .* before it is wrapped"):
        profile(lambda: model(torch.ones(1, 2)).sum().backward())


def test_a_batch_that_changes_the_graph() -> None:
    model = nn.Linear(2, 2)
    batches = iter([torch.ones(size, 2) for size in range(1, 10)])
    with pytest.raises(
        ProfileError, match=r"differs from run to run: output 0 of operation 1 .* has bytes 24 in one step and 32"
    ):
        profile(lambda: model(next(batches)).sum().backward(), timed=False)


def test_a_training_whose_graph_changes() -> None:
    model = nn.Linear(2, 2)
    profiler = Profiler(timed=False)
    for turn in range(3):
        with profiler.step():
            out = model(torch.ones(1, 2))
            out = out.exp() if turn == 2 else out.sin()
        out.sum().backward()
    with pytest.raises(
        ProfileError, match=r"last two steps differ: operation 3: it is aten\.sin\.default in one step and aten\.exp"
    ):
        profiler.profile()


def test_too_few_steps() -> None:
    with pytest.raises(ProfileError, match="two equal steps make a profile, but only 0 ran"):
        Profiler().profile()


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda x: x.sum().item(), r"aten\._local_scalar_dense\.default"),
        (lambda x: x.nonzero(), r"aten\.nonzero\.default"),
        (lambda x: x[x > 0], r"aten\.index\.Tensor"),
    ],
)
def test_host_reads_of_data_that_is_not_there(ask: Callable[[torch.Tensor], Any], name: str) -> None:
    def build() -> Callable[[], Any]:
        model = nn.Linear(2, 2)

        def step() -> None:
            out = model(torch.ones(1, 2))
            ask(out)
            out.sum().backward()

        return step

    with pytest.raises(InputError, match=rf"{name} at .*test_failures\.py:\d+ asks for data, .* shapes only"):
        profile_fake(build)


def test_writing_over_what_was_saved_is_an_error_as_without_a_profile() -> None:
    w = torch.ones(3, requires_grad=True)

    def step() -> None:
        y = w.exp()
        y.add_(1)
        y.sum().backward()  # type: ignore[no-untyped-call]

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        profile(step, timed=False)


def test_an_active_profiler() -> None:
    model = nn.Linear(2, 2)
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(InputError, match="a profiler of PyTorch is active"),
    ):
        profile(lambda: model(torch.ones(1, 2)).sum().backward())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("train", r"expected package\.module:function, got 'train'"),
        (":step", r"expected package\.module:function, got ':step'"),
        ("nowhere.at_all:step", "there is no module 'nowhere' here or where Python looks"),
        ("tests.runtime.nowhere:step", r"there is no module 'tests\.runtime\.nowhere'"),
        ("tests.runtime.meters:missing", r"there is no 'missing' in tests\.runtime\.meters"),
        ("tests.runtime.cases:CASES", "which cannot be called; expected a function that runs one step"),
    ],
)
def test_no_such_step(target: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_step(target)


def test_no_such_hardware() -> None:
    with pytest.raises(InputError, match="unknown hardware 'a1000'; choose from"):
        profile(lambda: None, hardware="a1000")


def test_a_link_needs_a_device() -> None:
    with pytest.raises(InputError, match="a link can be measured on a CUDA device only, got 'cpu'"):
        measure_link("cpu")


def test_after_a_refusal_nothing_is_left_behind() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    hooks, engine = torch.nn.modules.module._global_forward_pre_hooks, torch.autograd.graph._engine_run_backward
    with pytest.raises(ZeroDivisionError):
        profile(lambda: model(torch.ones(1, 2)).sum().backward() or 1 / 0)
    assert not hooks
    assert torch.autograd.graph._engine_run_backward is engine
    assert model[0].weight.grad is None
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


class Exhausted(Immediate):
    """Copies back, as often as there is memory."""

    def __init__(self, times: int, error: RuntimeError) -> None:
        self._times, self._error = times, error

    def allocate(self, size: int, device: torch.device) -> torch.UntypedStorage:
        self._times -= 1
        if self._times < 0:
            # A new one, since an exception refers to the frames that it passed.
            raise type(self._error)(*self._error.args)
        return super().allocate(size, device)


def swapping(lanes: Exhausted | None = None, **options: object) -> MemoryBudget:
    return everything(lambda instance: schedule_of(instance, swap_all(instance)), lanes=lanes, **options)


@pytest.mark.parametrize("loop", [ordinary, backward_outside])
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_runs_out_names_what_the_plan_did_not_know(loop: Loop, error: RuntimeError) -> None:
    forgotten = torch.ones(12345)
    budget = swapping(Exhausted(6, error))
    with pytest.raises(RuntimeError) as raised:
        loop(Net(), budget.step)
    budget.close()
    assert raised.value.args == error.args
    (note,) = raised.value.__notes__
    assert "The step ran out of memory at operation" in note
    assert "bytes that the plan does not know: float32 [12345] (49380 bytes)" in note
    assert forgotten.sum() == 12345
    assert "left by 1 of 1 steps: what was due before operation" in str(budget.report())


def fails(failure: type[BaseException]) -> Callable[[Net], None]:
    """Return what lets a model raise in its next forward pass."""

    def arm(model: Net) -> None:
        def fail(module: nn.Module, args: object) -> None:
            raise failure

        model.layers[1].register_forward_pre_hook(fail)

    return arm


FAILURES: dict[str, tuple[Callable[[], MemoryBudget], Callable[[Net], None], type[BaseException]]] = {
    "no plan fits": (lambda: MemoryBudget("1%"), lambda model: None, InputError),
    "host too small": (lambda: swapping(host_budget=1000), lambda model: None, InputError),
    "schedule of another model": (lambda: MemoryBudget(schedule=of_another_model()), lambda model: None, InputError),
    "out of memory": (
        lambda: swapping(Exhausted(4, torch.OutOfMemoryError("no more"))),
        lambda model: None,
        torch.OutOfMemoryError,
    ),
    "interrupted": (swapping, fails(KeyboardInterrupt), KeyboardInterrupt),
}


def of_another_model() -> Schedule:
    weight = nn.Parameter(torch.ones(3))
    other = profile(lambda: (weight * 2).exp().sum().backward(), timed=False).instance  # type: ignore[no-untyped-call]
    return schedule_of(other, swap_all(other))


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_leaves_the_training_as_two_plain_steps_do_and_holds_nothing(name: str) -> None:
    make, arm, kind = FAILURES[name]
    engine, states, left = torch.autograd.graph._engine_run_backward, [], []
    for budget in (None, make()):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with Alive() as alive:
            for x in batches(2):
                with budget.step() if budget else nullcontext():
                    model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            if budget:
                arm(model)
                random = torch.get_rng_state()
                with pytest.raises(kind), budget.step():
                    model(x).square().mean().backward()
                if kind is InputError:
                    assert torch.equal(torch.get_rng_state(), random)
                budget.close()
            optimizer.zero_grad()
            del optimizer, x
            gc.collect()
            pools = sum(plan.ready.host for plan in budget.report().plans) if budget else 0
            left.append(alive.held - pools)
        states.append({key: bits(tensor) for key, tensor in state(model).items() if key != "generator"})
    assert states[0] == states[1]
    assert left[0] == left[1]
    assert torch.autograd.graph._engine_run_backward is engine
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert gc.isenabled()


def test_a_budget_that_is_gone_takes_everything_with_it() -> None:
    budget = swapping()
    model = Net()
    ordinary(model, budget.step)
    with suppress(ZeroDivisionError), budget.step():
        model(torch.randn(16, 8)).sum().backward()
        raise ZeroDivisionError
    transfers, plans = weakref.ref(budget._transfers), [weakref.ref(plan) for plan in budget._plans]
    assert plans
    budget.close()
    del budget
    gc.collect()
    assert transfers() is None
    assert [plan() for plan in plans] == [None]


def test_an_interrupt_while_something_is_put_back_leaves_modes_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = everything()
    ordinary(Net(), budget.step)
    leave = quiet.__exit__

    def interrupted(self: quiet, *exception: object) -> None:
        self._autocast.__exit__(*exception)
        raise KeyboardInterrupt

    monkeypatch.setattr(quiet, "__exit__", interrupted)
    model, x = Net(), torch.randn(16, 8)
    with pytest.raises(KeyboardInterrupt), budget.step():
        model(x).square().mean().backward()
    monkeypatch.setattr(quiet, "__exit__", leave)
    assert torch.is_grad_enabled()
    assert _get_current_dispatch_mode_stack() == []
    budget.close()
