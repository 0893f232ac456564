"""Timelines for trace viewers: a file that chrome://tracing and Perfetto open, predicted or measured alike."""

import json
from typing import Any

from slackswap_opt.instance import Instance
from slackswap_opt.schedule import Action, Schedule
from slackswap_opt.timeline import Timeline

_LANES = {Action.OFFLOAD: 1, Action.PREFETCH: 2}
_NAMES = ("compute", "to the host", "back")


def chrome_trace(instance: Instance, schedule: Schedule, timeline: Timeline) -> str:
    """Return a timeline as JSON text in the trace event format: three lanes, and the bytes held.

    Parameters
    ----------
    instance, schedule
        What was carried out.
    timeline
        When each instruction began and ended, in nanoseconds; those of no length that only free memory are left out.
    """
    names = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": lane, "args": {"name": name}} for lane, name in enumerate(_NAMES)
    ]
    events: list[dict[str, Any]] = []
    seen: set[int] = set()
    for n, (action, target) in enumerate(schedule.instructions):
        start, end = timeline.start[n], timeline.end[n]
        if action is Action.RUN:
            name, again = instance.operations[target].name, target in seen
            seen.add(target)
        else:
            name, again = f"{action} {instance.tensors[target].name}", False
        if action is Action.RUN or end > start:
            events.append(
                {
                    "ph": "X",
                    "name": name,
                    "cat": "run again" if again else action.value,
                    "pid": 0,
                    "tid": _LANES.get(action, 0),
                    "ts": start / 1000,
                    "dur": (end - start) / 1000,
                }
            )
        issued = start if action not in _LANES else None
        if issued is not None:
            events.append(
                {"ph": "C", "name": "bytes held", "pid": 0, "ts": issued / 1000, "args": {"bytes": timeline.memory[n]}}
            )
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*names, *events]}) + "\n"
