"""How fast memory is copied between host and device, each way alone and both at once."""

from dataclasses import dataclass

import torch

from slackswap_opt.files import InputError
from slackswap_opt.instance import Link

SIZE = 256 * 2**20
"""Bytes of one measured copy."""

REPEATS = 5
"""How many copies are made of each kind; the median counts."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What the link of a device was measured to carry.

    Attributes
    ----------
    offload, prefetch
        Bytes per second to the host and back, one copy at a time.
    offload_together, prefetch_together
        The same while copies run both ways.
    latency
        Nanoseconds of a copy of one byte.
    """

    offload: int
    prefetch: int
    offload_together: int
    prefetch_together: int
    latency: int

    def link(self) -> Link:
        """Return the link that plans should count on.

        Both ways at once count as a duplex link if together they carry at least a third more than one way alone. Rates are then
        those while both run, as plans overlap copies; else those of one copy at a time.
        """
        together = self.offload_together + self.prefetch_together
        if 3 * together >= 4 * max(self.offload, self.prefetch):
            return Link(self.offload_together, self.prefetch_together, self.latency, True)
        return Link(self.offload, self.prefetch, self.latency, False)


def measure_link(device: torch.device | str = "cuda") -> LinkRates:
    """Return what the link of a device carries, measured with pinned memory and two streams.

    Raises
    ------
    InputError
        If the device has no link of its own: only CUDA devices have.
    """
    place = torch.device(device)
    if place.type != "cuda" or not torch.cuda.is_available():
        raise InputError(f"a link can be measured on a CUDA device only, got '{place}'")
    on_device = torch.empty(SIZE, dtype=torch.uint8, device=place), torch.empty(SIZE, dtype=torch.uint8, device=place)
    on_host = tuple(torch.empty(SIZE, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    out, back = torch.cuda.Stream(place), torch.cuda.Stream(place)  # type: ignore[no-untyped-call]

    def timed(copies: list[tuple[torch.Tensor, torch.Tensor, torch.cuda.Stream]]) -> list[int]:
        torch.cuda.synchronize(place)
        events = []
        for target, source, stream in copies:
            with torch.cuda.stream(stream):
                pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
                pair[0].record(stream)
                target.copy_(source, non_blocking=True)
                pair[1].record(stream)
                events.append(pair)
        torch.cuda.synchronize(place)
        return [round(before.elapsed_time(after) * 1_000_000) for before, after in events]

    def medians(copies: list[tuple[torch.Tensor, torch.Tensor, torch.cuda.Stream]]) -> list[int]:
        timed(copies)
        runs = [timed(copies) for _ in range(REPEATS)]
        return [max(1, sorted(column)[REPEATS // 2]) for column in zip(*runs, strict=True)]

    away, home = (on_host[0], on_device[0], out), (on_device[1], on_host[1], back)
    (offload,), (prefetch,) = medians([away]), medians([home])
    offload_together, prefetch_together = medians([away, home])
    (latency,) = medians([(on_host[0][:1], on_device[0][:1], out)])
    rates = [SIZE * 1_000_000_000 // nanoseconds for nanoseconds in (offload, prefetch, offload_together, prefetch_together)]
    return LinkRates(rates[0], rates[1], rates[2], rates[3], latency)
