"""The command `profile`: where the memory of a step goes, its plan, the largest batch, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slackswap_opt.instance import Instance
from slackswap_opt.result import Result
from slackswap_opt.solve import solve
from tests.example import STEP
from tests.test_cli import ROOT, refused, run
from tests.test_commands import words

SCRIPT = """
from torch import nn, ones

def make(batch):
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(16, 16), nn.Tanh())))
    inputs = ones(batch, 16)

    def step():
        print("a line of the script's own")
        model(inputs).square().mean().backward()

    return step

def make_small(batch):
    model, inputs = nn.Sequential(nn.Linear(64, 1), nn.Tanh()), ones(batch, 64)
    return lambda: model(inputs * 2).sum().backward()

def make_256():
    return make(256)

def make_nothing(batch):
    return batch

def fail():
    raise KeyError("what the script\\nsays")

def leave():
    raise SystemExit(3)

def step():
    make_256()()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder."""
    (tmp_path / "training_script.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "training_script", raising=False)
    return "training_script"


def test_profile_says_where_memory_goes(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("profile", f"{script}:make_256()", "--hardware", "a100-40gb") == 0
    out, err = capsys.readouterr()
    assert "as on a100-40gb, without data" in words(out)
    assert "Where your memory goes" in out
    # Eight outputs of tanh, 256 x 16 x 4 bytes each, all alive when the backward pass begins.
    assert "* activation 8 131.1 kB 131.1 kB" in words(out)
    assert "it belongs to the backward pass" in out
    assert "script's own" not in out
    assert "script's own" in err


def test_profile_runs_the_step_where_it_is(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("profile", f"{script}:step", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["device"], record["plan"]) == ("cpu", None)
    assert sum(row["at_peak"] for row in record["memory"]) == record["peak"]


def test_profile_plans_and_saves(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--save-instance", "i.json", "--plot", "p.svg")
    assert run("profile", f"{script}:make_256()", "--hardware", "h100", "--budget", "70%", *files, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["plan"]["peak"] <= record["peak"] * 7 // 10
    assert (tmp_path / "p.svg").exists()
    # What is saved can be planned by the other commands, into the same budget.
    assert run("plan", "i.json", "--json") == 0
    assert json.loads(capsys.readouterr().out)["makespan"] == record["plan"]["makespan"]
    assert run("profile", f"{script}:make_256()", "--hardware", "h100", "--save-instance", "i.json", "--force") == 0
    assert Instance.load("i.json").budget is None


def test_the_largest_batch_fits_and_one_more_does_not(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    # The product of the inputs takes 256 bytes each, and the gradients of 64 weights and a bias 260.
    command = ("profile", f"{script}:make_small", "--largest", "batch", "--budget", "900B")
    assert run(*command, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["batch"], found["plan"]["instance"]["name"]) == (2, "batch 2")
    assert run(*command, "--budget", "1100B", "--hardware", "h100") == 0
    assert capsys.readouterr().out.startswith("batch 3\n")


def test_what_the_largest_batch_must_retain_is_passed_on(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def look(build: object, budget: int, **options: object) -> tuple[int, Result]:
        asked.update(options, budget=budget)
        return 7, solve(STEP)

    monkeypatch.setattr("slackswap_opt.runtime.largest_batch", look)
    command = (
        "profile",
        f"{script}:make",
        "--largest",
        "batch",
        "--budget",
        "1GiB",
        "--retained",
        "97.5%",
        "--hardware",
        "h100",
    )
    assert run(*command, "--json") == 0
    assert json.loads(capsys.readouterr().out)["batch"] == 7
    assert asked == {"budget": 2**30, "retained": 0.975, "hardware": "h100"}


@pytest.mark.parametrize(
    ("argv", "reasons"),
    [
        (("training_script",), ["expected package.module:function, got 'training_script'"]),
        (("training_script:stpe",), ["there is no 'stpe' in training_script"]),
        (("no_such_script:step",), ["there is no module 'no_such_script'"]),
        (("training_script:step", "--hardware", "h10"), ["unknown hardware 'h10'", "did you mean 'h100'?"]),
        (("training_script:step", "--budget", "12"), ["budget needs a unit"]),
        (("training_script:step", "--plot", "p.png"), ["--plot needs a --budget"]),
        (("training_script:step", "--force"), ["--force has no effect without", "--save-instance"]),
        (("training_script:step", "--retained", "95%"), ["--retained has no effect without --largest batch"]),
        (("training_script:make", "--largest", "batch"), ["--largest needs a --budget"]),
        (("training_script:make", "--largest", "sequence"), ["--largest", "invalid choice: 'sequence'"]),
        (("training_script:make", "--largest", "batch", "--budget", "50%"), ["--largest needs a --budget in bytes", "'50%'"]),
        (
            ("training_script:make", "--largest", "batch", "--budget", "1MB", "--retained", "0.95"),
            ["--retained must be a percentage", "'0.95'"],
        ),
        (
            ("training_script:make_256", "--largest", "batch", "--budget", "1MB"),
            ["with --largest batch a function that takes a batch and returns a step, got one that takes ()"],
        ),
        (("training_script:make",), ["a function that runs one step without arguments, got one that takes (batch)"]),
        (("training_script:make", "--hardware", "h100"), ["without arguments, got one that takes (batch)"]),
        (("training_script:make_small", "--largest", "batch", "--budget", "99B"), ["not even a batch of one fits"]),
        (
            ("training_script:make_nothing", "--largest", "batch", "--budget", "1MB"),
            ["what makes the step must return it, a function without arguments, got 1"],
        ),
        (("training_script:make_256",), ["ran no backward pass", "it returned a function: should that be the step?"]),
        (("..script:step",), ["expected package.module:function, got '..script:step'"]),
        (
            ("training_script:fail",),
            [r"raised KeyError: 'what the script\nsays' (", "training_script.py, line 25)", "--verbose"],
        ),
        (("training_script:fail()", "--hardware", "h100"), ["raised KeyError", "training_script.py, line 25)"]),
        (("training_script:leave",), ["raised SystemExit: 3 (", "training_script.py, line 28)"]),
    ],
)
def test_profile_refuses_by_name(
    script: str, argv: tuple[str, ...], reasons: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = refused(capsys, "profile", *argv)
    for reason in reasons:
        assert reason in sentence


def test_verbose_shows_how_the_step_got_to_its_error(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("profile", f"{script}:fail", "--verbose") == 2
    assert "in fail" in capsys.readouterr().err


def test_without_torch_the_line_that_installs_it_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert refused(capsys, "profile", "training_script:step") == (
        "slackswap: profiles need PyTorch: pip install 'slackswap-opt[torch]'\n"
    )


def test_the_command_alone_loads_no_torch() -> None:
    code = "import sys, slackswap_opt.cli; slackswap_opt.cli.parser(); print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert ended.stdout == "False\n"
