"""Durations of operations that do not run: the roofline of a device over the shapes that FakeTensor gives."""

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.utils.flop_counter import flop_registry

from slackswap_opt.files import InputError
from slackswap_opt.hardware import Hardware, Precision, Work
from slackswap_opt.runtime.accelerator import workspace
from slackswap_opt.runtime.signatures import ALLOCATIONS, Signature, user_line
from slackswap_opt.runtime.storage import storages_of, tensors_in

ROWS = {"embedding": 0, "index": 0, "index_select": 0, "gather": 0}
"""Operators that read of one argument, at this position, only the elements that they return."""


class Roofline:
    """Runs operations on tensors without data, and says how long they would take on a device.

    The duration is that of `Hardware.duration`, of the floating-point operations by PyTorch's own formulas (halved for causal
    attention) and of the bytes of every argument and result, each element once also where a stride is 0. Views take no time.
    """

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    def run(self, call: Signature, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int, int]:
        """Return the operation's result, its duration in nanoseconds, and the most bytes that it holds beyond those before.

        Raises
        ------
        InputError
            If the operation needs data, or cannot run without: the message names it and the line that asked.
        """
        try:
            result = function(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise InputError(
                f"{call.name} at {user_line()} asks for data, but a step without a device has shapes only; keep it out of the "
                "step, or profile on a device"
            ) from None
        except UnsupportedOperatorException:
            raise InputError(
                f"{call.name} at {user_line()} has no rule for shapes without data; give it one by "
                "torch.library.register_fake, or profile on a device"
            ) from None
        before = {storage._cdata for tensor in tensors_in((args, kwargs)) for storage in storages_of(tensor)}
        made = {s._cdata: s.nbytes() for tensor in tensors_in(result) for s in storages_of(tensor) if s._cdata not in before}
        peak = sum(made.values()) + workspace(call, args, kwargs)
        if call.short in ALLOCATIONS or not (made or call.changed or call.undeclared):
            return result, 0, peak
        return result, self._duration(call, function, args, kwargs, result), peak

    def _duration(self, call: Signature, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
        moved = sum(map(_touched, (*_read(call, args, kwargs, result), *tensors_in(result))))
        formula = flop_registry.get(getattr(function, "_overloadpacket", None))
        if formula is None:
            return self._hardware.duration("elementwise", 0, moved)
        attention = "attention" in call.short
        flops = int(formula(*args, **kwargs, out_val=result))
        if attention and "is_causal" in call.arguments and call.argument("is_causal", args, kwargs):
            flops //= 2
        work: Work = "attention" if attention else "gemm"
        return self._hardware.duration(work, flops, moved, _precision(call, args, kwargs))


def _read(call: Signature, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[torch.Tensor]:
    if call.short in ROWS:
        rest = [value for position, value in enumerate(args) if position != ROWS[call.short]]
        return [*tensors_in((rest, kwargs)), *tensors_in(result)]
    return list(tensors_in((args, kwargs)))


def _touched(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements, each once where several share a place in memory."""
    if tensor.layout is not torch.strided:
        return sum(storage.nbytes() for storage in storages_of(tensor))
    size = tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        size *= length if stride or not length else 1
    return size


def _precision(call: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Precision:
    """Return in what a product's operands are rounded: single precision follows PyTorch's switches for TF32."""
    if any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors_in((args, kwargs))):
        return "16-bit"
    switch = torch.backends.cudnn.allow_tf32 if "conv" in call.short else torch.backends.cuda.matmul.allow_tf32
    return "tf32" if switch else "fp32"
