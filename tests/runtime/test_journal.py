"""When things really happened, in the same form as when they were to happen."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from slackswap_opt.instance import Link
from slackswap_opt.report.traces import chrome_trace
from slackswap_opt.runtime import MemoryBudget, profile
from slackswap_opt.runtime.execute import Route
from slackswap_opt.runtime.journal import Journal
from slackswap_opt.runtime.lanes import Rated
from slackswap_opt.runtime.pool import Pool, layout
from slackswap_opt.runtime.program import program_of
from slackswap_opt.runtime.running import Running
from slackswap_opt.runtime.transfers import Transfers
from slackswap_opt.schedule import Action, Schedule
from slackswap_opt.simulate import simulate
from slackswap_opt.timeline import Timeline
from tests.example import STEP, SWAP
from tests.runtime.plans import schedule_of, swap_all

DURATION = 1000


class World(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A world in which every operation of the step takes a microsecond, and nothing else takes any time but sleep."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.journal: Journal | None = None

    def sleep(self, nanoseconds: int) -> None:
        self.now += nanoseconds

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace != "prim" and self.journal is not None and not self.journal._paused:
            self.now += DURATION
        return function(*args, **(kwargs or {}))


def times(link: Link) -> tuple[Timeline, Timeline, tuple[Action, ...]]:
    """Return when the instructions of a step were to happen and when they did, and what they were."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)))
    x = torch.randn(4, 6)

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    result = profile(step, timed=False)
    operations = tuple(replace(operation, duration=DURATION) for operation in result.instance.operations)
    instance = replace(result.instance, operations=operations, link=link)
    schedule = Schedule.of(instance, schedule_of(result.instance, swap_all(result.instance)).instructions)
    program = program_of(result, schedule, instance)
    world = World()
    slots = Pool([layout(instance, program.schedule)], program.device).slots[0]
    lanes = Rated(link, now=lambda: world.now, sleep=world.sleep)
    with world:
        world.journal = Journal([Route(program, slots)], Transfers(lanes))
        running = Running(world.journal)
        with running.scope():
            step()
    assert world.journal.reason == ""
    return simulate(instance, program.schedule), world.journal.timeline(), tuple(a for a, _ in program.schedule.instructions)


@pytest.mark.parametrize("duplex", [True, False])
@pytest.mark.parametrize("latency", [0, 700])
def test_a_link_that_takes_its_time_gives_the_times_that_the_judge_predicts(duplex: bool, latency: int) -> None:
    # 96 bytes take 960 ns out and 480 back: copies overlap with operations of 1000 ns, and compute waits for some of them.
    predicted, measured, actions = times(Link(10**8, 2 * 10**8, latency, duplex))
    assert predicted.offload_stall > 0
    last = max(n for n, action in enumerate(actions) if action is Action.RUN)
    assert measured.start[: last + 1] == predicted.start[: last + 1]
    assert measured.end[: last + 1] == predicted.end[: last + 1]
    assert measured.makespan == predicted.makespan


def test_a_fast_link_overlaps_and_a_slow_one_stalls() -> None:
    fast, slow = (times(Link(rate, rate)) for rate in (10**12, 10**7))
    assert fast[1].makespan < slow[1].makespan
    assert slow[0].prefetch_stall > fast[0].prefetch_stall


def events(text: str, kind: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == kind]


def test_a_trace_worked_out_by_hand() -> None:
    # Operations of 10 ns; the copies take 100 ns each.
    timeline = simulate(STEP, SWAP)
    text = chrome_trace(STEP, SWAP, timeline)
    runs = [event for event in events(text, "X") if event["cat"] == "run"]
    assert [event["name"] for event in runs] == [operation.name for operation in STEP.operations]
    copies = [(event["name"], event["tid"], event["dur"]) for event in events(text, "X") if event["tid"]]
    name, size = STEP.tensors[0].name, STEP.tensors[0].size
    assert copies == [
        (f"offload {name}", 1, STEP.link.offload_time(size) / 1000),
        (f"prefetch {name}", 2, STEP.link.prefetch_time(size) / 1000),
    ]
    assert max(event["args"]["bytes"] for event in events(text, "C")) == timeline.peak
    assert [event["args"]["name"] for event in events(text, "M")] == ["compute", "to the host", "back"]


def test_the_door_writes_a_trace_of_the_next_step(tmp_path: Path) -> None:
    budget = MemoryBudget("1000%", method=lambda instance: schedule_of(instance, swap_all(instance)))
    weight, path = nn.Parameter(torch.randn(4, 4)), tmp_path / "step.json"
    budget.record(path)
    for _ in range(4):
        with budget.step():
            (weight.exp() * 2).sin().sum().backward()  # type: ignore[no-untyped-call]
        weight.grad = None
    budget.close()
    text = path.read_text()
    assert len([event for event in events(text, "X") if event["cat"] == "run"]) == len(budget._plans[0].ready.whole.program)
    assert {event["tid"] for event in events(text, "X")} == {0, 1, 2}
    assert [step.complete for step in budget.report().plans[0].steps] == [True, True]
