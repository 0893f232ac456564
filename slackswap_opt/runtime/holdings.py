"""The storages that the runtime holds in one step: where each is, and how it comes back, in a plan or without one."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from slackswap_opt.runtime.replay import quiet, rebuild_order, run_again, storages_in
from slackswap_opt.runtime.signatures import signature
from slackswap_opt.runtime.tape import Activation, Entry, is_needed, is_obtainable
from slackswap_opt.runtime.transfers import Slot, Transfers

Storage = torch.UntypedStorage


class Holdings:
    """What is held, moved and made again.

    Parameters
    ----------
    device
        Where the step runs.
    transfers
        Does the copies.
    on_surprise
        Called with the reason before something is brought back that no plan said to bring back.

    Attributes
    ----------
    below
        The dispatch modes under which the step runs.
    still_held
        Tensors that were freed while something unknown held them, with their bytes.
    """

    def __init__(self, device: torch.device, transfers: Transfers, on_surprise: Callable[[str], None]) -> None:
        self.device = device
        self.below: list[TorchDispatchMode] = []
        self.still_held: list[tuple[int, int]] = []
        self._transfers, self._on_surprise = transfers, on_surprise
        # All references from here are weak: what nothing can ask for any more goes, and its storage with it.
        self._by_address: dict[int, weakref.ref[Activation]] = {}
        self._inputs: dict[int, list[weakref.ref[Entry]]] = {}
        self._known: list[weakref.ref[Activation]] = []

    def find(self, storage: Storage) -> Activation | None:
        """Return what is known of a storage, or None if it is none of those held."""
        reference = self._by_address.get(storage._cdata)
        record = reference() if reference is not None else None
        return record if record is not None and record.storage is storage else None

    def addresses(self) -> set[int]:
        """Return the addresses of the storages that are known."""
        records = filter(None, (reference() for reference in self._known))
        return {record.storage._cdata for record in records if record.storage is not None}

    def _attach(self, record: Activation, storage: Storage) -> None:
        record.reference = weakref.ref(storage)
        record.size = storage.nbytes()
        self._by_address[storage._cdata] = weakref.ref(record)

    def take(self, number: int, operation: int, output: int, storage: Storage, entry: Entry | None) -> Activation:
        """Hold a storage that an operation has just made."""
        record = Activation(operation, output, self.device, number)
        self._attach(record, storage)
        record.held = storage
        record.written(entry)
        if entry is not None:
            entry.births.append((output, weakref.ref(record)))
        self._known.append(weakref.ref(record))
        return record

    def depend(self, entry: Entry) -> None:
        """Note what a recorded operation read outside of the step, which must not change before it runs again."""
        for tensor, _, _ in entry.outside:
            for storage in storages_in(tensor):
                self._inputs.setdefault(storage._cdata, []).append(weakref.ref(entry))

    def about_to_change(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Activation] | None:
        """Return what an operation is about to change of what is held, or None if it changes nothing at all.

        What can be made again only from what is about to change is brought back first.
        """
        known = signature(function)
        if not (known.changed or known.undeclared):
            return None
        changed: list[Activation] = []
        for tensor in known.changes(args, kwargs):
            for storage in storages_in(tensor):
                record = self.find(storage)
                readers = self._inputs.pop(storage._cdata, ()) if record is None else record.readers
                for entry in filter(None, (reference() for reference in readers)):
                    self._spoil(entry)
                if record is not None and record not in changed:
                    record.readers.clear()
                    changed.append(record)
        return changed

    def _spoil(self, entry: Entry) -> None:
        """Give up that `entry` can run again: what it makes is brought back while it still can."""
        for record in entry.results():
            if record.complete and record.held is None and not record.on_host and is_needed(record):
                self._on_surprise(f"operation {entry.operation} may have to run again on something that is about to change")
                record.held = self.obtain(record)
            record.complete = False

    def offload(self, record: Activation, slot: Slot) -> None:
        """Begin a copy of what is held to the host."""
        self.arrive(record)
        if record.held is not None:
            record.copy = self._transfers.offload(record.held, slot, record.state)
            record.leaves_host = False

    def evict(self, record: Activation) -> bool:
        """Free what the host has a copy of, once it is there; return False, and keep it, if it would be lost."""
        if record.copy is not None:
            self._transfers.left(record.copy)
        return self.free(record)

    def prefetch(self, record: Activation, *, last: bool) -> bool:
        """Begin a copy back; return False if the host has none. After the `last` one the host's copy is given up."""
        if record.copy is None:
            return False
        if record.storage is None:
            self._attach(record, self._transfers.prefetch(record.copy, record.size, record.device))
            record.state = record.copy.state
        record.held = record.storage
        record.leaves_host = last
        return True

    def run(self, entry: Entry) -> bool:
        """Run a recorded operation again and hold what it makes; return False if something that it reads is not as it was."""
        there = all(parent.ready is not None for parent in entry.parents)
        # What was written since is an error only once someone asks for what cannot be made any more: nobody may.
        if not there or entry.changed_argument() is not None or any(target.storage is None for target in entry.changes()):
            return False
        storages = run_again(entry, self._present, self.device)
        if any(output >= len(storages) for output, _ in entry.births):
            return False
        for output, reference in entry.births:
            record = reference()
            if record is not None and record.held is None:
                if record.storage is None:
                    self._attach(record, storages[output])
                    record.state = 1
                record.held = record.storage
        for target in entry.changes():
            target.state += 1
        return True

    def free(self, record: Activation) -> bool:
        """Let go of a storage; return False, and keep it, if it is still needed and could not be brought back."""
        self.arrive(record)
        if not record.on_host and is_needed(record) and not is_obtainable(record):
            return False
        record.held = None
        if record.storage is not None:
            self.still_held.append((record.number, record.size))
        return True

    def arrive(self, record: Activation) -> None:
        """Let compute wait for a copy of the storage that is on its way back."""
        if record.copy is not None:
            self._transfers.arrived(record.copy)
            if record.leaves_host:
                record.copy, record.leaves_host = None, False

    def obtain(self, record: Activation) -> Storage:
        """Return the storage, ready to be used, from wherever it is; if it was away, nothing holds it but the caller."""
        if record.ready is not None:
            return self._present(record)
        self._on_surprise(f"tensor {record.number} is asked for where it should be away")
        alive: list[Storage] = []
        with quiet(self.below):
            for one in rebuild_order(record):
                if one.ready is None and one.copy is not None and one.on_host:
                    alive.append(self._transfers.prefetch(one.copy, one.size, one.device))
                    self._attach(one, alive[-1])
                    self._transfers.arrived(one.copy)
                    one.state = one.writes
                elif one.ready is None:
                    self._rebuild(one, alive)
                alive.append(self._present(one))
        return alive[-1]

    def _rebuild(self, record: Activation, alive: list[Storage]) -> None:
        record.state = 0
        for entry in record.entries:
            storages = run_again(entry, self._present, self.device)
            alive += storages
            for output, reference in entry.births:
                if reference() is record:
                    self._attach(record, storages[output])
            record.state += 1

    def _present(self, record: Activation) -> Storage:
        self.arrive(record)
        storage = record.storage
        assert storage is not None, "what an operation reads is brought back before it runs again"
        return storage

    def settle(self) -> None:
        """Let compute wait for every copy under way."""
        self._transfers.settle()

    def keep_apart(self) -> None:
        """Move what the host still has for this step out of the way of the next."""
        for record in filter(None, (reference() for reference in self._known)):
            if record.copy is not None:
                self._transfers.keep_apart(record.copy)
