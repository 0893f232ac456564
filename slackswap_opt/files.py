"""The project's JSON files: strict keys, exact integers, whole files or none."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

LARGEST = 2**63 - 1
"""The largest integer that a file or an argument may hold."""


class InputError(ValueError):
    """A value from a person or a file that cannot be used: its message names the field, the value and what would be right."""


def read_json(path: str | os.PathLike[str]) -> Any:
    """Return the JSON value in the file at `path`.

    Raises
    ------
    InputError
        If the file cannot be read, is empty, is not JSON, repeats a key or holds NaN or an infinity.
    """
    name = shown_path(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder; expected a JSON file") from None
    except UnicodeDecodeError:
        raise InputError(f"{name}: is not UTF-8 text; expected a JSON file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return parse_json(text)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def parse_json(text: str) -> Any:
    """Return the JSON value that `text` spells; like `read_json` for text in memory."""
    if not text.strip():
        raise InputError("is empty; expected a JSON object")
    try:
        return json.loads(
            text,
            parse_int=_integer,
            parse_float=_Spelled,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_keys,
        )
    except InputError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise InputError("is not usable JSON: nested too deeply") from None


def write_text(path: str | os.PathLike[str], text: str, *, overwrite: bool = False) -> None:
    """Write `text` to `path` at once: an interrupted write leaves no file and harms no older one.

    Raises
    ------
    InputError
        If the file exists and `overwrite` is false, or it cannot be written.
    """
    write_bytes(path, text.encode("utf-8"), overwrite=overwrite)


def write_bytes(path: str | os.PathLike[str], content: bytes, *, overwrite: bool = False) -> None:
    """Like `write_text`, for bytes."""
    check_target(path, overwrite=overwrite)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".slackswap-{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"{shown_path(path)}: cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def check_target(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise `InputError` if a file cannot be written at `path` under the rule of `write_text`."""
    name = shown_path(path)
    if "\0" in os.fspath(path):
        raise InputError(f"{name}: is no name of a file, since it holds a null character")
    if not os.fspath(path):
        raise InputError("'' is no name of a file; expected the name of a file to write")
    if os.path.isdir(path):
        raise InputError(f"{name}: is a folder; expected the name of a file to write")
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise InputError(f"{name}: its folder does not exist")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{name}: its folder does not allow writing")
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"{name}: cannot be written: {error.strerror}") from None
    exists = os.path.exists(path)
    if exists and not os.path.isfile(path):
        raise InputError(f"{name}: is not a regular file; expected the name of a file to write")
    if exists and not overwrite:
        raise InputError(f"{name}: exists already; choose another name, or allow it to be overwritten (--force)")


def take(data: Any, where: str, required: Mapping[str, type], optional: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a JSON object, optional ones filled in, unknown and missing ones refused by name.

    Parameters
    ----------
    data
        What should be an object.
    where
        How a message names it, such as ``tensors[3]``; empty for the whole file.
    required
        Keys that must be there, with the type of their value; `object` where its own check follows.
    optional
        Keys that may be absent, with their default.
    """
    place = f"{where}: " if where else ""
    if not isinstance(data, dict):
        raise InputError(f"{place}expected an object, got {shown(data)}")
    if unknown := [key for key in data if key not in required and key not in optional]:
        known = ", ".join([*required, *optional])
        raise InputError(f"{place}unknown key {shown(unknown[0])}; the keys are {known}")
    if missing := [key for key in required if key not in data]:
        raise InputError(f"{place}missing key '{missing[0]}'")
    for key, kind in required.items():
        if not isinstance(data[key], kind) or (kind is int and isinstance(data[key], bool)):
            raise InputError(f"{place}'{key}' must be {_TYPE_NAMES[kind]}, got {shown(data[key])}")
    return {**optional, **data}


def check_format(members: Mapping[str, Any], expected: str, version: int) -> None:
    """Raise `InputError` unless a file's members say that it has the expected format and version."""
    if members["format"] != expected:
        raise InputError(f"'format' must be '{expected}', got {shown(members['format'])}")
    if members["version"] != version:
        raise InputError(f"'version' must be {version}, got {shown(members['version'])}")


def check_string(value: Any, where: str) -> str:
    """Return `value` if it is a string that can be printed on one line, or raise `InputError` naming `where`."""
    if not isinstance(value, str):
        raise InputError(f"{where} must be a string, got {shown(value)}")
    if not value.isprintable():
        raise InputError(f"{where} must be a string without line breaks and control characters, got {shown(value)}")
    return value


def check_integer(value: Any, where: str, *, least: int = 0, most: int = LARGEST) -> int:
    """Return `value` if it is an integer from `least` to `most`, or raise `InputError` naming `where`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{where} must be an integer from {least} to {most}, got {shown(value)}")
    return value


def check_type(value: Any, kind: type | tuple[type, ...], where: str, right: str) -> None:
    """Raise `InputError`, which names `where` and says what would be `right`, unless `value` is of a kind."""
    if not isinstance(value, kind):
        raise InputError(f"{where} must be {right}, got {shown(value)}")


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return the name of a file for a message, on one line; raise `InputError` if it is none."""
    check_type(path, (str, os.PathLike), "the name of a file", "a string or a path")
    name = os.fspath(path)
    return name if name.isprintable() else repr(name)


def shown(value: Any) -> str:
    """Return a short spelling of any value for a message."""
    try:
        text = repr(value)
    except ValueError:
        text = "an integer of too many digits"
    except RecursionError:
        text = "a value nested too deeply"
    return text if len(text) <= 60 else f"{text[:57]}..."


_TYPE_NAMES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


class _Spelled(float):
    """A number of a file that is no integer, or too long for one; messages show it as the file spells it."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text


def _integer(text: str) -> int | _Spelled:
    try:
        return int(text)
    except ValueError:
        return _Spelled(text)


def _refuse_constant(constant: str) -> NoReturn:
    raise InputError(f"holds {constant}, which is not a number in JSON; expected an integer")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InputError(f"repeats the key {shown(repeated)} in one object")
    return members
