"""Tables of results for a terminal."""

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleDimensions
from rich.table import Table

from slackswap_opt.instance import IdleInterval, Instance, Link
from slackswap_opt.plan import Decision
from slackswap_opt.result import Result
from slackswap_opt.timeline import Timeline
from slackswap_opt.units import format_bandwidth, format_percent, format_size, format_time

if TYPE_CHECKING:
    from slackswap_opt.formulations.certificate import Certificate
    from slackswap_opt.formulations.prices import Prices
    from slackswap_opt.runtime import MemoryRow, Profile

_MOST_ROWS, _LEAST_SHARE = 30, 1000
_DECIDED = {"kept": Decision.KEEP, "swapped": Decision.SWAP, "recomputed": Decision.RECOMPUTE}


def result_table(result: Result) -> Table:
    """Return what there is to say of one result, a line a matter."""
    rows = [("status", result.status.value), ("method", result.method)]
    if result.solver:
        rows.append(("solver", ": ".join(filter(None, (result.solver, result.solver_status)))))
    if result.message:
        rows.append(("message", result.message))
    if result.smallest_budget is not None:
        rows.append(("smallest budget", exact_size(result.smallest_budget)))
    rows += timeline_rows(result.instance, result.timeline) if result.timeline else instance_rows(result.instance)
    if result.plan:
        rows += [(word, decided(result, decision)) for word, decision in _DECIDED.items()]
    rows += bound_rows(result.instance, result.timeline, result.bound)
    rows.append(("planned in", format_time(result.runtime)))
    return _sheet(result.instance.name, rows)


def check_table(instance: Instance, timeline: Timeline | None, certificate: "Certificate | None") -> Table:
    """Return what the judge says of a schedule, and what a verified certificate proves, a line a matter."""
    rows = timeline_rows(instance, timeline) if timeline else instance_rows(instance)
    if certificate is not None:
        count = len(certificate.multipliers)
        rows.append(("certificate", f"verified: {count} multipliers of the formulation's rows prove the bound"))
        if certificate.bound is None:
            rows.append(("bound", "no schedule of the plan space fits in the budget"))
        rows += bound_rows(instance, timeline, certificate.bound)
    return _sheet(instance.name, rows)


def bound_rows(instance: Instance, timeline: Timeline | None, bound: int | None) -> list[tuple[str, str]]:
    """Return what a proven bound says of an instance, and of a schedule where there is one."""
    if bound is None:
        return []
    words = bounds_in_words(instance.ideal, timeline.makespan if timeline else None, bound)
    rows = [("bound", f"{format_time(bound)} for every schedule of the plan space: {words}")]
    if timeline is None:
        return rows
    if timeline.makespan < bound:
        return [*rows, ("gap", "none: this schedule beats the bound, so it is outside of the plan space")]
    gap = (timeline.makespan - bound) / timeline.makespan if timeline.makespan else 0.0
    return [*rows, ("gap", f"{format_percent(gap)} of the makespan, certified")]


