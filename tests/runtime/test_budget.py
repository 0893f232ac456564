"""The door: any training loop within a budget, with the results of plain training, and clear words where it cannot be."""

from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

from slackswap_opt.files import InputError
from slackswap_opt.instance import Instance
from slackswap_opt.result import Result
from slackswap_opt.runtime import profile
from slackswap_opt.runtime.allowance import Usage, allowance
from slackswap_opt.runtime.budget import MemoryBudget, PlanLeftError, PlanLeftWarning
from slackswap_opt.schedule import Schedule
from slackswap_opt.solve import solve
from tests.runtime.loops import Net, Scope, batches, compare, everything, followed, ordinary
from tests.runtime.plans import schedule_of, swap_all


@pytest.mark.parametrize("share", ["60%", "75%", "95%"])
def test_a_budget_holds(share: str) -> None:
    budget = MemoryBudget(share)
    compare(ordinary, budget)
    (plan,) = budget.report().plans
    program = plan.ready.usual.program
    limit = plan.ready.whole.program.instance.budget
    assert limit is not None
    assert program.timeline.peak <= limit < plan.ready.profile.instance.peak
    assert followed(budget) == [4]
    assert all(step.unexpected == () for step in plan.steps)
    assert {step.prefetched for step in plan.steps} == {program.timeline.prefetched}
    assert {step.reruns for step in plan.steps} == {program.timeline.recomputed}


def test_a_report_says_what_was_predicted_and_what_was_measured() -> None:
    budget = MemoryBudget("70%")
    ordinary(Net(), budget.step)
    text = str(budget.report())
    assert "2 steps profiled, 1 planned for" in text
    for what in ("step", "peak", "moved to the host", "moved back", "operations run again", "predicted", "measured"):
        assert what in text
    assert "not counted" in text
    assert "verified" not in text


def test_a_report_says_what_was_verified() -> None:
    budget = MemoryBudget("70%", verify=True)
    ordinary(Net(), budget.step)
    assert "verified: a step read and made the same bits as with everything swapped" in str(budget.report())


def test_batches_of_several_shapes_choose_among_plans() -> None:
    def ragged(model: Net, scope: Scope) -> list[object]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses: list[object] = []
        for x in batches(14, lambda step: (12, 12, 5, 5, 5, 12, 12, 5, 12, 5, 5, 12, 5, 12)[step]):
            with scope():
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    budget = everything()
    with pytest.warns(PlanLeftWarning, match="its results are those of plain training, but its memory is not bounded") as said:
        compare(ragged, budget)
    assert len(said) == 1
    assert "left by 1 of " in str(budget.report())
    # 12: profiled twice. 5: the first leaves the plan, two are profiled. Then all 9 follow one of the two plans.
    assert budget.report().profiled == 4
    assert sum(followed(budget)) == 9


def test_another_kind_of_step_can_be_an_error() -> None:
    budget = everything(on_leave="raise")
    model = Net()
    for x in batches(3):
        with budget.step():
            model(x).sum().backward()
    other = torch.randn(3, 8)
    with pytest.raises(PlanLeftError, match=r"makes storages of other sizes than 'layers\.0\."), budget.step():
        model(other).sum().backward()


def test_a_schedule_planned_elsewhere() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(16, 8)

    def step() -> None:
        model(x).square().mean().backward()

    result = profile(step, timed=False)
    schedule = Schedule.from_json(schedule_of(result.instance, swap_all(result.instance)).to_json())
    budget = MemoryBudget(schedule=schedule)
    compare(ordinary, budget)
    assert followed(budget) == [4]


def test_a_schedule_of_another_model_is_refused() -> None:
    weight = nn.Parameter(torch.ones(3))
    other = profile(lambda: (weight * 2).exp().sum().backward(), timed=False).instance  # type: ignore[no-untyped-call]
    budget = MemoryBudget(schedule=schedule_of(other, swap_all(other)))
    with pytest.raises(InputError, match=r"the schedule is for 'step' with fingerprint .* but this step has the fingerprint"):
        ordinary(Net(), budget.step)


def test_a_schedule_of_another_model_beside_a_budget_is_told(caplog: pytest.LogCaptureFixture) -> None:
    budget = MemoryBudget("80%", schedule=Schedule("other", "0" * 32, ()))
    ordinary(Net(), budget.step)
    assert "the schedule is for 'other' with fingerprint 0000" in caplog.text
    assert followed(budget) == [4]


def test_solvers_get_no_more_than_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float | None] = []

    def noted(instance: Instance, method: str, *, time_limit: float | None) -> Result:
        limits.append(time_limit)
        return solve(instance, method, time_limit=0)

    monkeypatch.setattr("slackswap_opt.runtime.planned.solve", noted)
    ordinary(Net(), MemoryBudget("60%", method="auto", time_limit=7).step)
    assert limits
    assert all(limit is not None and 0 <= limit <= 7 for limit in limits)


def test_a_budget_that_no_plan_fits_says_which_would_and_what_binds() -> None:
    model = Net()
    budget = MemoryBudget("1%")
    with pytest.raises(InputError, match=r"no schedule fits in .* the smallest budget with a plan is"):
        ordinary(model, budget.step)
    budget.close()
    assert not torch.autograd.graph._engine_run_backward.__module__.startswith("slackswap")


