"""A step that checks itself: against the same step with all that autograd saves swapped out, bit by bit."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from slackswap_opt.runtime.choose import Choosing
from slackswap_opt.runtime.clock import BackwardCall
from slackswap_opt.runtime.hooks import Handle
from slackswap_opt.runtime.program import Duty
from slackswap_opt.runtime.rehearsal import leaves_of, noticing_hooks, rehearse, same_bits
from slackswap_opt.runtime.saved import Kept, kept, unkept
from slackswap_opt.runtime.tape import Activation
from slackswap_opt.runtime.transfers import all_bytes

log = logging.getLogger(__name__)


class VerificationError(RuntimeError):
    """A saved tensor or a gradient with other bits than in the all-swapped step: the message names it."""


class Verifying(Choosing):  # type: ignore[no-untyped-call]
    """A step under a program, beside the same step with everything swapped.

    Each storage is copied to the host when a tensor on it is saved, and again after each later write. Before a backward pass
    begins under the program, it is run with the copies in the place of everything that was saved, and leaves nothing behind:
    gradients go to the host, and what it changes is put back. The real pass must then ask for the same bytes, and add the same
    bits to every gradient.

    Gradients are compared in passes of `backward` that go to all leaves, cannot be differentiated and run no Python code of
    their own, such as custom functions, hooks on tensors and modules and reentrant checkpoints, which must run only once. In
    other passes only what was saved is compared. That covers what the runtime brings back, for a gradient is a function of
    what was saved; it does not cover what a faulty copy might write elsewhere.

    The copies take as much host memory as there is to save, and a pass ahead of the real one holds on the device what is there
    where forward ends, all gradients, and one saved tensor at a time.

    Attributes
    ----------
    compared, gradients
        How many saved tensors and gradients were compared.
    unsteady
        How many gradients were not, since two passes ahead differed from each other, as kernels that add in any order do.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.compared = self.gradients = self.unsteady = 0
        self._rehearsing = self._hooked = False
        self._noticing = ExitStack()
        self._copies: dict[Activation, tuple[int, torch.Tensor]] = {}

    def __enter__(self) -> "Verifying":
        self._noticing.enter_context(noticing_hooks(self._notice))
        return super().__enter__()  # type: ignore[no-untyped-call,no-any-return]

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._noticing.close()

    def _notice(self) -> None:
        self._hooked = True

    def pack(self, tensor: torch.Tensor) -> Any:
        """Return what stands for a tensor that autograd saves, whose storage is copied."""
        if self._rehearsing:
            return kept(tensor)
        saved = super().pack(tensor)
        if isinstance(saved, Handle) and saved.record not in self._copies:
            self._copy(saved.record)
        return saved

    def unpack(self, saved: Handle | Kept) -> torch.Tensor:
        """Return the saved tensor, if it is what it was."""
        if self._rehearsing:
            return self._copied(saved) if isinstance(saved, Handle) else unkept(saved)
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

    @contextmanager
    def backward(self, call: BackwardCall) -> Iterator[None]:
        """Return a context for a backward pass, which is run ahead first."""
        leaves = leaves_of(call) if self.on and not self._hooked else []
        expected = self._ahead(call, leaves) if leaves else []
        checks = [node.register_prehook(self._check(*pair)) for node, *pair in zip(leaves, leaves, expected, strict=True)]
        try:
            yield
        finally:
            for check in checks:
                check.remove()
        log.info("%d saved tensors and %d gradients are those of the all-swapped step", self.compared, self.gradients)

    def close(self) -> None:
        """End the step."""
        super().close()
        self._copies.clear()

    def _ahead(self, call: BackwardCall, leaves: list[Any]) -> list[torch.Tensor | None]:
        """Return what the pass will add to each gradient, or None for one that differs from pass to pass."""
        self._rehearsing = True
        try:
            with self.paused():
                first = rehearse(call, leaves)
                # Some kernels of accelerators add in any order, none of the CPU's does.
                if self.program.device.type == "cpu":
                    return first
                second = rehearse(call, leaves)
                pairs = zip(first, second, strict=True)
                steady = [one is None or (two is not None and same_bits(one, two)) for one, two in pairs]
        finally:
            self._rehearsing = False
        self.unsteady += steady.count(False)
        return [one if same else None for one, same in zip(first, steady, strict=True)]

    def _check(self, node: Any, expected: torch.Tensor | None) -> Callable[[tuple[torch.Tensor, ...]], None]:
        """Return a hook that compares what is about to be added to a gradient."""

        def check(gradients: tuple[torch.Tensor, ...]) -> None:
            if expected is not None:
                with self.paused():
                    if not same_bits(gradients[0].detach().cpu(), expected):
                        raise VerificationError(
                            f"the gradient of a leaf of shape {list(node.variable.shape)} has other bits than in the "
                            "all-swapped step"
                        )
                self.gradients += 1

        return check

    def _copied(self, saved: Handle) -> torch.Tensor:
        """Return a saved tensor from its copy."""
        saved.check()
        _, copy = self._copies[saved.record]
        return saved.on(copy.to(saved.geometry.device, copy=True).untyped_storage())

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
