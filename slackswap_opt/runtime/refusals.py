"""What cannot be followed operation by operation, and why."""

import torch
from torch import nn

from slackswap_opt.files import InputError


def refuse_module(module: nn.Module) -> None:
    """Raise `InputError` for a module that cannot be followed operation by operation.

    Raises
    ------
    InputError
        If the module is compiled, or its parameters are sharded.
    """
    kinds = {kind.__name__ for kind in type(module).__mro__}
    name = type(module).__name__
    if "OptimizedModule" in kinds or module._compiled_call_impl is not None:
        raise InputError(
            f"the module '{name}' is compiled: its saved tensors are chosen by the compiler; profile it without torch.compile"
        )
    if kinds & {"FullyShardedDataParallel", "FSDPModule"}:
        raise InputError(
            f"the module '{name}' is sharded by FSDP: its parameters come and go in the step; profile it before it is wrapped"
        )


def refuse_tensor(tensor: torch.Tensor) -> None:
    """Raise `InputError` for a tensor that cannot be followed.

    Raises
    ------
    InputError
        If the tensor has no data to follow, or is one shard of several.
    """
    if type(tensor).__name__ == "DTensor":
        raise InputError("a parameter is a DTensor, sharded over devices; profile the model before it is sharded")
    if tensor.is_meta and isinstance(tensor, nn.Parameter):
        raise InputError(
            "a parameter is on the meta device, which has no data to train on; build the model under FakeTensorMode instead, "
            "or on a device"
        )
