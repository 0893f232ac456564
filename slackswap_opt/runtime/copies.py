"""Where saved tensors go while a traced step runs: to host memory, or nowhere if they have no data."""

from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, disable_fake_tensor_cache
from torch.utils._pytree import tree_map_only

from slackswap_opt.runtime.storage import Geometry, Record, tensors_in


class Copies(Protocol):
    """Keeps what storages hold, and makes storages that hold it again."""

    def admitted(self, arguments: Any) -> Any:
        """Return the arguments of an operation as it is to run with them."""

    def save(self, record: Record) -> None:
        """Keep what the storage holds now."""

    def __contains__(self, record: object) -> bool:
        """Return whether the contents are kept."""

    def forget(self, record: Record) -> None:
        """Keep them no longer."""

    def restored(self, record: Record) -> torch.UntypedStorage:
        """Return a new storage with the contents."""

    def view(self, geometry: Geometry, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return a tensor of a geometry on a storage."""

    def versions(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return an empty tensor that shares the version counter of `tensor`: how autograd notices a write in place."""


class OnHost:
    """Keeps copies in host memory."""

    def __init__(self) -> None:
        self._copies: dict[Any, torch.Tensor] = {}

    def admitted(self, arguments: Any) -> Any:
        """Return the arguments as they are."""
        return arguments

    def save(self, record: Record) -> None:
        """Copy what the storage holds now."""
        storage = record.storage
        if storage is not None:
            with torch.no_grad():
                self._copies[record] = flat(storage, record.device).to("cpu", copy=True)

    def __contains__(self, record: object) -> bool:
        """Return whether there is a copy."""
        return record in self._copies

    def forget(self, record: Record) -> None:
        """Drop the copy."""
        self._copies.pop(record, None)

    def restored(self, record: Record) -> torch.UntypedStorage:
        """Return a new storage on the device with the contents of the copy."""
        with torch.no_grad():
            back = torch.empty(record.size, dtype=torch.uint8, device=record.device)
            return back.copy_(self._copies[record]).untyped_storage()

    def view(self, geometry: Geometry, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return a tensor of a geometry on a storage."""
        return geometry.on(storage)

    def versions(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return an empty tensor that shares the version counter of `tensor`."""
        versions = tensor.detach()
        versions.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return versions


class WithoutData:
    """Keeps nothing, for tensors that have no data.

    Parameters
    ----------
    mode
        The FakeTensorMode that they belong to. Its cache of shapes would hold every storage that it is asked about.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._saved: set[object] = set()

    def admitted(self, arguments: Any) -> Any:
        """Return the arguments with tensors that have data replaced by ones without, the same for the same each time."""
        real = (tensor for tensor in tensors_in(arguments) if not isinstance(tensor, FakeTensor))
        if next(real, None) is None:
            return arguments
        return tree_map_only(torch.Tensor, lambda t: t if isinstance(t, FakeTensor) else self._mode.from_tensor(t), arguments)

    def save(self, record: Record) -> None:
        """Note that there was something to keep."""
        self._saved.add(record)

    def __contains__(self, record: object) -> bool:
        """Return whether there was."""
        return record in self._saved

    def forget(self, record: Record) -> None:
        """Note that it is not wanted any more."""
        self._saved.discard(record)

    def restored(self, record: Record) -> torch.UntypedStorage:
        """Return a new storage."""
        return torch.empty(record.size, dtype=torch.uint8, device=record.device).untyped_storage()

    def view(self, geometry: Geometry, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return a tensor of a geometry on a storage."""
        with disable_fake_tensor_cache(self._mode):
            return geometry.on(storage)

    def versions(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return None: what has no data cannot be spoilt."""


def flat(storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
    """Return all bytes of a storage as one tensor on it."""
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
