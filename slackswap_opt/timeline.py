"""What happens under a schedule: the record that the judge gives, and plots and traces read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happens under a schedule. Times are in nanoseconds from the start of the step, sizes in bytes.

    Attributes
    ----------
    start, end
        For each instruction when it begins and ends on its lane: compute for RUN, EVICT and DROP (whose length is the wait),
        the offload or the prefetch lane for copies.
    resident
        For each instruction the bytes of tensors on the device once it is issued.
    memory
        For each instruction the bytes that count while it executes: tensors, workspace, second copies.
    peak, host_peak
        The largest of `memory`, and the most bytes of copies on the host.
    makespan, ideal
        The end of the last thing on any lane, and the sum of all durations.
    offload_stall, prefetch_stall
        Time that compute waits for copies to the host and for copies back.
    recompute_time, recomputed
        Time of operations run again, and how many are.
    offloaded, prefetched
        Bytes moved in each direction.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]
    resident: tuple[int, ...]
    memory: tuple[int, ...]
    peak: int
    host_peak: int
    makespan: int
    ideal: int
    offload_stall: int
    prefetch_stall: int
    recompute_time: int
    recomputed: int
    offloaded: int
    prefetched: int

    @property
    def retained(self) -> float:
        """The share of ideal throughput that is left: ideal / makespan."""
        return self.ideal / self.makespan if self.makespan else 1.0
