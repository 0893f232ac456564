"""What stands in the place of a saved tensor whose storage the runtime holds."""

from collections.abc import Callable

import torch

from slackswap_opt.runtime.replay import unseen
from slackswap_opt.runtime.saved import overwritten
from slackswap_opt.runtime.storage import Geometry
from slackswap_opt.runtime.tape import Activation


class Ledger:
    """Counts the storages that saved tensors stand for.

    Attributes
    ----------
    count
        How many there are.
    on_empty
        Called when the last of them is let go, or None.
    """

    __slots__ = ("count", "on_empty")

    def __init__(self) -> None:
        self.count = 0
        self.on_empty: Callable[[], None] | None = None


class Handle:
    """Stands for a saved tensor on a storage of the runtime's.

    Attributes
    ----------
    record, geometry
        The storage, and the tensor on it.
    """

    __slots__ = ("_ledger", "_version", "_versions", "geometry", "record")

    def __init__(self, record: Activation, tensor: torch.Tensor, ledger: Ledger) -> None:
        self.record, self.geometry, self._ledger = record, Geometry.of(tensor), ledger
        self._version = tensor._version
        with unseen():
            self._versions = tensor.detach()
            # An empty tensor that shares the version counter: `data` replaces all of a tensor but that.
            self._versions.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        ledger.count += not record.handles
        record.handles += 1

    def __del__(self) -> None:
        self.record.handles -= 1
        if not self.record.handles:
            self._ledger.count -= 1
            if not self._ledger.count and self._ledger.on_empty is not None:
                self._ledger.on_empty()

    def on(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return the tensor, on the storage where its bytes are now."""
        with unseen():
            return self.geometry.on(storage)

    def check(self) -> None:
        """Raise what autograd raises if the tensor was written since it was saved."""
        if self._versions._version != self._version:
            what = f"{self.geometry.dtype} {list(self.geometry.shape)}"
            raise overwritten(what, self._versions._version, self._version)
