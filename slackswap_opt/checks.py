"""What an instance must satisfy: types, ranges, unique names, and that every tensor is written before it is read."""

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

from slackswap_opt.files import LARGEST, InputError, check_integer, check_string, check_type, shown

if TYPE_CHECKING:
    from slackswap_opt.instance import Instance, Link, Operation, Tensor


def check_instance(instance: "Instance") -> None:
    """Raise `InputError` at the first thing that is wrong with `instance`."""
    check_string(instance.name, "'name'")
    check_link(instance.link)
    for field in ("budget", "host_budget"):
        if getattr(instance, field) is not None:
            check_integer(getattr(instance, field), f"'{field}'")
    for i, tensor in enumerate(instance.tensors):
        _check_tensor(tensor, f"tensors[{i}]")
    for t, operation in enumerate(instance.operations):
        _check_operation(operation, f"operations[{t}]", len(instance.tensors))
    _check_unique("tensors", [tensor.name for tensor in instance.tensors])
    _check_unique("operations", [operation.name for operation in instance.operations])
    sizes = (tensor.size for tensor in instance.tensors)
    _check_total("sizes of tensors and workspaces", chain(sizes, (operation.workspace for operation in instance.operations)))
    _check_total("durations", (operation.duration for operation in instance.operations))
    _check_order(instance)
    for i, tensor in enumerate(instance.tensors):
        if tensor.held != ():
            _check_held(tensor, f"tensors[{i}]", instance.writers[i][0], len(instance.operations))


def check_link(link: "Link") -> None:
    """Raise `InputError` if a field of `link` has a wrong type or range."""
    check_integer(link.offload_bandwidth, "link.offload_bandwidth", least=1)
    check_integer(link.prefetch_bandwidth, "link.prefetch_bandwidth", least=1)
    check_integer(link.latency, "link.latency")
    check_type(link.duplex, bool, "link.duplex", "true or false")


def _check_tensor(tensor: "Tensor", where: str) -> None:
    check_string(tensor.name, f"{where}.name")
    check_integer(tensor.size, f"{where}.size ('{tensor.name}')")
    check_type(tensor.swappable, bool, f"{where}.swappable ('{tensor.name}')", "true or false")
    check_string(tensor.kind, f"{where}.kind ('{tensor.name}')")


def _check_operation(operation: "Operation", where: str, tensors: int) -> None:
    check_string(operation.name, f"{where}.name")
    check_integer(operation.duration, f"{where}.duration ('{operation.name}')")
    check_integer(operation.workspace, f"{where}.workspace ('{operation.name}')")
    check_type(operation.recomputable, bool, f"{where}.recomputable ('{operation.name}')", "true or false")
    if operation.phase not in ("forward", "backward"):
        raise InputError(f"{where}.phase ('{operation.name}') must be 'forward' or 'backward', got {shown(operation.phase)}")
    if operation.block is not None:
        check_string(operation.block, f"{where}.block ('{operation.name}')")
    _check_numbers(operation.reads, f"{where}.reads ('{operation.name}')", tensors)
    _check_numbers(operation.writes, f"{where}.writes ('{operation.name}')", tensors)


def _check_numbers(numbers: tuple[int, ...], where: str, tensors: int) -> None:
    if not isinstance(numbers, tuple):
        raise InputError(f"{where} must be a tuple, got {shown(numbers)}")
    for i in numbers:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < tensors:
            right = f"hold tensor numbers from 0 to {tensors - 1}" if tensors else "be empty, since there are no tensors"
            raise InputError(f"{where} must {right}, got {shown(i)}")
    if len(set(numbers)) < len(numbers):
        raise InputError(f"{where} must name each tensor once, got {shown(list(numbers))}")


def _check_held(tensor: "Tensor", where: str, written: int, operations: int) -> None:
    if not isinstance(tensor.held, tuple):
        raise InputError(f"{where}.held ('{tensor.name}') must be a tuple of pairs, got {shown(tensor.held)}")
    end = -1
    for stretch in tensor.held:
        pair = isinstance(stretch, tuple) and len(stretch) == 2 and all(type(t) is int for t in stretch)
        if not pair or not end < stretch[0] <= stretch[1] < operations:
            raise InputError(
                f"{where}.held ('{tensor.name}') must hold pairs (first, last) of operations below {operations}, one after the "
                f"other, got {shown(stretch)}"
            )
        end = stretch[1]
    if tensor.held[0][0] < written:
        raise InputError(f"{where}.held: '{tensor.name}' is held before any operation has written it")


def _check_unique(field: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        first: dict[str, int] = {}
        for position, name in enumerate(names):
            if first.setdefault(name, position) != position:
                raise InputError(
                    f"{field}[{position}].name must be unique, got {shown(name)}, the name of {field}[{first[name]}] too"
                )


def _check_total(what: str, values: Iterable[int]) -> None:
    # Half of the 64-bit range, so that sums of two such totals, in numpy or a solver, cannot overflow.
    if (total := sum(values)) > LARGEST // 2:
        raise InputError(f"the {what} must add up to at most {LARGEST // 2}, got {total}")


def _check_order(instance: "Instance") -> None:
    written: set[int] = set()
    for t, operation in enumerate(instance.operations):
        for i in operation.reads:
            if i not in written:
                raise InputError(
                    f"operations[{t}].reads: '{operation.name}' reads tensor {i} ('{instance.tensors[i].name}') "
                    "before any operation has written it"
                )
        for i in operation.writes:
            if i in written and i not in operation.reads:
                raise InputError(
                    f"operations[{t}].writes: '{operation.name}' writes tensor {i} ('{instance.tensors[i].name}') in place, "
                    "after another operation wrote it, so it must be among its reads too"
                )
        written.update(operation.writes)
    for i, tensor in enumerate(instance.tensors):
        if i not in written:
            raise InputError(f"tensors[{i}]: '{tensor.name}' is never written; an operation must write each tensor")
