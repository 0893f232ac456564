"""The library of profiled steps: small files that anyone can read, plan and make again."""

from pathlib import Path

import pytest

from slackswap_opt import instances
from slackswap_opt.files import InputError
from slackswap_opt.instances import saved
from slackswap_opt.solve import solve

FOLDER = Path(__file__).parents[1] / "instances" / "library"
LARGEST_FILE = 300_000


def test_every_file_is_in_the_index_and_small() -> None:
    files = {path.name.removesuffix(".json.gz"): path.stat().st_size for path in FOLDER.glob("*.json.gz")}
    assert set(files) == set(saved.names())
    assert all(size <= LARGEST_FILE for size in files.values())


@pytest.mark.parametrize("name", saved.names())
def test_a_file_is_what_the_index_says(name: str) -> None:
    instance, about = saved.load_saved(name), saved.about(name)
    assert instance.name == f"library/{name}"
    assert (len(instance.operations), len(instance.tensors)) == (about["operations"], about["tensors"])
    assert (instance.peak, instance.ideal) == (about["peak"], about["ideal"])
    assert {operation.phase for operation in instance.operations} == {"forward", "backward"}


def test_a_step_can_be_planned_into_half_of_its_peak() -> None:
    result = solve(saved.load_saved("resnet-50"), budget="50%")
    assert result.peak is not None
    assert result.peak <= saved.about("resnet-50")["peak"] // 2
    assert result.retained is not None
    assert result.retained > 0.8


def test_load_knows_the_library() -> None:
    assert instances.load("library/moe") == saved.load_saved("moe")
    with pytest.raises(InputError, match="takes no parameters"):
        instances.load("library/moe", batch=8)
    with pytest.raises(InputError, match="takes no parameters"):
        instances.load("library/moe", hardware="h100")


def test_there_is_no_such_step() -> None:
    with pytest.raises(InputError, match="unknown step 'bert' of the library; choose from bert-large, "):
        saved.load_saved("bert")
