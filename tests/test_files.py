import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt.files import (
    LARGEST,
    InputError,
    check_format,
    check_integer,
    check_string,
    check_target,
    parse_json,
    read_json,
    shown,
    take,
    write_bytes,
    write_text,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_json_without_fractions_comes_back_the_same(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value


@given(st.text())
def test_any_text_is_parsed_or_refused_in_one_line(text: str) -> None:
    try:
        parse_json(text)
    except InputError as error:
        message = str(error)
    else:
        message = ""
    assert message.isprintable()


@given(st.binary())
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("files") / "name.json"
    write_bytes(path, content)
    assert path.read_bytes() == content


@given(st.recursive(st.floats() | st.text() | st.integers(), lambda inner: st.lists(inner, max_size=5), max_leaves=30))
def test_a_value_is_shown_on_one_short_line(value: Any) -> None:
    assert len(shown(value)) <= 60
    assert shown(value).isprintable()


def refusal(text: str) -> str:
    with pytest.raises(InputError) as error:
        parse_json(text)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a JSON object"),
        (" \n\t", "is empty; expected a JSON object"),
        ('{"a": [1, 2', "is not JSON: Expecting ',' delimiter (line 1, column 12)"),
        ("{'a': 1}", "is not JSON: Expecting property name enclosed in double quotes (line 1, column 2)"),
        ('{"a": 1}\n{', "is not JSON: Extra data (line 2, column 1)"),
        ('{"a": 1, "b": 2, "a": 3}', "repeats the key 'a' in one object"),
        ('{"a": {"b": 1, "b": 1}}', "repeats the key 'b' in one object"),
        ("[NaN]", "holds NaN, which is not a number in JSON; expected an integer"),
        ("[-Infinity]", "holds -Infinity, which is not a number in JSON; expected an integer"),
        ("[" * 100_000, "is not usable JSON: nested too deeply"),
        ('{"a":' * 100_000, "is not usable JSON: nested too deeply"),
    ],
)
def test_what_is_no_json_is_refused(text: str, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize("text", ["1e400", "3.0", "0.1", "-1e-7", pytest.param("9" * 5000, id="huge")])
def test_numbers_that_are_no_integers_are_shown_as_they_are_spelled(text: str) -> None:
    (number,) = parse_json(f"[{text}]")
    expected = text if len(text) <= 60 else f"{text[:57]}..."
    with pytest.raises(InputError) as error:
        check_integer(number, "size")
    assert str(error.value) == f"size must be an integer from 0 to {LARGEST}, got {expected}"


@pytest.mark.parametrize("depth", [10, 100, 300, 900, 3000])
def test_a_deep_value_is_shown_or_said_to_be_deep(depth: int) -> None:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    assert shown(value).startswith("[[[") or shown(value) == "a value nested too deeply"


def test_integers_that_are_too_long_to_print_are_shown() -> None:
    assert shown(10**5000) == "an integer of too many digits"


@pytest.mark.parametrize("value", [0, 1, LARGEST])
def test_integers_in_range_are_taken(value: int) -> None:
    assert check_integer(value, "size") == value


@pytest.mark.parametrize(
    "value", [-1, LARGEST + 1, 2**64, pytest.param(10**5000, id="huge"), True, False, 3.0, float("nan"), "3", None, [3]]
)
def test_anything_else_is_no_integer_in_range(value: Any) -> None:
    with pytest.raises(InputError, match=rf"^size must be an integer from 0 to {LARGEST}, got "):
        check_integer(value, "size")


def test_the_least_may_be_one() -> None:
    with pytest.raises(InputError, match=r"^bandwidth must be an integer from 1 to \d+, got 0$"):
        check_integer(0, "bandwidth", least=1)


def test_a_string_must_fit_on_one_line() -> None:
    assert check_string("Größe 1/2, 重み", "name") == "Größe 1/2, 重み"
    with pytest.raises(InputError, match=r"^name must be a string, got 3$"):
        check_string(3, "name")
    for text, spelled in (("a\nb", r"'a\\nb'"), ("\x1b[2J", r"'\\x1b\[2J'"), ("\ud800", r"'\\ud800'"), ("\x00", r"'\\x00'")):
        with pytest.raises(
            InputError, match=rf"^name must be a string without line breaks and control characters, got {spelled}$"
        ):
            check_string(text, "name")


def test_the_format_and_its_version_are_named() -> None:
    check_format({"format": "f", "version": 1}, "f", 1)
    with pytest.raises(InputError, match=r"^'format' must be 'f', got 'g'$"):
        check_format({"format": "g", "version": 1}, "f", 1)
    with pytest.raises(InputError, match=r"^'version' must be 1, got 2$"):
        check_format({"format": "f", "version": 2}, "f", 1)


def test_members_are_taken_by_name() -> None:
    assert take({"a": "x", "c": None}, "", {"a": str, "c": object}, {"b": 0}) == {"a": "x", "b": 0, "c": None}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "rows[2]: expected an object, got []"),
        (None, "rows[2]: expected an object, got None"),
        ({"a": "x", "d": 1}, "rows[2]: unknown key 'd'; the keys are a, n, b"),
        ({"n": 1}, "rows[2]: missing key 'a'"),
        ({"a": 1, "n": 1}, "rows[2]: 'a' must be a string, got 1"),
        ({"a": "x", "n": True}, "rows[2]: 'n' must be an integer, got True"),
        ({"a": "x", "n": None}, "rows[2]: 'n' must be an integer, got None"),
    ],
)
def test_other_members_are_refused(data: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        take(data, "rows[2]", {"a": str, "n": int}, {"b": 0})
    assert str(error.value) == message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary, empty, cut = tmp_path / "binary", tmp_path / "empty", tmp_path / "cut"
    binary.write_bytes(b"\x80\x04\x95\xff\xfe")
    empty.touch()
    cut.write_text('{"format": "slack')
    for path, message in (
        (tmp_path, "is a folder; expected a JSON file"),
        (binary, "is not UTF-8 text; expected a JSON file"),
        (empty, "is empty; expected a JSON object"),
        (cut, "is not JSON: Unterminated string starting at (line 1, column 12)"),
        (tmp_path / "missing", "cannot be read: No such file or directory"),
        (binary / "below", "cannot be read: Not a directory"),
        ("nul\0", "cannot be read: embedded null byte"),
    ):
        with pytest.raises(InputError) as error:
            read_json(path)
        named = r"'nul\x00'" if path == "nul\0" else path
        assert str(error.value) == f"{named}: {message}"


def test_a_file_is_only_written_over_on_demand(tmp_path: Path) -> None:
    path = tmp_path / "name.json"
    write_text(path, "old")
    with pytest.raises(InputError, match=r"name\.json: exists already; choose another name, or allow it to be overwritten"):
        write_text(path, "new")
    assert path.read_text() == "old"
    write_text(path, "new", overwrite=True)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["name.json"]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("older", [True, False])
def test_an_interrupted_write_leaves_what_was_there(
    failure: BaseException, older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        assert len(os.listdir(tmp_path)) == older + 1  # the new content is in a file of its own
        raise failure

    path = tmp_path / "name.json"
    if older:
        path.write_text("old")
    monkeypatch.setattr(os, "replace", interrupted)
    expected = InputError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as error:
        write_text(path, "new", overwrite=True)
    if expected is InputError:
        assert str(error.value) == f"{path}: cannot be written: No space left on device"
    assert os.listdir(tmp_path) == ["name.json"] * older
    assert not older or path.read_text() == "old"


def test_a_written_file_has_the_usual_rights(tmp_path: Path) -> None:
    usual, written = tmp_path / "usual", tmp_path / "written"
    usual.touch()
    write_text(written, "text")
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_a_link_stays_a_link_to_what_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new", overwrite=True)
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_names_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.touch()
    for path, message in (
        (tmp_path, f"{tmp_path}: is a folder; expected the name of a file to write"),
        (pipe, f"{pipe}: is not a regular file; expected the name of a file to write"),
        (tmp_path / "none" / "x", f"{tmp_path}/none/x: its folder does not exist"),
        (file / "x", f"{file}/x: its folder does not exist"),
        (tmp_path / ("x" * 300), f"{tmp_path}/{'x' * 300}: cannot be written: File name too long"),
        ("nul\0", r"'nul\x00': is no name of a file, since it holds a null character"),
        ("", "'' is no name of a file; expected the name of a file to write"),
        (tmp_path / "two\nlines" / "x", f"{str(tmp_path / 'two') + chr(10) + 'lines/x'!r}: its folder does not exist"),
        (3, "the name of a file must be a string or a path, got 3"),
    ):
        with pytest.raises(InputError) as error:
            write_text(path, "text", overwrite=True)  # type: ignore[arg-type]
        assert str(error.value) == message
        with pytest.raises(InputError) as error:
            check_target(path, overwrite=True)  # type: ignore[arg-type]
        assert str(error.value) == message
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe"]


def test_a_target_can_be_checked_before_the_work(tmp_path: Path) -> None:
    check_target(tmp_path / "new", overwrite=False)
    assert os.listdir(tmp_path) == []


def test_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "name"
    texts = [str(k) * 100_000 for k in range(8)]
    threads = [threading.Thread(target=write_text, args=(path, text), kwargs={"overwrite": True}) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in texts
    assert os.listdir(tmp_path) == ["name"]
