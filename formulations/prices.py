"""What memory and the link are worth, from the multipliers of a relaxation: where a little more of them would save time."""

from bisect import bisect_left
from dataclasses import dataclass

from slackswap_opt.files import InputError
from slackswap_opt.formulations.presolve import Reductions
from slackswap_opt.formulations.relaxation import Relaxation, relax
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.instance import IdleInterval, Instance

GIB, GB = 1 << 30, 10**9


@dataclass(frozen=True, slots=True)
class Prices:
    """Derivatives of the bound, in nanoseconds of step time; they hold for small changes.

    Attributes
    ----------
    memory
        Saved per GiB of budget.
    offload, prefetch
        Saved per GB/s of bandwidth to the host and back.
    operations
        Where memory binds: operations with the part of `memory` that is theirs, the largest first.
    intervals
        What keeping a tensor through an idle interval costs there, the largest first.
    """

    memory: float
    offload: float
    prefetch: float
    operations: tuple[tuple[int, float], ...]
    intervals: tuple[tuple[IdleInterval, float], ...]


def prices(instance: Instance, *, reductions: Reductions | None = None) -> Prices:
    """Return what one more unit of memory and bandwidth saves at the bound; all 0 if the budget does not bind.

    Raises
    ------
    InputError
        If it is proven that no schedule fits.
    ImportError
        If highspy is not installed.
    RelaxationError
        If HiGHS fails.
    """
    model = SlackModel(instance, reductions=reductions or Reductions.for_bound(instance))
    return prices_of(model, relax(model.program))


def prices_of(model: SlackModel, relaxation: Relaxation) -> Prices:
    """Return the prices at a solved relaxation of `model`; raise `InputError` if it has no solution."""
    if not relaxation.feasible:
        raise InputError(f"no schedule of '{model.instance.name}' fits in {model.instance.budget} bytes: memory has no price")
    rows = {row.name: y for row, y in zip(model.program.rows, relaxation.multipliers, strict=True)}
    rent = {t: rows[f"memory_{t}"] * model.units.time / model.units.size for t in model.memory}
    operations = sorted(((t, y * GIB) for t, y in rent.items() if y > 0), key=lambda entry: (-entry[1], entry[0]))
    link = model.instance.link
    return Prices(
        memory=sum(y for _, y in operations),
        offload=_lane(model, relaxation, out=True) * GB / link.offload_bandwidth,
        prefetch=_lane(model, relaxation, out=False) * GB / link.prefetch_bandwidth,
        operations=tuple(operations),
        intervals=_intervals(model, rent),
    )


def _lane(model: SlackModel, relaxation: Relaxation, *, out: bool) -> float:
    """Return the nanoseconds saved per unit of relative bandwidth: each row's multiplier times what it has the lane move."""
    moved = 0.0
    for load in model.lanes.loads:
        if load.out == out and (y := relaxation.multipliers[load.row]):
            moved -= y * sum(c * relaxation.values[j] for j, c in load.terms)
    return moved * model.units.time * _bandwidth_share(model, out=out)


def _bandwidth_share(model: SlackModel, *, out: bool) -> float:
    """Return which part of the time of the fastest copy is its bytes', the rest being latency."""
    link = model.instance.link
    copy_time = link.offload_time if out else link.prefetch_time
    size = max((model.instance.tensors[i].size for i in model.lanes.moving()), default=0)
    return 1.0 - link.latency / copy_time(size) if size else 0.0


def _intervals(model: SlackModel, rent: dict[int, float]) -> tuple[tuple[IdleInterval, float], ...]:
    sizes = [tensor.size for tensor in model.instance.tensors]
    times = sorted(rent)
    total = [0.0]
    for t in times:
        total.append(total[-1] + rent[t])
    costs = []
    for interval in model.reduced.intervals:
        low, high = (bisect_left(times, t) for t in (interval.start + 1, interval.end))
        costs.append((model.instance.idle_intervals[interval.number], sizes[interval.tensor] * (total[high] - total[low])))
    return tuple(sorted((entry for entry in costs if entry[1] > 0), key=lambda entry: (-entry[1], entry[0])))
