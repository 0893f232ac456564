import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slackswap_opt.files import LARGEST, InputError
from slackswap_opt.instance import Instance, Link
from tests.test_instance import STEP, with_operation, with_tensor


def refusal(text: str) -> str:
    with pytest.raises(InputError) as error:
        Instance.from_json(text)
    return str(error.value)


def changed(*path: str | int, to: Any = None, remove: bool = False) -> str:
    """The file of STEP with one member changed, added or removed."""
    data = json.loads(STEP.to_json())
    place = data
    for key in path[:-1]:
        place = place[key]
    if remove:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return json.dumps(data)


def integer(least: int = 0) -> str:
    return f"must be an integer from {least} to {LARGEST}, got"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a JSON object"),
        ("null", "expected an object, got None"),
        (STEP.to_json()[:200], "is not JSON: Unterminated string starting at (line 6, column 92)"),
        (
            changed("colour", to=1),
            "unknown key 'colour'; the keys are format, version, name, link, tensors, operations, budget, host_budget",
        ),
        (changed("name", remove=True), "missing key 'name'"),
        (changed("format", to="slackswap-schedule"), "'format' must be 'slackswap-instance', got 'slackswap-schedule'"),
        (changed("version", to=2), "'version' must be 1, got 2"),
        (changed("version", to="1"), "'version' must be an integer, got '1'"),
        (changed("name", to=None), "'name' must be a string, got None"),
        (changed("name", to="a\x1b[2J"), "'name' must be a string without line breaks and control characters, got 'a\\x1b[2J'"),
        (changed("budget", to="50%"), f"'budget' {integer()} '50%'"),
        (changed("budget", to=-1), f"'budget' {integer()} -1"),
        (changed("budget", to=2**63), f"'budget' {integer()} {2**63}"),
        (changed("host_budget", to=1.5), f"'host_budget' {integer()} 1.5"),
        (changed("link", to=None), "'link' must be an object, got None"),
        (
            changed("link", "speed", to=1),
            "link: unknown key 'speed'; the keys are offload_bandwidth, prefetch_bandwidth, latency, duplex",
        ),
        (changed("link", "latency", remove=True), "link: missing key 'latency'"),
        (changed("link", "offload_bandwidth", to=0), f"link.offload_bandwidth {integer(1)} 0"),
        (changed("link", "prefetch_bandwidth", to=25e9), f"link.prefetch_bandwidth {integer(1)} 25000000000.0"),
        (changed("link", "latency", to=True), f"link.latency {integer()} True"),
        (changed("link", "duplex", to=1), "link.duplex must be true or false, got 1"),
        (changed("tensors", to={}), "'tensors' must be a list, got {}"),
        (changed("tensors", 1, to="y"), "tensors[1]: expected an object, got 'y'"),
        (
            changed("tensors", 1, "bytes", to=2),
            "tensors[1]: unknown key 'bytes'; the keys are name, size, swappable, kind, held",
        ),
        (changed("tensors", 1, "size", remove=True), "tensors[1]: missing key 'size'"),
        (changed("tensors", 1, "size", to=-2), f"tensors[1].size ('y') {integer()} -2"),
        (changed("tensors", 1, "size", to=2.0), f"tensors[1].size ('y') {integer()} 2.0"),
        (changed("tensors", 1, "size", to=True), f"tensors[1].size ('y') {integer()} True"),
        (changed("tensors", 1, "size", to=2**64), f"tensors[1].size ('y') {integer()} {2**64}"),
        (changed("tensors", 1, "size", to="@").replace('"@"', "1e400"), f"tensors[1].size ('y') {integer()} 1e400"),
        (
            changed("tensors", 1, "size", to="@").replace('"@"', "NaN"),
            "holds NaN, which is not a number in JSON; expected an integer",
        ),
        (changed("tensors", 1, "size", to="@").replace('"@"', "7" * 5000), f"tensors[1].size ('y') {integer()} {'7' * 57}..."),
        (
            changed("tensors", 1, "size", to="@").replace('"size": "@"', '"size": 1, "size": 2'),
            "repeats the key 'size' in one object",
        ),
        (
            changed("tensors", 1, "size", to="@").replace('"@"', "[" * 500 + "]" * 500),
            f"tensors[1].size ('y') {integer()} {'[' * 57}...",
        ),
        (
            changed("tensors", 0, "size", to=LARGEST // 2),
            f"the sizes of tensors and workspaces must add up to at most {LARGEST // 2}, got {LARGEST // 2 + 12}",
        ),
        (changed("tensors", 1, "name", to="x"), "tensors[1].name must be unique, got 'x', the name of tensors[0] too"),
        (changed("tensors", 1, "name", to=["x"]), "tensors[1].name must be a string, got ['x']"),
        (
            changed("tensors", 1, "name", to="y\n"),
            "tensors[1].name must be a string without line breaks and control characters, got 'y\\n'",
        ),
        (changed("tensors", 1, "swappable", to="yes"), "tensors[1].swappable ('y') must be true or false, got 'yes'"),
        (changed("tensors", 1, "kind", to=None), "tensors[1].kind ('y') must be a string, got None"),
        (changed("operations", 1, to=[]), "operations[1]: expected an object, got []"),
        (changed("operations", 1, "name", to="w"), "operations[1].name must be unique, got 'w', the name of operations[0] too"),
        (changed("operations", 1, "duration", to=-1), f"operations[1].duration ('f') {integer()} -1"),
        (changed("operations", 1, "duration", to=0.5), f"operations[1].duration ('f') {integer()} 0.5"),
        (
            changed("operations", 1, "duration", to=LARGEST),
            f"the durations must add up to at most {LARGEST // 2}, got {LARGEST + 130}",
        ),
        (changed("operations", 1, "workspace", to=None), f"operations[1].workspace ('f') {integer()} None"),
        (changed("operations", 1, "recomputable", to=0), "operations[1].recomputable ('f') must be true or false, got 0"),
        (
            changed("operations", 1, "phase", to="update"),
            "operations[1].phase ('f') must be 'forward' or 'backward', got 'update'",
        ),
        (changed("operations", 1, "block", to=3), "operations[1].block ('f') must be a string, got 3"),
        (changed("operations", 1, "reads", to=0), "operations[1]: 'reads' must be a list, got 0"),
        (changed("operations", 1, "reads", to=[3]), "operations[1].reads ('f') must hold tensor numbers from 0 to 2, got 3"),
        (changed("operations", 1, "reads", to=[-1]), "operations[1].reads ('f') must hold tensor numbers from 0 to 2, got -1"),
        (
            changed("operations", 1, "reads", to=["x"]),
            "operations[1].reads ('f') must hold tensor numbers from 0 to 2, got 'x'",
        ),
        (
            changed("operations", 1, "reads", to=[True]),
            "operations[1].reads ('f') must hold tensor numbers from 0 to 2, got True",
        ),
        (
            changed("operations", 1, "reads", to=[0.0]),
            "operations[1].reads ('f') must hold tensor numbers from 0 to 2, got 0.0",
        ),
        (changed("operations", 1, "reads", to=[0, 0]), "operations[1].reads ('f') must name each tensor once, got [0, 0]"),
        (
            changed("operations", 0, "reads", to=[1]),
            "operations[0].reads: 'w' reads tensor 1 ('y') before any operation has written it",
        ),
        (
            changed("operations", 2, "reads", to=[]),
            "operations[2].writes: 'i' writes tensor 0 ('x') in place, after another operation wrote it, so it must be among "
            "its reads too",
        ),
        (
            changed("operations", 4, "reads", to=[2])
            .replace('"writes": [0, 2]', '"writes": [0]')
            .replace("[1, 2]", "[1]")
            .replace("[2]", "[0]"),
            "tensors[2]: 'z' is never written; an operation must write each tensor",
        ),
        (
            changed("tensors", to=[]),
            "operations[0].writes ('w') must be empty, since there are no tensors, got 0",
        ),
    ],
)
def test_a_bad_file_is_refused_with_its_field_and_value(text: str, message: str, tmp_path: Path) -> None:
    assert refusal(text) == message
    path = tmp_path / "step.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        Instance.load(path)
    assert str(error.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: replace(STEP, tensors=[]), "'tensors' must be a tuple, got []"),  # type: ignore[arg-type]
        (lambda: replace(STEP, operations=None), "'operations' must be a tuple, got None"),  # type: ignore[arg-type]
        (lambda: with_operation(STEP, 1, reads=[0]), "operations[1].reads ('f') must be a tuple, got [0]"),
        (lambda: with_operation(STEP, 1, writes=None), "operations[1].writes ('f') must be a tuple, got None"),
        (lambda: with_tensor(STEP, held=3), "tensors[0].held ('x') must be a tuple of pairs, got 3"),
        (lambda: STEP.with_budget(-1), f"'budget' {integer()} -1"),
        (lambda: STEP.with_budget(1.5), f"'budget' {integer()} 1.5"),  # type: ignore[arg-type]
        (lambda: STEP.with_link(Link(1, 0)), f"link.prefetch_bandwidth {integer(1)} 0"),
    ],
)
def test_what_is_built_in_python_is_checked_too(change: Callable[[], Instance], message: str) -> None:
    with pytest.raises(InputError) as error:
        change()
    assert str(error.value).startswith(message)
