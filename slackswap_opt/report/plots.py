"""One picture of a result: what the three lanes do, above the memory that it takes, on one axis of time.

Figures are made without pyplot, so nothing is shown, and no global state of matplotlib is touched.
"""

import io
import os
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from slackswap_opt.files import InputError, check_target, shown_path, write_bytes
from slackswap_opt.instance import Instance
from slackswap_opt.result import Result
from slackswap_opt.schedule import Action, Schedule
from slackswap_opt.timeline import Timeline
from slackswap_opt.units import format_percent, format_size, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
"""The suffixes that `plot` can write."""

# The palette of Okabe and Ito (2008), which colour-blind readers tell apart.
_COLOURS = {
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "recomputation": "#E69F00",
    "stall": "#D55E00",
    "offload": "#009E73",
    "prefetch": "#CC79A7",
}
_MARKED = ("recomputation", "stall")
_LANES = {"offload": 2, "compute": 1, "prefetch": 0}
_LANE_LABELS = ("offload\nto the host", "compute", "prefetch\nfrom the host")
_GRAIN = 4000
"""Parts of the time axis that can be told apart: what lies closer is drawn as one."""

Span = tuple[int, int]


def plot(result: Result, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Draw the lanes and the memory of a result into a PNG, SVG or PDF file.

    Raises
    ------
    InputError
        If the result has no schedule, the suffix is none of these, or the file exists and `overwrite` is false.
    ImportError
        If matplotlib is not installed.
    """
    check_plot_path(path, overwrite=overwrite)
    figure = _new_figure()
    plot_timeline(result, _panels(figure))
    picture = io.BytesIO()
    figure.savefig(picture, format=Path(path).suffix[1:].lower())
    write_bytes(path, picture.getvalue(), overwrite=overwrite)


def check_plot_path(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise what `plot` would raise for this path and this installation, before anything is solved."""
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"{shown_path(path)}: a picture's name must end in one of {', '.join(FORMATS)}")
    check_target(path, overwrite=overwrite)
    _new_figure()


def plot_timeline(result: Result, axes: "tuple[Axes, Axes] | None" = None) -> "tuple[Axes, Axes]":
    """Draw the lanes above the memory.

    Parameters
    ----------
    result
        One with a schedule.
    axes
        Where to draw lanes and memory; by default a new figure, reached as ``axes[0].figure``.

    Returns
    -------
    tuple[Axes, Axes]
        The axes of the lanes and of the memory.
    """
    axes = axes or _panels(_new_figure())
    plot_lanes(result, axes[0])
    plot_memory(result, axes[1])
    axes[0].set_xlabel("")
    axes[0].set_title(_headline(result), loc="left", fontsize="medium", parse_math=False)
    return axes


