"""A meter of its own for steps of which everything that autograd saves is swapped out at once."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from tests.runtime.meters import Living, Reading, without_collector


class _Swapped(Living):  # type: ignore[no-untyped-call]
    """Counts while everything that autograd saves of the step's own leaves at once and comes back when it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[int, tuple[weakref.ref[torch.UntypedStorage], list[Any]]] = {}
        self.outside: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self.off = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.off:
            return function(*args, **(kwargs or {}))
        result = super().__torch_dispatch__(function, types, args, kwargs)
        for tensor in _pytree.tree_leaves(result):
            if type(tensor) is torch.Tensor and not tensor.is_sparse and tensor.untyped_storage() not in self.outside:
                self.adopt(tensor.untyped_storage(), [None])
        return result

    def look(self, values: Any, *, counts: bool) -> None:
        if not counts:
            known = self.seen
            for tensor in _pytree.tree_leaves(values):
                if isinstance(tensor, torch.Tensor) and not tensor.is_sparse and tensor.untyped_storage() not in known:
                    self.outside.add(tensor.untyped_storage())
        super().look(values, counts=counts)

    def adopt(self, storage: torch.UntypedStorage, place: list[Any]) -> None:
        entry = self.own.get(storage._cdata)
        if entry is None or entry[0]() is not storage:
            self.own[storage._cdata] = weakref.ref(storage), place
            place[0] = weakref.ref(storage)

    def pack(self, tensor: torch.Tensor) -> Any:
        entry = None if tensor.is_sparse else self.own.get(tensor.untyped_storage()._cdata)
        if type(tensor) is not torch.Tensor or entry is None or entry[0]() is not tensor.untyped_storage():
            return tensor
        self.off = True
        bits = tensor.is_conj(), tensor.is_neg()
        whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).clone()
        self.off = False
        return entry[1], whole, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride(), bits

    def unpack(self, saved: Any) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        place, whole, dtype, offset, shape, stride, bits = saved
        self.off = True
        storage = place[0]()
        if storage is None:
            back = whole.clone()
            storage = back.untyped_storage()
            self.look(back, counts=True)
            self.adopt(storage, place)
        tensor = torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
        tensor = torch._conj(tensor) if bits[0] else tensor
        tensor = torch._neg_view(tensor) if bits[1] else tensor
        self.off = False
        return tensor


def swapped(step: Callable[[], object]) -> list[Reading]:
    """Return the like of `living` for a step of which everything that autograd saves is swapped out at once.

    Storages count again from when autograd asks for them until they die. Copies on the host do not.
    """
    meter = _Swapped()
    with without_collector(), meter, torch.autograd.graph.saved_tensors_hooks(meter.pack, meter.unpack):
        step()
    return meter.readings
