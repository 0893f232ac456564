"""What is to be done: the instructions of a step in the order in which the CPU issues them."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

from slackswap_opt.files import (
    InputError,
    check_format,
    check_integer,
    check_string,
    check_type,
    parse_json,
    read_json,
    shown,
    shown_path,
    take,
    write_text,
)
from slackswap_opt.instance import Instance

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

    Raises
    ------
    InputError
        If the names are no strings, or an instruction is not an `Action` with a number.
    """

    name: str
    fingerprint: str
    instructions: tuple[Instruction, ...]

    def __post_init__(self) -> None:
        check_string(self.name, "'name' of the schedule's instance")
        check_string(self.fingerprint, "'fingerprint' of the schedule's instance")
        check_type(self.instructions, tuple, "'instructions'", "a tuple of instructions")
        for n, instruction in enumerate(self.instructions):
            if not isinstance(instruction, tuple) or len(instruction) != 2:
                raise InputError(f"instructions[{n}] must be an Instruction, got {shown(instruction)}")
        if {(type(action), type(target)) for action, target in self.instructions} - {(Action, int)}:
            for n, (action, target) in enumerate(self.instructions):
                if not isinstance(action, Action):
                    raise InputError(f"instructions[{n}]: unknown action {shown(action)}; choose from {', '.join(Action)}")
                check_integer(target, f"instructions[{n}]: the number of its operation or tensor")

    @classmethod
    def of(cls, instance: Instance, instructions: Iterable[Instruction]) -> Self:
        """Return a schedule for `instance`."""
        check_type(instance, Instance, "'instance'", "an Instance")
        return cls(instance.name, instance.fingerprint, tuple(instructions))

    def fetched_again(self) -> list[bool]:
        """For each prefetch, in order, whether another one of the same copy follows: until then the host must keep it."""
        again: list[bool] = []
        latest: dict[int, int] = {}
        prefetch, offload = Action.PREFETCH, Action.OFFLOAD
        for action, i in self.instructions:
            if action == prefetch:
                if i in latest:
                    again[latest[i]] = True
                latest[i] = len(again)
                again.append(False)
            elif action == offload:
                latest.pop(i, None)
        return again

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
            raise InputError(f"{shown_path(path)}: {error}") from None

    @classmethod
    def _from_data(cls, data: Any) -> Self:
        members = take(data, "", {"format": str, "version": int, "instance": dict, "instructions": list}, {})
        check_format(members, FORMAT, VERSION)
        instance = take(members["instance"], "instance", {"name": object, "fingerprint": object}, {})
        for key in ("name", "fingerprint"):
            check_string(instance[key], f"instance.{key}")
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


def spell(instance: Instance, action: Action, target: int) -> str:
    """Return an instruction as messages show it, with the name of its operation or tensor: ``evict 3 'norm1 output'``."""
    named = instance.operations if action == Action.RUN else instance.tensors
    return f"{action} {target} '{named[target].name}'" if 0 <= target < len(named) else f"{action} {target}"
