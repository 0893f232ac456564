"""What an accelerator does otherwise than a CPU: the one table of differences that a profile without a device corrects.

FakeTensor on the device ``cpu`` follows the choices that PyTorch makes for a CPU. On CUDA other kernels run for the same
module:

=================== ================================= ====================================== ===========================
module              CPU                               CUDA                                   corrected by
=================== ================================= ====================================== ===========================
dropout             four operations, a mask of the    ``native_dropout``, a mask of one byte `_dropout`
                    input's type                      an element
fused attention     products and softmax one by one   flash attention (16 bits, no mask),    `_attention`
                    where there is dropout or a mask  else memory-efficient attention
RMS norm            eight operations in 32 bits       ``_fused_rms_norm``, which saves its   `_rms_norm`
                                                      input and one number a row
statistics of norms the type of the input             32 bits                                `statistics_in_32_bits`
=================== ================================= ====================================== ===========================

Flash attention in backward sums the query's gradient in 32 bits: `workspace`. Not corrected: workspaces of cuBLAS and cuDNN,
and what autocast casts, which differs by device in a few operators.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from slackswap_opt.runtime.signatures import NAMESPACE, Signature

LARGEST_HEAD = 256
"""The widest attention head that flash attention takes."""

_STATISTICS = {("native_layer_norm", 1), ("native_layer_norm", 2), ("native_batch_norm", 1), ("native_batch_norm", 2)}


@contextmanager
def accelerator_kernels() -> Iterator[None]:
    """Return a context in which operators on the CPU are built from the kernels of an accelerator. For tensors without data."""
    overrides: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    overrides.impl("dropout", _dropout, "AutogradCPU")
    overrides.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
    overrides.impl("rms_norm", _rms_norm, "AutogradCPU")
    try:
        yield
    finally:
        overrides._destroy()


def statistics_in_32_bits(function: str, output: int, dtype: str) -> bool:
    """Return whether a result is of 32 bits on an accelerator though the CPU has it in 16."""
    return (function, output) in _STATISTICS and dtype in ("bfloat16", "float16")


def workspace(call: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the bytes that a kernel of an accelerator holds while it runs.

    FlashAttention-2 in backward keeps the query's gradient, and one number for each of its rows, in 32 bits: rows rounded
    up to 128, widths to 32.
    """
    if call.short not in ("_scaled_dot_product_flash_attention_backward", "_flash_attention_backward"):
        return 0
    batch, heads, rows, width = call.argument("query", args, kwargs).shape
    rows, width = -(-rows // 128) * 128, -(-width // 32) * 32
    return int(4 * batch * heads * rows * (width + 1))


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    if not train or not 0 < p < 1 or not x.numel():
        return x if not train or p == 0 or not x.numel() else x * 0
    dropped: Tensor = torch.ops.aten.native_dropout(x, p, True)[0]
    return dropped


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    # Grouped queries run as they are in flash attention; elsewhere PyTorch repeats keys and values first.
    half = query.dtype in (torch.bfloat16, torch.float16)
    if half and mask is None and query.shape[-1] <= LARGEST_HEAD:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        return flash(query, key, value, dropout, is_causal, scale=scale)[0]  # type: ignore[no-any-return]
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    if mask is not None:
        mask = mask.expand(*query.shape[:-1], key.shape[-2])
    saves = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, mask, saves, dropout, is_causal, scale=scale)[0]  # type: ignore[no-any-return]


def _rms_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    result: Tensor = torch.ops.slackswap._fused_rms_norm(x, list(normalized_shape), weight, eps)[0]
    return result


def _fused_rms_norm(x: Tensor, normalized_shape: list[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    kept = x.dim() - len(normalized_shape)
    deviation = x.new_empty([*x.shape[:kept], *(1 for _ in normalized_shape)], dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.contiguous_format), deviation


def _fused_rms_norm_backward(
    gradient: Tensor, x: Tensor, normalized_shape: list[int], deviation: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    weight_gradient = x.new_empty([0]) if weight is None else torch.empty_like(weight)
    return torch.empty_like(x, memory_format=torch.contiguous_format), weight_gradient


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, ctx.shape, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Any) -> tuple[Any, ...]:
    x, weight, deviation = ctx.saved_tensors
    towards_x, towards_weight = torch.ops.slackswap._fused_rms_norm_backward(gradient, x, ctx.shape, deviation, weight)
    return towards_x, None, None if weight is None else towards_weight, None


_library: Any = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
_library.define("_fused_rms_norm(Tensor x, SymInt[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)")
_library.define(
    "_fused_rms_norm_backward(Tensor gradient, Tensor x, SymInt[] normalized_shape, Tensor deviation, Tensor? weight) "
    "-> (Tensor, Tensor)"
)
torch.library.register_fake(f"{NAMESPACE}::_fused_rms_norm", _fused_rms_norm, lib=_library)
torch.library.register_fake(f"{NAMESPACE}::_fused_rms_norm_backward", _fused_rms_norm_backward, lib=_library)
torch.library.register_autograd(f"{NAMESPACE}::_fused_rms_norm", _differentiate, setup_context=_save, lib=_library)
