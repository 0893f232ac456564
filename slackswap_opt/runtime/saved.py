"""What stands for a saved tensor that stays where it is, and autograd's check that nothing was written over it.

Hooks switch that check off, so that whoever installs them has to make it.
"""

import torch

Kept = tuple[torch.Tensor, int]
"""A saved tensor that stays where it is, and its version."""


def kept(tensor: torch.Tensor) -> Kept:
    """Return what stands for a saved tensor that stays where it is."""
    # A result that its own operation saves refers to the graph, and the graph would refer to it: a detached one does not.
    return tensor if tensor.grad_fn is None else tensor.detach(), tensor._version


def unkept(saved: Kept) -> torch.Tensor:
    """Return the saved tensor, or raise what autograd raises if it was written since."""
    tensor, version = saved
    if tensor._version != version:
        raise overwritten(f"{tensor.dtype} {list(tensor.shape)}", tensor._version, version)
    return tensor


def overwritten(what: str, found: int, expected: int) -> RuntimeError:
    """Return the error for a saved tensor that was written in place."""
    return RuntimeError(
        f"one of the variables needed for gradient computation has been modified by an inplace operation: [{what}] is at "
        f"version {found}; expected version {expected} instead"
    )
