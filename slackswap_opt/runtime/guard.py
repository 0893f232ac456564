"""Puts back what a profiled step changed outside of itself: buffers, parameters, gradients, random number generators."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from slackswap_opt.runtime.copies import flat


class Restore:
    """Notes what is about to change, and puts it back.

    Contents are kept on the host. What Python code changes in its own attributes is out of reach.
    """

    def __init__(self) -> None:
        self._contents: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def before_write(self, storage: torch.UntypedStorage) -> None:
        """Note a storage that is about to be written."""
        if storage._cdata not in self._contents:
            with torch.no_grad():
                self._contents[storage._cdata] = storage, flat(storage, storage.device).to("cpu", copy=True)

    def before_gradient(self, leaf: torch.Tensor) -> None:
        """Note a leaf whose gradient is about to change."""
        self._gradients.setdefault(id(leaf), (leaf, leaf.grad))

    def put_back(self, *, keep: bool = False) -> tuple[str, ...]:
        """Put everything back and return what that was, in words; with `keep`, remember it for another time."""
        for leaf, gradient in self._gradients.values():
            leaf.grad = gradient
        for storage, contents in self._contents.values():
            with torch.no_grad():
                flat(storage, storage.device).copy_(contents)
        words = []
        if self._gradients:
            words.append(f"the gradients of {len(self._gradients)} leaves")
        if self._contents:
            size = sum(storage.nbytes() for storage, _ in self._contents.values())
            words.append(f"{len(self._contents)} buffers, parameters or gradients that it wrote ({size} bytes)")
        if not keep:
            self._contents.clear()
            self._gradients.clear()
        return tuple(words)


class Leave:
    """Leaves everything as the step left it: for steps that are part of a training."""

    def before_write(self, storage: torch.UntypedStorage) -> None:
        """Note nothing."""

    def before_gradient(self, leaf: torch.Tensor) -> None:
        """Note nothing."""


class RestoreGradients(Leave):
    """Puts the gradients of leaves back, for steps on tensors without data, which can change nothing else."""

    def __init__(self) -> None:
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def before_gradient(self, leaf: torch.Tensor) -> None:
        """Note a leaf whose gradient is about to change."""
        self._gradients.setdefault(id(leaf), (leaf, leaf.grad))

    def put_back(self) -> None:
        """Put the gradients back."""
        for leaf, gradient in self._gradients.values():
            leaf.grad = gradient
        self._gradients.clear()


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Return a context after which the random number generators of Python, NumPy and PyTorch are where they were before."""
    states = _states()
    try:
        yield
    finally:
        _set_states(states)


def _states() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return (
        torch.get_rng_state(),
        torch.cuda.get_rng_state_all()
        if torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        else None,
        random.getstate(),
        numpy.random.get_state() if numpy is not None else None,
    )


def _set_states(states: tuple[Any, ...]) -> None:
    cpu, cuda, python, numpy = states
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(python)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)
