"""What a step may use of a whole device: its memory less what is there already, and less what the allocator rounds up."""

from typing import NamedTuple

import torch

from slackswap_opt.files import InputError
from slackswap_opt.units import format_size


class Allowance(NamedTuple):
    """Bytes that the step may use, and how they came to be, in words."""

    size: int
    words: str


class Usage(NamedTuple):
    """Bytes of a device: those allocated by this process, those used by others and by the driver, and the allocator's rounding.

    The rounding is what was allocated at the highest moment so far beyond what was asked for.
    """

    allocated: int
    elsewhere: int
    rounding: int


def usage(device: torch.device) -> Usage:
    """Return what is used of a CUDA device now."""
    free, total = torch.cuda.mem_get_info(device)
    stats = torch.cuda.memory_stats(device)
    elsewhere = total - free - stats["reserved_bytes.all.current"]
    rounding = stats["allocated_bytes.all.peak"] - stats["requested_bytes.all.peak"]
    return Usage(stats["allocated_bytes.all.current"], max(0, elsewhere), max(0, rounding))


def allowance(memory: int, used: Usage) -> Allowance:
    """Return what is left of `memory` bytes of a device for a step.

    Raises
    ------
    InputError
        If nothing is.
    """
    size = memory - sum(used)
    words = (
        f"{format_size(memory)} of the device, less {format_size(used.allocated)} allocated before the step, "
        f"{format_size(used.elsewhere)} of others and the driver, and {format_size(used.rounding)} that the allocator rounds "
        f"up: {format_size(max(size, 0))} for the step"
    )
    if size <= 0:
        raise InputError(f"nothing is left for the step: {words}")
    return Allowance(size, words)
