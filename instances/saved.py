"""The library of profiled steps that comes with the package."""

import gzip
import json
from importlib.resources import files
from typing import Any

from slackswap_opt.files import InputError, shown
from slackswap_opt.instance import Instance

_FOLDER = files("slackswap_opt.instances") / "library"


def names() -> tuple[str, ...]:
    """Return the names of the library's steps."""
    return tuple(_index())


def about(name: str) -> dict[str, Any]:
    """Return what a step of the library is of: model, batch, precision, hardware, version of PyTorch, command, sizes.

    Raises
    ------
    InputError
        If there is no step of that name.
    """
    entries = _index()
    if name not in entries:
        raise InputError(f"unknown step {shown(name)} of the library; choose from {', '.join(entries)}")
    entry: dict[str, Any] = entries[name]
    return entry


def load_saved(name: str) -> Instance:
    """Return a step of the library.

    Raises
    ------
    InputError
        If there is no step of that name.
    """
    about(name)
    return Instance.from_json(gzip.decompress((_FOLDER / f"{name}.json.gz").read_bytes()).decode())


def _index() -> dict[str, Any]:
    index: dict[str, Any] = json.loads((_FOLDER / "index.json").read_text(encoding="utf-8"))
    return index
