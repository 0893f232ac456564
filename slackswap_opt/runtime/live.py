"""Where memory ran out in spite of a plan: what is alive on the device that the plan did not know of."""

import gc
from collections import Counter
from typing import Any

import torch

from slackswap_opt.runtime.program import Program
from slackswap_opt.runtime.storage import is_plain

NAMED = 5
"""How many storages a message names."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an allocation failed: on the CPU, that has no type of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def unknown(program: Program, index: int, managed: set[int]) -> str:
    """Return in words what Python holds on the device that is neither the plan's, nor a model's or an optimizer's.

    Parameters
    ----------
    program
        The plan.
    index
        The operation that runs.
    managed
        Addresses of storages that the runtime knows of.
    """
    instance = program.instance
    accesses = ((i, instance.accesses[i]) for i in range(len(instance.tensors)) if i not in program.managed)
    planned = Counter(instance.tensors[i].size for i, at in accesses if at[0] <= index <= at[-1])
    others = []
    for size, words in _held_by_python(program.device, managed):
        if planned[size] > 0:
            planned[size] -= 1
        elif size:
            others.append((size, words))
    if not others:
        return "Python holds nothing else on the device"
    others.sort(reverse=True)
    named = ", ".join(f"{words} ({size} bytes)" for size, words in others[:NAMED])
    more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
    return f"Python holds {sum(size for size, _ in others)} bytes that the plan does not know: {named}{more}"


def _held_by_python(device: torch.device, managed: set[int]) -> list[tuple[int, str]]:
    """Return bytes and a description of each storage on the device, without parameters, their gradients and the like."""
    tensors, known = list[torch.Tensor](), set(managed)
    # By type and not by isinstance, which asks objects that pretend to be of another class.
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            tensors.append(thing)
        elif issubclass(type(thing), torch.nn.Module):
            known.update(map(_address, (*thing.parameters(recurse=False), *thing.buffers(recurse=False))))
        elif issubclass(type(thing), torch.optim.Optimizer):
            known.update(_address(value) for state in thing.state.values() for value in _tensors(state))
    tensors = [tensor for tensor in tensors if is_plain(tensor) and tensor.device.type == device.type and not tensor.is_meta]
    known.update(_address(tensor.grad) for tensor in tensors if tensor.is_leaf and tensor.grad is not None)
    known.update(_address(tensor) for tensor in tensors if isinstance(tensor, torch.nn.Parameter))
    found: dict[int, tuple[int, str]] = {}
    for tensor in tensors:
        address = _address(tensor)
        if address not in known and (address not in found or tensor.grad_fn is not None):
            made = f", made by {tensor.grad_fn.name()}" if tensor.grad_fn is not None else ""
            found[address] = tensor.untyped_storage().nbytes(), f"{str(tensor.dtype)[6:]} {list(tensor.shape)}{made}"
    return list(found.values())


def _tensors(state: Any) -> list[torch.Tensor]:
    return [value for value in state.values() if isinstance(value, torch.Tensor) and is_plain(value)]


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if is_plain(tensor) else 0
