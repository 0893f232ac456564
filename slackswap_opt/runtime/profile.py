"""What is known of a training step: an instance to be planned, and facts beside it."""

from dataclasses import dataclass

import torch

from slackswap_opt.instance import Instance, Link
from slackswap_opt.runtime.lifetimes import Lifetimes, OperationFacts, TensorFacts
from slackswap_opt.runtime.rows import MemoryRow, memory_rows
from slackswap_opt.runtime.trace import Trace


@dataclass(frozen=True, slots=True)
class Profile:
    """What one training step does, operation by operation.

    Attributes
    ----------
    instance
        The step, to be planned. Operation `t` is the operation `t` of the clock; everything that the step allocates on the
        device is a tensor of it.
    tensors, operations
        What is known of each beyond the instance, at the same positions.
    device
        Where it ran, such as ``"cpu"`` or ``"cuda:0"``.
    steps
        How many steps were run until two were equal.
    restored
        What the steps had changed and was put back, in words.
    left
        How many storages that the last step made outlive it without being a leaf's gradient, and their bytes.
    asked
        Each time that autograd asks for a saved tensor, in order: the index of the next operation, and the tensor of the
        instance that it is on, or -1.
    nested
        Whether a backward pass saves tensors, as it does where it can be differentiated itself.
    """

    instance: Instance
    tensors: tuple[TensorFacts, ...]
    operations: tuple[OperationFacts, ...]
    device: str
    steps: int
    restored: tuple[str, ...]
    left: tuple[int, int]
    asked: tuple[tuple[int, int], ...]
    nested: bool

    def memory_rows(self) -> tuple[MemoryRow, ...]:
        """Return where the memory goes: tensors by module and kind, those that weigh most at the peak first."""
        return memory_rows(self.instance, self.tensors, self.operations)


def profile_of(trace: Trace, name: str, link: Link, *, steps: int, restored: tuple[str, ...] = (), total: int = 0) -> Profile:
    """Return the profile of a traced step, its durations scaled to add up to `total` nanoseconds unless that is 0."""
    device = device_of_step(trace)
    lifetimes = Lifetimes(trace, device)
    if total:
        lifetimes.rescale(total)
    return Profile(
        lifetimes.instance(name, link),
        lifetimes.tensor_facts(),
        lifetimes.operation_facts(),
        str(device),
        steps,
        restored,
        trace.left,
        tuple((clock, lifetimes.numbers.get(number, -1)) for clock, number in trace.asked),
        trace.nested,
    )


def device_of_step(trace: Trace) -> torch.device:
    """Return the device that the step is on: the accelerator with most of its bytes, else the CPU."""
    sizes: dict[torch.device, int] = {}
    for storage in trace.storages:
        sizes[storage.device] = sizes.get(storage.device, 0) + storage.size
    accelerators = [device for device in sizes if device.type != "cpu"]
    return max(accelerators, key=lambda device: sizes[device], default=torch.device("cpu"))
