"""What is to be done: the instructions of a step in the order in which the CPU issues them."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

from slackswap_opt.files import InputError, check_integer, parse_json, read_json, shown, take, write_text
from slackswap_opt.instance import Instance, check_format

FORMAT, VERSION = "slackswap-schedule", 1


class Action(StrEnum):
    """What an instruction does; its target is an operation for RUN, a tensor for the others.

    RUN executes an operation, OFFLOAD starts a copy to the host, EVICT waits for that copy and frees the device's bytes,
    PREFETCH allocates a tensor and starts its copy back, DROP frees a tensor.
    """

    RUN = "run"
    OFFLOAD = "offload"
    EVICT = "evict"
    PREFETCH = "prefetch"
    DROP = "drop"


class Instruction(NamedTuple):
    """One instruction: an action and the number of its operation or tensor."""

    action: Action
    target: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Instructions for one instance.

    Attributes
    ----------
    name, fingerprint
        Those of the instance that the schedule is for.
    instructions
        In the order of issue.
    """

    name: str
    fingerprint: str
    instructions: tuple[Instruction, ...]

    @classmethod
    def of(cls, instance: Instance, instructions: Iterable[Instruction]) -> Self:
        """Return a schedule for `instance`."""
        return cls(instance.name, instance.fingerprint, tuple(instructions))

    def to_json(self) -> str:
        """Return the schedule as JSON text, a line an instruction."""
        head = json.dumps({"name": self.name, "fingerprint": self.fingerprint})
        lines = ",\n  ".join(f'["{action}", {target}]' for action, target in self.instructions)
        body = f"[\n  {lines}]" if self.instructions else "[]"
        return f'{{"format": "{FORMAT}", "version": {VERSION},\n "instance": {head},\n "instructions": {body}}}\n'

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the schedule that `text` describes, or raise `InputError`."""
        return cls._from_data(parse_json(text))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the schedule to a JSON file; raise `InputError` if it exists and `overwrite` is false."""
        write_text(path, self.to_json(), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the schedule in a JSON file, or raise `InputError` naming file, field and value."""
        data = read_json(path)
        try:
            return cls._from_data(data)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    @classmethod
    def _from_data(cls, data: Any) -> Self:
        members = take(data, "", {"format": str, "version": int, "instance": dict, "instructions": list}, {})
        check_format(members, FORMAT, VERSION)
        instance = take(members["instance"], "instance", {"name": str, "fingerprint": str}, {})
        rows = enumerate(members["instructions"])
        return cls(instance["name"], instance["fingerprint"], tuple(_instruction(row, f"instructions[{n}]") for n, row in rows))


def _instruction(row: Any, where: str) -> Instruction:
    if not isinstance(row, list) or len(row) != 2:
        raise InputError(f'{where} must be a pair such as ["run", 0], got {shown(row)}')
    try:
        action = Action(row[0])
    except ValueError:
        raise InputError(f"{where}: unknown action {shown(row[0])}; choose from {', '.join(Action)}") from None
    return Instruction(action, check_integer(row[1], f"{where}: the number of its operation or tensor"))
