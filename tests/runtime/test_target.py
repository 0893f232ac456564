"""Steps by their name, as the command line has them."""

import sys
from pathlib import Path

import pytest
import torch

from slackswap_opt.files import InputError
from slackswap_opt.instance import Instance
from slackswap_opt.runtime.target import find_step, profile_command

SCRIPT = """
import torch
from torch import nn

class Training:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.batch = torch.ones(4, 8)

    def step(self):
        self.model(self.batch).square().mean().backward()

training = Training()
step = training.step

def make():
    return Training().step

def make_number():
    return 3
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module of a name of its own in the current folder, as a person's training script is."""
    name = f"training_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize("step", ["step", "training.step", "make()"])
def test_a_step_is_a_function_a_method_or_what_a_call_returns(script: str, step: str) -> None:
    result = profile_command(f"{script}:{step}", timed=False)
    assert result.instance.name == f"{script}:{step}"
    assert "0.addmm" in [operation.name for operation in result.instance.operations]


def test_on_named_hardware_the_module_is_imported_without_data(script: str) -> None:
    result = profile_command(f"{script}:step", hardware="a100-40gb", name="mlp")
    assert result.instance.name == "mlp"
    assert isinstance(sys.modules[script].training.batch, torch._subclasses.fake_tensor.FakeTensor)
    assert result.instance.ideal > 0


def test_the_folder_is_not_left_on_the_path(script: str) -> None:
    before = list(sys.path)
    find_step(f"{script}:step")
    assert sys.path == before


def test_what_a_call_returns_must_be_a_step(script: str) -> None:
    with pytest.raises(InputError, match="what it returns is 3, which cannot be called"):
        find_step(f"{script}:make_number()")


def test_errors_inside_of_the_script_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_training.py").write_text("import not_there_at_all", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        find_step("broken_training:step")


def test_profiles_are_saved_and_loaded_anywhere(script: str, tmp_path: Path) -> None:
    instance = profile_command(f"{script}:step", hardware="h100").instance
    instance.save(tmp_path / "step.json")
    assert Instance.load(tmp_path / "step.json") == instance