def plot_lanes(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw when copies out, computation and copies back run; stalls and recomputation have colours of their own."""
    from matplotlib.collections import PolyCollection

    ax = ax or _new_figure().subplots()
    spans = _spans(result)
    grain = (result.makespan or 1) / _GRAIN
    for name, colour in _COLOURS.items():
        y = _LANES.get(name, _LANES["compute"])
        merged = _merged(spans[name], grain)
        label = f"{name} {format_time(sum(end - start for start, end in spans[name]))}"
        ax.add_collection(PolyCollection(_bars(merged, y - 0.38, y + 0.38), facecolor=colour, linewidth=0, label=label))
        if name in _MARKED:
            # Below the lane, with an outline: single re-runs and stalls may be narrower than a pixel, but must not vanish.
            marks = _bars(merged, y - 0.5, y - 0.43)
            ax.add_collection(PolyCollection(marks, facecolor=colour, edgecolor=colour, linewidth=0.6, label=f"_{name} marks"))
    ax.set_yticks(list(_LANES.values()), _LANE_LABELS)
    ax.set_ylim(-0.6, 2.6)
    ax.set_xlim(0, (result.makespan or 1) / 1e6)
    ax.set_xlabel("time (ms)")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), frameon=False, fontsize="small")
    return ax


def plot_memory(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw the bytes held through the step, the budget, and what keeping everything would hold."""
    ax = ax or _new_figure().subplots()
    grain = (result.makespan or 1) / _GRAIN
    kept = _envelope(_keep_all(result.instance), grain)
    ax.step([t / 1e6 for t, _ in kept], [m / 1e9 for _, m in kept], where="pre", color="0.65", lw=1, label="keeping everything")
    held = _envelope(_memory(result), grain)
    time, memory = [t / 1e6 for t, _ in held], [m / 1e9 for _, m in held]
    ax.fill_between(time, memory, step="pre", color="#0072B2", alpha=0.25, linewidth=0)
    ax.step(time, memory, where="pre", color="#0072B2", lw=1, label="this schedule")
    if result.instance.budget is not None:
        label = f"budget {format_size(result.instance.budget)}"
        ax.axhline(result.instance.budget / 1e9, color="black", linestyle="--", lw=1, label=label)
    ax.set_xlim(0, (result.makespan or 1) / 1e6)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("time (ms)")
    ax.set_ylabel("memory (GB)")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
    return ax


def _new_figure() -> "Figure":
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ImportError("plots need matplotlib: pip install 'slackswap-opt[plot]'") from None
    figure = Figure(figsize=(10, 5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _panels(figure: "Figure") -> "tuple[Axes, Axes]":
    lanes, memory = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.7))
    return lanes, memory


def _headline(result: Result) -> str:
    _, timeline = _judged(result)
    return (
        f"{result.instance.name}, {result.method}: {format_percent(timeline.retained)} of ideal throughput "
        f"in {format_size(timeline.peak)}, unconstrained {format_size(result.instance.peak)}"
    )


def _bars(spans: Iterable[Span], low: float, high: float) -> list[list[tuple[float, float]]]:
    """Rectangles in milliseconds between two heights."""
    return [[(a / 1e6, low), (b / 1e6, low), (b / 1e6, high), (a / 1e6, high)] for a, b in spans]


def _judged(result: Result) -> tuple[Schedule, Timeline]:
    if result.schedule is None or result.timeline is None:
        raise InputError(f"the result of '{result.method}' for '{result.instance.name}' has no schedule to draw")
    return result.schedule, result.timeline


def _clocks(result: Result) -> Iterator[int]:
    """For each instruction the compute clock after it; copies are issued without waiting."""
    schedule, timeline = _judged(result)
    clock = 0
    for (action, _), end in zip(schedule.instructions, timeline.end, strict=True):
        if action not in (Action.OFFLOAD, Action.PREFETCH):
            clock = end
        yield clock


def _spans(result: Result) -> dict[str, list[Span]]:
    """When what happens, by the names of the colours."""
    schedule, timeline = _judged(result)
    spans: dict[str, list[Span]] = {name: [] for name in _COLOURS}
    first = clock = 0
    rows = zip(schedule.instructions, timeline.start, timeline.end, _clocks(result), strict=True)
    for (action, target), start, end, after in rows:
        if action is Action.RUN:
            spans["stall"].append((clock, start))
            spans["recomputation" if target < first else result.instance.operations[target].phase].append((start, end))
            first = max(first, target + 1)
        else:
            copy = action in (Action.OFFLOAD, Action.PREFETCH)
            spans[action.value if copy else "stall"].append((start, end))
        clock = after
    return {name: [span for span in found if span[1] > span[0]] for name, found in spans.items()}


def _merged(spans: Iterable[Span], grain: float) -> list[Span]:
    """Join spans that lie closer than `grain`; they come in order of time."""
    merged: list[Span] = []
    for start, end in spans:
        if merged and start - merged[-1][1] < grain:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return merged


def _memory(result: Result) -> Iterator[tuple[int, int]]:
    """Points (time, bytes held until then); allocations count from their issue, as the judge counts them."""
    yield 0, 0
    yield from zip(_clocks(result), _judged(result)[1].memory, strict=True)


def _keep_all(instance: Instance) -> Iterator[tuple[int, int]]:
    """Points (time, bytes held until then) of the step that keeps everything."""
    yield 0, 0
    yield from zip(accumulate(o.duration for o in instance.operations), instance.keep_all_memory, strict=True)


def _envelope(points: Iterable[tuple[int, int]], grain: float) -> list[tuple[int, int]]:
    """Thin out points to the largest value in every `grain` of time, so that no peak is lost."""
    kept: list[tuple[int, int]] = []
    edge = -1.0
    for time, value in points:
        if kept and time < edge:
            kept[-1] = (time, max(kept[-1][1], value))
        else:
            kept.append((time, value))
            edge = time + grain
    return kept
