"""Results as plain data for JSON: the keys are the fields of `Result`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slackswap_opt.instance import Instance
from slackswap_opt.result import Result
from slackswap_opt.timeline import Timeline

if TYPE_CHECKING:
    from slackswap_opt.formulations.certificate import Certificate
    from slackswap_opt.formulations.prices import Prices
    from slackswap_opt.runtime import Profile

_SEQUENCES = ("start", "end", "resident", "memory")


def result_record(result: Result) -> dict[str, Any]:
    """Return a result as JSON values: times in ns, sizes in bytes, None where there is nothing to tell.

    The schedule is what `Schedule.save` writes; the timeline is without its sequences, which `simulate` gives back.
    """
    return {
        "status": result.status,
        "method": result.method,
        "instance": instance_record(result.instance),
        "plan": result.plan and {"intervals": list(result.plan.intervals), "tails": list(result.plan.tails)},
        "schedule": result.schedule and json.loads(result.schedule.to_json()),
        "timeline": result.timeline and timeline_record(result.timeline),
        "makespan": result.makespan,
        "ideal": result.ideal,
        "retained": result.retained,
        "peak": result.peak,
        "bound": result.bound,
        "certificate": result.certificate and json.loads(result.certificate.to_json()),
        "gap": result.gap,
        "runtime": result.runtime,
        "solver": result.solver,
        "solver_status": result.solver_status,
        "message": result.message,
        "smallest_budget": result.smallest_budget,
    }


def check_record(instance: Instance, timeline: Timeline | None, certificate: "Certificate | None") -> dict[str, Any]:
    """Return what was judged and verified: a timeline if there is a schedule, a bound in ns if there is a certificate."""
    record: dict[str, Any] = {"instance": instance_record(instance)}
    if timeline is not None:
        record["timeline"] = timeline_record(timeline)
    if certificate is not None:
        record["certificate"] = {"bound": certificate.bound, "fits": certificate.bound is not None}
    return record


def prices_record(instance: Instance, prices: "Prices") -> dict[str, Any]:
    """Return prices in ns for a GiB and for a GB/s, and in ns what binds: operations, and tensors through idle intervals."""
    return {
        "memory": prices.memory,
        "offload": prices.offload,
        "prefetch": prices.prefetch,
        "operations": [[instance.operations[t].name, price] for t, price in prices.operations],
        "intervals": [
            [instance.tensors[interval.tensor].name, interval.start, interval.end, cost] for interval, cost in prices.intervals
        ],
    }


def profile_record(profile: "Profile") -> dict[str, Any]:
    """Return what a profile found: times in ns, sizes in bytes, tensors by module and kind."""
    instance = profile.instance
    return {
        "instance": instance_record(instance),
        "device": profile.device,
        "operations": len(instance.operations),
        "tensors": len(instance.tensors),
        "peak": instance.peak,
        "floor": max(instance.floor, default=0),
        "ideal": instance.ideal,
        "memory": [asdict(row) for row in profile.memory_rows()],
    }


def instance_record(instance: Instance) -> dict[str, Any]:
    """Return what tells an instance from others: its name, fingerprint, budget in bytes, and link."""
    link = asdict(instance.link)
    return {"name": instance.name, "fingerprint": instance.fingerprint, "budget": instance.budget, "link": link}


def timeline_record(timeline: Timeline) -> dict[str, int]:
    """Return the single numbers of a timeline: times in ns, sizes in bytes."""
    return {field: getattr(timeline, field) for field in timeline.__slots__ if field not in _SEQUENCES}
