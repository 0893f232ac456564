import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt.files import InputError
from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.schedule import Action, Instruction, Schedule, spell
from slackswap_opt.testing import instances, schedules

INSTANCE = Instance(
    "step", (Tensor("x", 1),), (Operation("f", 1, (), (0,)), Operation("g", 1, (0,))), Link(1_000_000_000, 1_000_000_000)
)
SCHEDULE = Schedule.of(
    INSTANCE,
    [
        Instruction(Action.RUN, 0),
        Instruction(Action.OFFLOAD, 0),
        Instruction(Action.EVICT, 0),
        Instruction(Action.PREFETCH, 0),
        Instruction(Action.RUN, 1),
        Instruction(Action.DROP, 0),
    ],
)


@given(st.data())
def test_a_schedule_comes_back_from_json_the_same(data: st.DataObject) -> None:
    schedule = data.draw(schedules(data.draw(instances())))
    assert Schedule.from_json(schedule.to_json()) == schedule


@given(st.text().filter(str.isprintable), st.lists(st.builds(Instruction, st.sampled_from(Action), st.integers(0, 2**63 - 1))))
def test_any_names_and_numbers_come_back(name: str, instructions: list[Instruction]) -> None:
    schedule = Schedule(name, name, tuple(instructions))
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_the_file_is_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    SCHEDULE.save(path)
    assert Schedule.load(path) == SCHEDULE
    assert json.loads(path.read_text()) == {
        "format": "slackswap-schedule",
        "version": 1,
        "instance": {"name": "step", "fingerprint": INSTANCE.fingerprint},
        "instructions": [["run", 0], ["offload", 0], ["evict", 0], ["prefetch", 0], ["run", 1], ["drop", 0]],
    }


def test_a_schedule_of_nothing_comes_back() -> None:
    nothing = Schedule("", "", ())
    assert Schedule.from_json(nothing.to_json()) == nothing


def test_an_older_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "schedule.json"
    SCHEDULE.save(path)
    with pytest.raises(InputError, match="exists already"):
        SCHEDULE.save(path)
    SCHEDULE.save(path, overwrite=True)


def test_a_prefetch_is_followed_by_another_of_the_same_copy_or_not() -> None:
    def instructions(text: str) -> list[Instruction]:
        return [Instruction(Action(action), int(i)) for action, i in map(str.split, text.split(","))]

    # Tensor 0 is fetched twice from its first copy and once from its second; tensor 1 once.
    text = "offload 0, prefetch 0, prefetch 1, prefetch 0, offload 0, prefetch 0"
    assert Schedule("", "", tuple(instructions(text))).fetched_again() == [True, False, False, False]


@pytest.mark.parametrize(
    ("instruction", "spelled"),
    [
        (Instruction(Action.RUN, 1), "run 1 'g'"),
        (Instruction(Action.DROP, 0), "drop 0 'x'"),
        (Instruction(Action.RUN, 2), "run 2"),
        (Instruction(Action.DROP, -1), "drop -1"),
    ],
)
def test_an_instruction_is_spelled_with_its_name(instruction: Instruction, spelled: str) -> None:
    assert spell(INSTANCE, *instruction) == spelled


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (("run", 0), "instructions[1]: unknown action 'run'; choose from run, offload, evict, prefetch, drop"),
        ((0, 0), "instructions[1]: unknown action 0; choose from run, offload, evict, prefetch, drop"),
        (
            (Action.RUN, 1.0),
            "instructions[1]: the number of its operation or tensor must be an integer from 0 to 9223372036854775807, got 1.0",
        ),
        (
            (Action.RUN, True),
            "instructions[1]: the number of its operation or tensor must be an integer from 0 to 9223372036854775807, got True",
        ),
    ],
)
def test_an_instruction_must_be_an_action_with_a_number(instruction: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        Schedule.of(INSTANCE, [Instruction(Action.RUN, 0), instruction])
    assert str(error.value) == message


def changed(**members: Any) -> str:
    return json.dumps({**json.loads(SCHEDULE.to_json()), **members})


NUMBER = "the number of its operation or tensor must be an integer from 0 to 9223372036854775807, got"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a JSON object"),
        ("[]", "expected an object, got []"),
        (SCHEDULE.to_json()[:-4], "is not JSON: Expecting ',' delimiter (line 9, column 13)"),
        (changed(format="slackswap-instance"), "'format' must be 'slackswap-schedule', got 'slackswap-instance'"),
        (changed(version=2), "'version' must be 1, got 2"),
        (changed(version=1.0), "'version' must be an integer, got 1.0"),
        (changed(version=True), "'version' must be an integer, got True"),
        (changed(extra=1), "unknown key 'extra'; the keys are format, version, instance, instructions"),
        ('{"format": "slackswap-schedule", "version": 1, "instructions": []}', "missing key 'instance'"),
        (changed(instance="step"), "'instance' must be an object, got 'step'"),
        (changed(instance={"name": "step"}), "instance: missing key 'fingerprint'"),
        (changed(instance={"name": 3, "fingerprint": ""}), "instance.name must be a string, got 3"),
        (
            changed(instance={"name": "a\nb", "fingerprint": ""}),
            "instance.name must be a string without line breaks and control characters, got 'a\\nb'",
        ),
        (changed(instructions={}), "'instructions' must be a list, got {}"),
        (changed(instructions=[["run", 0], "run"]), "instructions[1] must be a pair such as [\"run\", 0], got 'run'"),
        (changed(instructions=[["run"]]), "instructions[0] must be a pair such as [\"run\", 0], got ['run']"),
        (
            changed(instructions=[["fly", 0]]),
            "instructions[0]: unknown action 'fly'; choose from run, offload, evict, prefetch, drop",
        ),
        (
            changed(instructions=[[["run"], 0]]),
            "instructions[0]: unknown action ['run']; choose from run, offload, evict, prefetch, drop",
        ),
        (changed(instructions=[["run", -1]]), f"instructions[0]: {NUMBER} -1"),
        (changed(instructions=[["run", 1.0]]), f"instructions[0]: {NUMBER} 1.0"),
        (changed(instructions=[["run", True]]), f"instructions[0]: {NUMBER} True"),
        (changed(instructions=[["run", 2**63]]), f"instructions[0]: {NUMBER} {2**63}"),
        (changed(instructions=[["run", "0"]]), f"instructions[0]: {NUMBER} '0'"),
    ],
)
def test_a_bad_file_is_refused_with_its_field_and_value(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Schedule.from_json(text)
    assert str(error.value) == message
    path = tmp_path / "schedule.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        Schedule.load(path)
    assert str(error.value) == f"{path}: {message}"