def bounds_in_words(ideal: int, makespan: int | None, bound: int | None) -> str:
    """Return the throughput that a makespan retains and that a bound allows, the latter rounded up so that it stays true."""
    words = [] if makespan is None else [f"retained {format_percent(ideal / makespan if makespan else 1.0)}"]
    if bound is not None:
        most = -(-(10**4) * ideal // bound) / 10**4 if bound else 1.0
        words.append(f"no plan exceeds {format_percent(most)}")
    return "; ".join(words) or "nothing yet"


def instance_rows(instance: Instance) -> list[tuple[str, str]]:
    """Return what is known of an instance without a schedule."""
    return [
        ("budget", "none" if instance.budget is None else exact_size(instance.budget)),
        ("unconstrained peak", exact_size(instance.peak)),
        ("ideal", format_time(instance.ideal)),
    ]


def timeline_rows(instance: Instance, timeline: Timeline) -> list[tuple[str, str]]:
    """Return the cost and the memory of a schedule beside the ideal and the budget."""
    over = timeline.makespan - timeline.ideal
    offload, prefetch = format_time(timeline.offload_stall), format_time(timeline.prefetch_stall)
    budget = "no budget" if instance.budget is None else f"a budget of {format_size(instance.budget)}"
    return [
        ("retained", f"{format_percent(timeline.retained)} of ideal throughput"),
        ("makespan", f"{format_time(timeline.makespan)}, ideal {format_time(timeline.ideal)}, overhead {format_time(over)}"),
        ("peak", f"{format_size(timeline.peak)} of {budget}, unconstrained {format_size(instance.peak)}"),
        (
            "stalls",
            f"{offload} for copies out, {prefetch} for copies back",
        ),
        ("recompute", f"{format_time(timeline.recompute_time)} in {timeline.recomputed} operations"),
        ("moved", f"{format_size(timeline.offloaded)} to the host, {format_size(timeline.prefetched)} back"),
        ("host peak", format_size(timeline.host_peak)),
    ]


def decided(result: Result, decision: Decision) -> str:
    """Return how many of the tensors that lie idle have an interval with this decision, and their bytes.

    A tensor counts as kept if all of its intervals are.
    """
    if result.plan is None:
        return "-"
    taken: dict[int, set[Decision]] = {}
    for interval, made in zip(result.instance.idle_intervals, result.plan.intervals, strict=True):
        taken.setdefault(interval.tensor, set()).add(made)
    if decision is Decision.KEEP:
        chosen = [i for i, made in taken.items() if made == {Decision.KEEP}]
    else:
        chosen = [i for i, made in taken.items() if decision in made]
    size = format_size(sum(result.instance.tensors[i].size for i in chosen))
    return f"{len(chosen)} of {len(taken)} tensors with idle intervals, {size} in all"


def compare_table(results: Sequence[Result]) -> Table:
    """Return results side by side, a line each, in the order given; links where they differ, gaps where there are any."""
    gaps = any(result.gap is not None for result in results)
    links = len({result.instance.link for result in results}) > 1
    columns = ["model", "method", "status", "retained", "makespan", "peak", "budget", *(["link"] if links else [])]
    columns += ["stalls", "recompute", "moved", *(["gap"] if gaps else []), "planned in"]
    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    rows = [_compared(result, links=links, gaps=gaps) for result in results]
    for row in rows:
        table.add_row(*row)
    for n, column in enumerate(table.columns):
        column.justify = "left" if n < 3 else "right"
        column.no_wrap = True
        # A narrow terminal wraps whole lines rather than lose digits.
        column.min_width = max(len(cells[n]) for cells in (columns, *rows))
    table.caption_justify = "left"
    messages = (f"{result.instance.name}: {result.message}" for result in results if result.message)
    table.caption = "\n".join(dict.fromkeys(messages))
    return table


def _compared(result: Result, *, links: bool, gaps: bool) -> list[str]:
    budget, cost = result.instance.budget, _cost(result)
    cells = [result.instance.name, result.method, result.status.value, *cost[:3]]
    cells.append("none" if budget is None else format_size(budget))
    cells += [_bandwidths(result.instance.link)] if links else []
    cells += cost[3:]
    if gaps:
        cells.append("-" if result.gap is None else format_percent(result.gap))
    return [*cells, format_time(result.runtime)]


def _bandwidths(link: Link) -> str:
    out, back = map(format_bandwidth, (link.offload_bandwidth, link.prefetch_bandwidth))
    return out if out == back else f"{out} out, {back} back"


def prices_table(instance: Instance, prices: "Prices") -> Table:
    """Return what a little more memory and bandwidth would save of the bound, and what binds most."""
    operations, tensors, o = prices.operations, prices.intervals, instance.operations
    rows = [
        ("one more GiB", f"would save {format_time(round(prices.memory))} of the bound"),
        ("one more GB/s", f"{format_time(round(prices.offload))} to the host, {format_time(round(prices.prefetch))} back"),
        ("memory binds in", _most(len(operations), [f"{o[t].name} {format_time(round(y))}/GiB" for t, y in operations[:5]])),
        ("dear to keep", _most(len(tensors), [_dear(instance, *entry) for entry in tensors[:5]])),
    ]
    return _sheet("Prices, for small changes", rows)


def _dear(instance: Instance, interval: IdleInterval, cost: float) -> str:
    return f"{instance.tensors[interval.tensor].name} {format_time(round(cost))}"


def _most(count: int, first: list[str]) -> str:
    return ", ".join(first + [f"{count - len(first)} more"] * (count > len(first))) or "nothing"


def profile_table(profile: "Profile", hardware: str | None) -> Table:
    """Return what a profile found, a line a matter; `hardware` is what it was for, None where the step ran as it is."""
    instance = profile.instance
    where = f"on {profile.device}" if hardware is None else f"as on {hardware}, without data"
    return _sheet(
        instance.name,
        [
            ("profiled", f"{len(instance.operations)} operations and {len(instance.tensors)} tensors {where}"),
            ("peak", exact_size(instance.peak)),
            ("no plan below", f"{exact_size(max(instance.floor, default=0))}, which some operation needs at least"),
            ("step", f"{format_time(instance.ideal)} with unlimited memory"),
            ("link", f"{_bandwidths(instance.link)}, assumed; a plan depends on it"),
        ],
    )


def memory_table(rows: "Sequence[MemoryRow]") -> Table:
    """Return where the memory of a step goes, by module and kind: rows of a thousandth of the peak or more."""
    columns = ["module", "kind", "tensors", "size", "at the peak", "recompute", "idle", "can be swapped", "recomputed"]
    table = Table(*columns, "or why not", title="Where your memory goes", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[2:9]:
        column.justify = "right"
        column.no_wrap = True
    table.columns[0].overflow = "fold"
    weight = sum(row.at_peak for row in rows)
    heavy = [row for row in rows if row.at_peak * _LEAST_SHARE >= weight][:_MOST_ROWS]
    for row in heavy:
        sizes, times = map(format_size, (row.size, row.at_peak)), map(format_time, (row.recompute_time, row.idle_time))
        able = (_part(part, row.size) for part in (row.movable, row.rebuildable))
        table.add_row(row.path or "-", row.kind, str(row.tensors), *sizes, *times, *able, row.reason)
    if left := [row for row in rows if row not in heavy]:
        table.caption_justify = "left"
        table.caption = f"{len(left)} more rows, {format_size(sum(row.at_peak for row in left))} at the peak"
    return table


def _part(part: int, whole: int) -> str:
    if part in (0, whole):
        return "yes" if part else "no"
    return format_size(part)


def choice_table(title: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a titled list of things to choose from, their names in the first column."""
    table = Table(*columns, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*row)
    return table


def rendered(tables: Iterable[Table], *, encoding: str = "utf-8", terminal: bool = False) -> str:
    """Return tables as text.

    Parameters
    ----------
    tables
        What to print, from top to bottom.
    encoding
        That of the output; what it cannot spell is escaped.
    terminal
        Whether the output has a width and knows styles.
    """
    page = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    # Names come from files: what looks like markup or an emoji code in them is text.
    console = Console(
        file=page, force_terminal=terminal, width=None if terminal else 160, markup=False, emoji=False, highlight=False
    )
    tables = list(tables)
    for above, table in zip([None, *tables], tables, strict=False):
        if above and above.box is None:
            console.print()
        width = max(console.width, console.measure(table, options=console.options.update(width=1000)).minimum)
        # Both are set, since a dumb terminal has its own idea of the width otherwise.
        console.size = ConsoleDimensions(width, console.height)
        console.print(table)
    page.seek(0)
    return "\n".join(line.rstrip() for line in page)


def exact_size(size: int) -> str:
    """Return bytes for a reader, with the exact number that can be given back as a budget."""
    short = format_size(size)
    return short if size < 1000 else f"{short} ({size}B)"


def _cost(result: Result) -> list[str]:
    timeline = result.timeline
    if timeline is None:
        need = "-" if result.smallest_budget is None else f"needs {format_size(result.smallest_budget)}"
        return ["-", "-", need, "-", "-", "-"]
    return [
        format_percent(timeline.retained),
        format_time(timeline.makespan),
        format_size(timeline.peak),
        format_time(timeline.offload_stall + timeline.prefetch_stall),
        format_time(timeline.recompute_time),
        format_size(timeline.offloaded + timeline.prefetched),
    ]


def _sheet(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
