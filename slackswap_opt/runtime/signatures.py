"""What an operator says of itself, and what it does without saying: which arguments it changes, and why it cannot run again."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch

from slackswap_opt.runtime.storage import tensors_in

COLLECTIVES = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor"))
"""Namespaces of operators that talk to other processes."""

UNDECLARED = {"running_mean": "training", "running_var": "training", "dropout_state": ""}
"""Arguments that operators change though their schema does not say so, and the flag that must be true for it, if any.

`native_batch_norm`, `cudnn_batch_norm` and their kin update the running statistics in training; `_cudnn_rnn` advances the
state of its dropout.
"""

NAMESPACE = "slackswap"
"""Of the operators that stand for kernels which only exist on an accelerator."""

OWN = frozenset(("aten", "prims", "prim", NAMESPACE))
"""Namespaces of operators whose schemas and tags say what they do. Others may draw random numbers, count or write, and need
not say so."""

MODAL = frozenset(("mkldnn_rnn_layer",))
"""Operators that make other results where gradients are not computed, as is so where operations run again."""

ALLOCATIONS = frozenset(("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"))
"""Operators whose result has no contents yet."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What is known of an operator before it runs.

    Attributes
    ----------
    name
        As in ``aten.mm.default``.
    short
        The operator without namespace and overload: ``mm``.
    arguments
        The names of its arguments, in order.
    changed
        Those that its schema says it writes.
    undeclared
        Those that it writes besides, with the name of the flag that must be true for it.
    random
        Whether it draws from a random number generator.
    asks
        Whether the host reads its data, for a number or for the shape of the result.
    collective
        Whether it talks to other processes.
    own
        Whether it is one of PyTorch's own.
    """

    name: str
    short: str
    arguments: tuple[str, ...]
    changed: tuple[str, ...]
    undeclared: tuple[tuple[str, str], ...]
    random: bool
    asks: bool
    collective: bool
    own: bool

    def argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the value of an argument of a call, or None where it was left out."""
        position = self.arguments.index(name)
        return args[position] if position < len(args) else kwargs.get(name)

    def changes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
        """Yield the tensors that a call writes among its arguments, declared or not."""
        for name in self.changed:
            yield from tensors_in(self.argument(name, args, kwargs))
        for name, flag in self.undeclared:
            if not flag or self.argument(flag, args, kwargs):
                yield from tensors_in(self.argument(name, args, kwargs))


@cache
def signature(function: Any) -> Signature:
    """Return the signature of an operator."""
    schema = function._schema
    names = tuple(argument.name for argument in schema.arguments)
    changed = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    tags = function.tags
    return Signature(
        name=str(function),
        short=schema.name.split("::")[-1],
        arguments=names,
        changed=changed,
        undeclared=tuple((n, f) for n, f in UNDECLARED.items() if n in names and n not in changed and (not f or f in names)),
        random=torch.Tag.nondeterministic_seeded in tags,
        asks=torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
        collective=function.namespace in COLLECTIVES,
        own=function.namespace in OWN,
    )


def obstacle(call: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return why a call cannot run again with the same result, as far as the call alone tells, or an empty string."""
    if call.collective:
        return "it talks to other processes"
    if call.asks:
        return "the host reads its data"
    if "generator" in call.arguments and call.argument("generator", args, kwargs) is not None:
        return "it draws from a generator of the user's own"
    if not call.own:
        return "it is none of PyTorch's own operators"
    if call.short in MODAL:
        return "it makes other results where gradients are not computed"
    if any(tensor.is_inference() for tensor in tensors_in((args, kwargs))):
        return "it reads a tensor that was made in inference mode, where writes are not counted"
    return ""


def frames() -> Iterator[FrameType]:
    """Yield the Python frames above the caller, innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def inside_custom_function(codes: frozenset[CodeType] = frozenset()) -> bool:
    """Return whether the caller runs inside a custom autograd Function, forward or backward."""
    return any(frame.f_code in (codes or _CUSTOM) for frame in frames())


def user_line() -> str:
    """Return the innermost line of code that is neither PyTorch's nor ours, as ``file.py:12``, or an empty string."""
    for frame in frames():
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] != "torch" and not name.startswith("slackswap_opt."):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return ""


_CUSTOM = frozenset(
    (
        torch.autograd.Function.apply.__func__.__code__,  # type: ignore[attr-defined]
        torch.autograd.function.BackwardCFunction.apply.__code__,
    )
)
