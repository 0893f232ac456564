"""The parameters of a model: their defaults, what they mean, and what they may be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from slackswap_opt.files import LARGEST, InputError, shown

Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing that can be chosen about a model.

    Attributes
    ----------
    name, default
        The type of the default is the type of every value; a float may be given as an integer.
    meaning
        One line for a list.
    choices
        What a string may be.
    least, most
        The range of a number.
    """

    name: str
    default: Value
    meaning: str
    choices: tuple[str, ...] = ()
    least: int = 1
    most: int = LARGEST

    def check(self, value: object) -> Value:
        """Return `value` if it can be used, or raise `InputError` saying what would be right."""
        if isinstance(self.default, float) and type(value) is int and self.least <= value <= self.most:
            value = float(value)
        if isinstance(value, bool | int | float | str) and type(value) is type(self.default) and self._has(value):
            return value
        raise InputError(f"'{self.name}' must be {self._expected()}, got {shown(value)}")

    def parse(self, text: str) -> Value:
        """Return the value that `text` spells, or raise `InputError` saying what would be right."""
        try:
            return self.check(self._spelled(text.strip()))
        except (ValueError, KeyError):
            raise InputError(f"'{self.name}' must be {self._expected()}, got {shown(text)}") from None

    def _has(self, value: Value) -> bool:
        if isinstance(value, str):
            return value in self.choices
        return isinstance(value, bool) or self.least <= value <= self.most

    def _spelled(self, text: str) -> Value:
        if isinstance(self.default, bool):
            return _BOOLEANS[text.lower()]
        if isinstance(self.default, str):
            return text
        return float(text) if isinstance(self.default, float) else int(text)

    def _expected(self) -> str:
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, str):
            return f"one of {', '.join(self.choices)}"
        kind = "a number" if isinstance(self.default, float) else "an integer"
        return f"{kind} from {self.least} to {self.most}"


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class About:
    """What stands beside the type of a field that can be chosen, as in ``layers: Annotated[int, About("layers")] = 24``."""

    meaning: str
    least: int = 1
    most: int = LARGEST


def described(values: Any) -> dict[str, Parameter]:
    """Return by name the parameters of a dataclass whose fields carry `About`; the instance `values` holds their defaults."""
    described = {}
    for name, hint in get_type_hints(type(values), include_extras=True).items():
        kind, about = get_args(hint)
        described[name] = Parameter(name, getattr(values, name), about.meaning, get_args(kind), about.least, about.most)
    return described


def look_up(model: str, known: Mapping[str, Parameter], name: str) -> Parameter:
    """Return the parameter called `name`, or raise `InputError` listing those that there are."""
    if name not in known:
        raise InputError(f"unknown parameter {shown(name)} of '{model}'; choose from {', '.join(known)}")
    return known[name]
