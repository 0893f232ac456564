"""How long operations take on the device at hand, and the bytes that an operation holds while it runs."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _autograd
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

from slackswap_opt.files import InputError
from slackswap_opt.runtime.signatures import Signature
from slackswap_opt.runtime.storage import tensors_in

REPEATS = 5
"""How often an operation runs to be timed."""

ENOUGH = 20_000_000
"""Nanoseconds of one operation's runs after which no more are made."""


class OnDevice:
    """Runs operations where their data is; times each kind, and counts what the allocator gives it meanwhile.

    A kind is an operator, its tensors' shapes, strides and types, and its other arguments; its duration is the median of
    its runs. Only what leaves no trace is run more than once: what changes its arguments, draws random numbers, talks to
    others or is none of PyTorch's own is timed as it runs.

    Parameters
    ----------
    timed
        Whether to measure durations; otherwise they are 0.
    """

    def __init__(self, *, timed: bool) -> None:
        self._timed = timed
        self._samples: dict[Any, list[int]] = {}

    def run(self, call: Signature, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int, int]:
        """Return the operation's result, its duration in nanoseconds, and the most bytes that it held beyond those before."""
        device = device_of((args, kwargs))
        if not self._timed:
            result, peak = _counted(lambda: function(*args, **kwargs), device)
            return result, 0, peak
        samples = self._samples.setdefault((call.name, _described(args), _described(kwargs)), [])
        if not samples and call.own and not (call.changed or call.undeclared or call.random or call.collective):
            _repeat(lambda: function(*args, **kwargs), device, samples)
        if samples and len(samples) >= REPEATS:
            result, peak = _counted(lambda: function(*args, **kwargs), device)
        else:
            (result, elapsed), peak = _counted(lambda: clocked(lambda: function(*args, **kwargs), device), device)
            samples.append(elapsed)
        return result, sorted(samples)[(len(samples) - 1) // 2], peak


def _repeat(run: Callable[[], Any], device: torch.device, samples: list[int]) -> None:
    """Run once to warm up, then up to `REPEATS` times; each result is dropped before the next run, so it costs no memory."""
    run()
    for _ in range(REPEATS):
        samples.append(clocked(run, device)[1])
        if sum(samples) > ENOUGH:
            break


def clocked(run: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """Return the result of `run` and the nanoseconds that it took: by events on a CUDA device, by the clock on the CPU."""
    if device.type == "cuda":
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            before.record()
            result = run()
            after.record()
            after.synchronize()
        return result, round(before.elapsed_time(after) * 1_000_000)
    start = time.perf_counter_ns()
    result = run()
    return result, time.perf_counter_ns() - start


def _counted(run: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """Return the result of `run`, and the most bytes that it held at once beyond those before, by the device's allocator."""
    if device.type == "cuda":
        before = torch.cuda.memory_stats(device)["requested_bytes.all.current"]
        torch.cuda.reset_peak_memory_stats(device)
        result = run()
        return result, int(torch.cuda.memory_stats(device)["requested_bytes.all.peak"]) - int(before)
    # The older profiler of torch.autograd is the one that reports each allocation of the CPU's allocator in order, and
    # quietly.
    try:
        _autograd._enable_profiler_legacy(_ALLOCATIONS)
    except RuntimeError:
        busy = "a profiler of PyTorch is active, or another step is being profiled"
        raise InputError(f"{busy}; profile the step outside of it") from None
    try:
        result = run()
    finally:
        events = _autograd._disable_profiler_legacy()
    held = peak = 0
    for event in (event for thread in events for event in thread if str(event.kind()) == "memory_alloc"):
        held += event.cpu_memory_usage()
        peak = max(peak, held)
    return result, peak


_ALLOCATIONS = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())


def device_of(arguments: Any) -> torch.device:
    """Return where an operation with these arguments runs: on a device if one of its tensors is there, else on the CPU."""
    devices = [tensor.device for tensor in tensors_in(arguments)]
    _, kwargs = arguments
    if isinstance(kwargs.get("device"), torch.device):
        devices.append(kwargs["device"])
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        return tuple(value.shape), value.stride() if strided else value.layout, value.dtype, value.device
    if isinstance(value, (tuple, list)):
        return tuple(map(_described, value))
    if isinstance(value, dict):
        return tuple((key, _described(item)) for key, item in value.items())
    return repr(value)
