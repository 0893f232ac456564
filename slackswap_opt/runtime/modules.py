"""Which module of the model is running: its dotted path, and the layer that it belongs to."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as hooks

from slackswap_opt.runtime.clock import backward_running
from slackswap_opt.runtime.refusals import refuse_module


class Place(NamedTuple):
    """A place in the model.

    Attributes
    ----------
    path
        The dotted name of the module, as in ``layers.3.attention``; empty outside of all.
    layer
        The name of the layer around it, up to the first number of its path, else its first part; None for the whole model and
        outside of it. From its second forward call on, the layer's name says which call it is.
    numbered
        Whether the layer's name is one of a numbered series.
    """

    path: str
    layer: str | None
    numbered: bool


NOWHERE = Place("", None, False)


class Modules:
    """Follows the calls of modules on a step.

    Attributes
    ----------
    place
        Where the innermost running module is.
    """

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._calls: dict[str, int] = {}
        self._stack: list[tuple[nn.Module, Place]] = []

    @property
    def place(self) -> Place:
        """Where the innermost running module is."""
        return self._stack[-1][1] if self._stack else NOWHERE

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Return a context in which calls of modules are followed."""
        handles = (
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._stack.clear()

    def _enter(self, module: nn.Module, _: Any) -> None:
        refuse_module(module)
        if module not in self._names:
            self._name(module)
        self._stack.append((module, self._locate(module)))

    def _leave(self, module: nn.Module, *_: Any) -> None:
        # A module that raised may have left callees on the stack.
        while self._stack and self._stack.pop()[0] is not module:
            pass

    def _name(self, root: nn.Module) -> None:
        prefix = f"{type(root).__name__}." if self._roots else ""
        self._roots.add(root)
        for name, module in root.named_modules():
            if module not in self._names:
                self._names[module] = f"{prefix}{name}" if name else type(root).__name__

    def _locate(self, module: nn.Module) -> Place:
        path = self._names[module]
        if module in self._roots:
            return Place(path, None, False)
        parts = path.split(".")
        digits = next((k for k, part in enumerate(parts) if part.isdigit()), None)
        layer = ".".join(parts[: digits + 1]) if digits is not None else parts[0]
        if layer == path and not backward_running():
            self._calls[layer] = self._calls.get(layer, 0) + 1
        count = self._calls.get(layer, 1)
        return Place(path, layer if count == 1 else f"{layer} (call {count})", digits is not None)
