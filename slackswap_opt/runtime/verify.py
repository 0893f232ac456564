"""A step that checks itself: all that autograd saves also goes to the host, and what comes back is compared bit by bit."""

from typing import Any

import torch

from slackswap_opt.runtime.choose import Choosing
from slackswap_opt.runtime.hooks import Handle
from slackswap_opt.runtime.program import Duty
from slackswap_opt.runtime.saved import Kept
from slackswap_opt.runtime.tape import Activation
from slackswap_opt.runtime.transfers import all_bytes


class VerificationError(AssertionError):
    """A saved tensor that came back with other bits: the message names it."""


class Verifying(Choosing):  # type: ignore[no-untyped-call]
    """A step under a program, beside the same step with everything swapped.

    Each storage is copied when a tensor on it is saved, and again after each later write. Backward is a function of what was
    saved, so its gradients are those of the all-swapped step if every bit is. The copies take as much host memory as there is
    to save.

    Attributes
    ----------
    compared
        How many saved tensors were compared.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.compared = 0
        self._copies: dict[Activation, tuple[int, torch.Tensor]] = {}

    def pack(self, tensor: torch.Tensor) -> Any:
        """Return what stands for a tensor that autograd saves, whose storage is copied."""
        saved = super().pack(tensor)
        if isinstance(saved, Handle) and saved.record not in self._copies:
            self._copy(saved.record)
        return saved

    def unpack(self, saved: Handle | Kept) -> torch.Tensor:
        """Return the saved tensor, if it is what it was."""
        tensor = super().unpack(saved)
        if isinstance(saved, Handle) and saved.record in self._copies:
            self._paused += 1
            try:
                _, copy = self._copies[saved.record]
                if not torch.equal(all_bytes(tensor.untyped_storage()).cpu(), copy):
                    name = self.program.instance.tensors[saved.record.number].name
                    raise VerificationError(f"tensor '{name}' came back with other bits than it was saved with")
                self.compared += 1
            finally:
                self._paused -= 1
        return tensor

    def close(self) -> None:
        """End the step."""
        super().close()
        self._copies.clear()

    def _perform(self, index: int, duty: Duty, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = super()._perform(index, duty, function, args, kwargs)
        for record, (writes, _) in tuple(self._copies.items()) if duty.writes else ():
            if record.writes > writes:
                self._copy(record)
        return result

    def _copy(self, record: Activation) -> None:
        storage = record.storage
        if storage is not None:
            self._paused += 1
            try:
                with torch.no_grad():
                    self._copies[record] = record.writes, all_bytes(storage).to("cpu", copy=True)
            finally:
                self._paused -= 1