def test_a_host_with_too_little_memory_is_said_before_training() -> None:
    budget = everything(lambda instance: schedule_of(instance, swap_all(instance)), host_budget=1000)
    with pytest.raises(InputError, match=r"the host would hold .* bytes, over its budget of 1000"):
        ordinary(Net(), budget.step)


def test_modules_and_small_tensors_can_be_left_alone() -> None:
    budget = everything(exclude=["layers.1", "*.0"], smallest="600B")
    compare(ordinary, budget)
    (plan,) = budget.report().plans
    managed = plan.ready.whole.program.managed
    paths = {plan.ready.profile.tensors[i].path for i in managed}
    assert not any(path.startswith("layers.1") for path in paths)
    assert any(path.startswith("layers.2") for path in paths)
    moved = [i for i in range(len(plan.ready.profile.tensors)) if i in managed]
    assert moved
    assert followed(budget) == [4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either a budget such as '12GiB' or '50%', or the memory of the device"),
        ({"budget": "1GiB", "device": "2GiB"}, "give either a budget"),
        ({"budget": "1GiB", "clock": "half"}, "clock must be 'forward' or 'whole', got 'half'"),
        ({"budget": "1GiB", "on_leave": "cry"}, "on_leave must be 'warn' or 'raise', got 'cry'"),
        ({"budget": "1GiB", "smallest": -1}, "smallest must be bytes, 0 or more, or a size such as '64KiB', got -1"),
        ({"budget": "1GiB", "smallest": "64"}, "smallest needs a unit"),
        ({"device": "24"}, "device needs a unit"),
        ({"budget": "24"}, "budget needs a unit"),
        ({"budget": "1GiB", "method": "gredy"}, "unknown method 'gredy'; did you mean 'greedy'? choose from greedy, "),
        ({"budget": "1GiB", "method": 3}, "method must be the name of one, or a function"),
        ({"budget": "1GiB", "method": "auto", "time_limit": -1}, "time_limit must be 0 or more seconds"),
        ({"budget": -5}, "budget must be bytes, 0 or more, or a size such as '64KiB', got -5"),
        ({"budget": 12e9}, "budget must be bytes, 0 or more, or a size such as '64KiB', got 12000000000.0"),
        ({"budget": True}, "budget must be bytes"),
        ({"device": 2.5}, "device must be bytes"),
        ({"budget": "1GiB", "exclude": "layers.0"}, "exclude must be a sequence of names of modules, got 'layers.0'"),
        ({"budget": "1GiB", "verify": "yes"}, "verify must be true or false, got 'yes'"),
        ({"schedule": "plan.json"}, "schedule must be a Schedule, or None, got 'plan.json'"),
        ({"budget": "1GiB", "link": 5}, "link must be a Link, or None, got 5"),
        ({"schedule": Schedule("x", "y", ()), "smallest": 5}, "exclude and smallest are for plans made here"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as error:
        MemoryBudget(**arguments)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_the_memory_of_a_cpu_is_not_a_device() -> None:
    with pytest.raises(InputError, match="device= is for accelerators; on the CPU give what the step itself may use"):
        ordinary(Net(), MemoryBudget(device="1GiB").step)


def test_the_allowance_is_a_sum_that_can_be_read() -> None:
    allowed = allowance(24_000_000_000, Usage(3_000_000_000, 500_000_000, 100_000_000))
    assert allowed.size == 20_400_000_000
    assert allowed.words == (
        "24.00 GB of the device, less 3.000 GB allocated before the step, 500.0 MB of others and the driver, "
        "and 100.0 MB that the allocator rounds up: 20.40 GB for the step"
    )
    with pytest.raises(InputError, match="nothing is left for the step"):
        allowance(10, Usage(10, 0, 0))


def test_a_step_inside_of_a_step_is_refused() -> None:
    budget = MemoryBudget("50%")
    with budget.step(), pytest.raises(InputError, match="is inside of another one"), budget.step():
        pass


def test_a_compiled_module_is_refused() -> None:
    budget = MemoryBudget("50%")
    model = Net()
    model.compile(backend="eager")
    with pytest.raises(InputError, match="the module 'Net' is compiled"), budget.step():
        model(torch.randn(2, 8))


def test_memory_that_runs_out_in_spite_of_the_plan_is_explained() -> None:
    budget = everything(lambda instance: schedule_of(instance, swap_all(instance)))
    model, kept = Net(), list[torch.UntypedStorage]()

    def hold(module: nn.Module, args: object, out: Tensor) -> None:
        if len(budget.report().plans):
            kept.append(out.untyped_storage())

    def fail(module: nn.Module, args: object) -> None:
        if kept:
            raise torch.OutOfMemoryError("no more")

    model.layers[0][1].register_forward_hook(hold)  # type: ignore[index]
    model.layers[2].register_forward_pre_hook(fail)
    with pytest.raises(torch.OutOfMemoryError) as error:
        ordinary(model, budget.step)
    (note,) = error.value.__notes__
    assert "The step ran out of memory at operation" in note
    assert "still held by something: 'layers.0.1.addmm' (2048 bytes)" in note


def test_a_failed_profiling_step_is_forgotten() -> None:
    budget = everything()
    model = Net()
    with suppress(ZeroDivisionError), budget.step():
        model(torch.randn(16, 8))
        raise ZeroDivisionError
    compare(ordinary, budget)
    assert followed(budget) == [4]
