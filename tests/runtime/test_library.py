"""The script that writes the library writes the files that are there."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from slackswap_opt.files import InputError
from slackswap_opt.runtime import library

FOLDER = Path(__file__).parents[2] / "instances" / "library"


def remade(name: str, folder: Path) -> None:
    made_with = json.loads((FOLDER / "index.json").read_text())[name]["torch"]
    if torch.__version__.partition("+")[0] != made_with:
        pytest.skip(f"the file was made with PyTorch {made_with}, whose operators may be others")
    library.write(name, folder)
    packed = (folder / f"{name}.json.gz").read_bytes()
    assert gzip.decompress(packed) == gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes())
    assert json.loads((folder / "index.json").read_text())[name] == json.loads((FOLDER / "index.json").read_text())[name]


def test_resnet_is_made_again(tmp_path: Path) -> None:
    remade("resnet-50", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", library.ENTRIES)
def test_every_step_is_made_again(name: str, tmp_path: Path) -> None:
    remade(name, tmp_path)


def test_a_second_step_is_added_to_the_index(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"earlier": {"peak": 3}}')
    library.write("resnet-50", tmp_path)
    assert list(json.loads((tmp_path / "index.json").read_text())) == ["earlier", "resnet-50"]


def test_unknown_names_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown step 'bert'; choose from bert-large, "):
        library.main([str(tmp_path), "bert"])
    with pytest.raises(InputError, match="is no folder; expected one to write the library into"):
        library.main([str(tmp_path / "missing")])
