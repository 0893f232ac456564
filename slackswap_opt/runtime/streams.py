"""Lanes of a CUDA device: two streams for copies beside whichever stream computes.

Memory is only ever allocated and freed on the stream that computes, so that the caching allocator needs to know of no other:
there is no `record_stream`, whose blocks come back at moments that nobody chooses.
"""

import torch

from slackswap_opt.runtime.transfers import Lane


class Streams:
    """Queues copies on streams.

    Parameters
    ----------
    device
        A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copying = {lane: torch.cuda.Stream(device) for lane in (Lane.OUT, Lane.BACK)}  # type: ignore[no-untyped-call]

    def mark(self, lane: Lane) -> torch.cuda.Event:
        """Return an event that has happened once everything queued on `lane` so far is done."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream(lane))
        return event

    def wait(self, lane: Lane, event: torch.cuda.Event) -> None:
        """Let nothing queued on `lane` from now on begin before `event` has happened."""
        self._stream(lane).wait_event(event)

    def copy(self, lane: Lane, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of bytes between the device and pinned memory."""
        with torch.cuda.stream(self._copying[lane]):
            destination.copy_(source, non_blocking=True)

    def allocate(self, size: int, device: torch.device) -> torch.UntypedStorage:
        """Return memory from the pool of the stream that computes."""
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    def touch(self, storage: torch.UntypedStorage) -> None:
        """Note nothing: streams keep their own order."""

    def finish(self, event: torch.cuda.Event) -> None:
        """Let the host wait for `event`."""
        event.synchronize()

    def stamp(self, lane: Lane) -> torch.cuda.Event:
        """Return an event that has happened once everything queued on `lane` so far is done."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream(lane))
        return event

    def between(self, first: torch.cuda.Event, last: torch.cuda.Event) -> int:
        """Return the nanoseconds between two events; waits for both."""
        last.synchronize()
        milliseconds: float = first.elapsed_time(last)
        return round(milliseconds * 1_000_000)

    def _stream(self, lane: Lane) -> torch.cuda.Stream:
        # Asked for at each use: autograd computes on the stream of the forward operation, and users change theirs.
        return torch.cuda.current_stream(self._device) if lane is Lane.COMPUTE else self._copying[lane]
