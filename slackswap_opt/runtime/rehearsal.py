"""A backward pass ahead of the real one, which leaves no trace: what the gradients of leaves will be."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from slackswap_opt.runtime.clock import BackwardCall
from slackswap_opt.runtime.guard import Restore, same_random_numbers
from slackswap_opt.runtime.signatures import signature
from slackswap_opt.runtime.storage import storages_of, tensors_in


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tells a guard what operations are about to write that was there before."""

    def __init__(self, guard: Restore) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._guard = guard
        self._made: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in signature(function).changes(args, kwargs or {}):
            for storage in storages_of(tensor):
                if storage not in self._made:
                    self._guard.before_write(storage)
        before = {s._cdata for tensor in tensors_in((args, kwargs)) for s in storages_of(tensor)}
        result = function(*args, **(kwargs or {}))
        self._made.update(s for tensor in tensors_in(result) for s in storages_of(tensor) if s._cdata not in before)
        return result


@contextmanager
def noticing_hooks(notice: Callable[[], None]) -> Iterator[None]:
    """Return a context in which `notice` is called where a hook is put on a tensor; a graph does not show which it has."""
    register = torch.Tensor.register_hook

    def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
        notice()
        return register(tensor, hook)  # type: ignore[no-untyped-call]

    torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.register_hook = register  # type: ignore[method-assign]


def leaves_of(call: BackwardCall) -> list[Any]:
    """Return the nodes that add to gradients in a backward pass, or none if it cannot be rehearsed.

    It can if its results only go to the gradients of all leaves, and if no node of it is Python code, which may do anything;
    hooks on leaves are such code too.
    """
    roots, _, _, create_graph, inputs = call.args[:5]
    if create_graph or inputs or not call.kwargs.get("accumulate_grad"):
        return []
    nodes = list(_nodes(root.grad_fn for root in roots if isinstance(root, torch.Tensor)))
    if any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in nodes):
        return []
    leaves = [node for node in nodes if node.name() == "torch::autograd::AccumulateGrad"]
    return [] if any(node.variable._backward_hooks for node in leaves) else leaves


def rehearse(call: BackwardCall, leaves: list[Any]) -> list[torch.Tensor | None]:
    """Run a backward pass for what it adds to the gradients of leaves, on the host, and put back what it changes.

    What it may write, such as the buffers of modules that a checkpoint runs again, and random number generators are put back.
    """
    roots, gradients, *_ = call.args
    guard = Restore()
    try:
        with same_random_numbers(), _Noting(guard):
            variables = tuple(node.variable for node in leaves)
            found = call.engine(roots, gradients, True, False, variables, allow_unreachable=True, accumulate_grad=False)
            return [None if gradient is None else gradient.detach().to("cpu", copy=True) for gradient in found]
    finally:
        guard.put_back()


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return whether two tensors on the host have the same elements, bit by bit."""
    if one.layout is not two.layout or one.dtype is not two.dtype or one.shape != two.shape:
        return False
    if one.layout is torch.sparse_coo:
        return same_bits(one._indices(), two._indices()) and same_bits(one._values(), two._values())
    return torch.equal(_bytes(one), _bytes(two))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _nodes(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield the nodes of a graph, each once."""
    waiting = [root for root in roots if root is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
