"""What a tensor's bytes are: storages known by the operation that made them, and the geometry of the tensors on them.

PyTorch reuses addresses and Python reuses ids, so a storage is found by its address and then by being the very object that a
weak reference still reaches. Nothing here keeps a storage alive.
"""

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

OUTSIDE = -1
"""The place of a storage's maker where no operation of the step made it: parameters, buffers, the batch, gradients before."""


class Record:
    """One storage: who made it, how large it is, and whether it is alive. It may die and be filled again.

    Attributes
    ----------
    maker, output
        The operation's index on the clock, or `OUTSIDE`, and which of its outputs this was.
    size
        Bytes.
    device
        Where it lies: that of its tensors, as the storage of a tensor without data does not know it.
    """

    __slots__ = ("device", "maker", "output", "reference", "size")

    def __init__(self, maker: int, output: int, device: torch.device) -> None:
        self.maker, self.output, self.device = maker, output, device
        self.size = 0
        self.reference: weakref.ref[torch.UntypedStorage] | None = None

    @property
    def storage(self) -> torch.UntypedStorage | None:
        """The storage while it is alive, else None."""
        return self.reference() if self.reference is not None else None


R = TypeVar("R", bound=Record)


class Storages(Generic[R]):
    """The records of the storages that are alive.

    Parameters
    ----------
    on_death
        Called with the record when its storage dies.
    """

    def __init__(self, on_death: Callable[[R], None]) -> None:
        self._on_death = on_death
        self._by_address: dict[int, R] = {}

    def find(self, storage: torch.UntypedStorage) -> R | None:
        """Return the record of a storage, or None if it is not known."""
        record = self._by_address.get(storage._cdata)
        return record if record is not None and record.storage is storage else None

    def attach(self, record: R, storage: torch.UntypedStorage) -> None:
        """Let `record` stand for `storage` until it dies."""
        address = storage._cdata

        def died(reference: weakref.ref[torch.UntypedStorage]) -> None:
            if record.reference is reference:
                record.reference = None
                if self._by_address.get(address) is record:
                    del self._by_address[address]
                self._on_death(record)

        record.reference = weakref.ref(storage, died)
        record.size = storage.nbytes()
        self._by_address[address] = record


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a tensor is besides its storage.

    Attributes
    ----------
    shape, stride, offset
        In elements.
    dtype
        Of the elements.
    device
        Where it lies.
    conjugate, negative
        Whether the elements are to be read conjugated or negated.
    """

    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    conjugate: bool
    negative: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Geometry":
        """Return the geometry of a strided tensor."""
        return cls(
            tensor.shape,
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.dtype,
            tensor.device,
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return a tensor of this geometry on `storage`."""
        tensor = torch.empty(0, dtype=self.dtype, device=self.device)
        tensor.set_(storage, self.offset, self.shape, self.stride)
        if self.conjugate:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if self.negative else tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one storage and a geometry: strided, and of no type that carries more."""
    return type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_mkldnn and not tensor.is_quantized


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """Return the storages that hold a tensor's data: several where it is sparse or wraps others, none where it is opaque."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return [storage for name in names for storage in storages_of(getattr(tensor, name))]
    if tensor.layout is torch.strided:
        return [] if tensor.is_mkldnn else [tensor.untyped_storage()]
    return [storage for name in _PARTS.get(tensor.layout, ()) for storage in storages_of(getattr(tensor, name)())]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in an operation's arguments or results, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, FakeTensor))
