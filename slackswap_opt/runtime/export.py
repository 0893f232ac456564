"""The recompute half of a plan as policies for PyTorch's selective checkpointing, for those who cannot take this runtime.

What is lost on the way: swapped tensors are saved on the device instead; a region is recomputed as a whole when the first of
its tensors is wanted, not tensor by tensor just in time, with operations on the way whose results nobody wants; nothing is
recomputed across the borders of regions; what draws random numbers or works in place is always recomputed, since it cannot be
kept apart.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from slackswap_opt.files import InputError
from slackswap_opt.runtime.profile import Profile
from slackswap_opt.schedule import Action, Schedule
from slackswap_opt.simulate import simulate
from slackswap_opt.units import format_size

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

_IGNORED = frozenset(("aten.detach.default",))
"""Operators that selective checkpointing does not count."""


@dataclass(frozen=True, slots=True)
class Region:
    """A module that is recomputed in part.

    Attributes
    ----------
    module
        Its dotted name.
    operations
        The operators that its forward pass runs, in order, and whether what each makes is saved.
    """

    module: str
    operations: tuple[tuple[str, bool], ...]

    @property
    def context_fn(self) -> "partial[Contexts]":
        """What `torch.utils.checkpoint.checkpoint` calls for its two contexts."""
        # A partial of a plain function, since the compiler takes no method here.
        return partial(contexts, self.operations)


def contexts(operations: tuple[tuple[str, bool], ...]) -> Contexts:
    """Return the contexts of a region's forward pass and of its recomputation.

    Calls are counted by operator: a compiler, or another version of PyTorch, may see other views between them.
    """
    calls: dict[str, list[bool]] = {}
    for name, saved in operations:
        calls.setdefault(name, []).append(saved)
    # Older versions of PyTorch ask again while they recompute.
    remaining = {again: {name: iter(saved) for name, saved in calls.items()} for again in (False, True)}

    def policy(context: Any, function: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        saved = next(remaining[context.is_recompute].get(str(function), iter(())), False)
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.MUST_RECOMPUTE

    forward, recompute = create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
    return forward, recompute


@dataclass(frozen=True, slots=True)
class Policies:
    """A plan for a model, module by module.

    Attributes
    ----------
    regions
        One for each layer that runs once.
    lost
        What of the schedule this leaves out, in words.
    """

    regions: tuple[Region, ...]
    lost: tuple[str, ...]

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Return a context in which the layers of `model` are checkpointed as planned.

        Raises
        ------
        InputError
            If the model has no such layer.
        """
        changed = [(self._module(model, region), region) for region in self.regions]
        for module, region in changed:
            module.forward = partial(checkpoint, module.forward, use_reentrant=False, context_fn=region.context_fn)
        try:
            yield
        finally:
            for module, _ in changed:
                del module.forward

    @staticmethod
    def _module(model: nn.Module, region: Region) -> nn.Module:
        try:
            return model.get_submodule(region.module)
        except AttributeError:
            raise InputError(f"the policies are for a model with a module '{region.module}', which this one lacks") from None


def checkpoint_policies(profile: Profile, schedule: Schedule) -> Policies:
    """Return what a schedule recomputes as policies, one for each layer of the model that the profile is of.

    Parameters
    ----------
    profile
        The step.
    schedule
        For its instance.

    Raises
    ------
    ScheduleError
        If the schedule is for another instance or breaks a rule.
    """
    instance = profile.instance
    timeline = simulate(instance, schedule)
    ran: set[int] = set()
    again: set[int] = set()
    for action, t in schedule.instructions:
        if action is Action.RUN:
            (again if t in ran else ran).add(t)
    layers: dict[str, list[int]] = {}
    for t, (operation, facts) in enumerate(zip(instance.operations, profile.operations, strict=True)):
        if operation.phase == "forward" and operation.block is not None and facts.function not in _IGNORED:
            layers.setdefault(operation.block, []).append(t)
    regions = (
        Region(layer, tuple((profile.operations[t].function, _saves(profile, t, again)) for t in operations))
        for layer, operations in layers.items()
        if again.intersection(operations) and "(call " not in layer
    )
    swapped = f"{format_size(timeline.offloaded)} that the schedule swaps are saved on the device" if timeline.offloaded else ""
    outside = again.difference(*layers.values())
    beyond = f"{len(outside)} operations outside of layers are not recomputed" if outside else ""
    several = [layer for layer in layers if "(call " in layer]
    called = f"layers that run more than once are left alone: {', '.join(several)}" if several else ""
    return Policies(tuple(regions), tuple(filter(None, (swapped, beyond, called))))


def _saves(profile: Profile, t: int, again: set[int]) -> bool:
    """Return whether selective checkpointing should save what operation `t` makes: backward wants it, and it can be kept."""
    writes = profile.instance.operations[t].writes
    plain = not profile.operations[t].random and all(len(profile.instance.writers[i]) == 1 for i in writes)
    wanted = any(profile.tensors[i].unpacks for i in writes)
    return bool(writes) and plain and wanted and t not in again
