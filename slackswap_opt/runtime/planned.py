"""From a profile and a person's wishes to what a step can follow: an instance, a plan, programs, and memory on the host."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from slackswap_opt.files import InputError
from slackswap_opt.instance import Instance, Link
from slackswap_opt.result import Result
from slackswap_opt.runtime.coarse import coarse
from slackswap_opt.runtime.execute import Route
from slackswap_opt.runtime.hostmemory import available
from slackswap_opt.runtime.pool import Pool, layout
from slackswap_opt.runtime.profile import Profile
from slackswap_opt.runtime.program import Program, program_of
from slackswap_opt.schedule import Schedule
from slackswap_opt.solve import solve
from slackswap_opt.units import format_size, parse_budget

ATTEMPTS = 4
"""How often a smaller budget is tried for the plan, where the clock that stands still in backward needs more than planned."""

SPARE = 10
"""Percent of the host's free memory that are left to others."""

log = logging.getLogger(__name__)

Method = str | Callable[[Instance], Schedule]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a person asks for; `MemoryBudget` describes each."""

    budget: int | str | None
    schedule: Schedule | None
    method: Method
    time_limit: float
    link: Link | None
    exclude: tuple[str, ...]
    smallest: int
    whole_clock: bool
    host_budget: int | None


@dataclass(frozen=True, slots=True)
class Ready:
    """What steps of one kind can follow.

    Attributes
    ----------
    profile
        What such a step does.
    whole
        With the clock that runs throughout.
    usual
        The same, or with the clock that stands still in backward passes.
    result
        What the method found, or None where the schedule came from elsewhere.
    host
        Bytes of host memory.
    """

    profile: Profile
    whole: Route
    usual: Route
    result: Result | None
    host: int


def ready(profile: Profile, wishes: Wishes) -> Ready:
    """Plan the step of a profile.

    Raises
    ------
    InputError
        If no plan fits into the budget, if a given schedule is for another step, or if the host has no room for its copies.
    """
    given, instance = wishes.schedule, restricted(profile, wishes)
    if given is not None and given.fingerprint in (instance.fingerprint, profile.instance.fingerprint):
        fitting = instance if given.fingerprint == instance.fingerprint else _bounded(profile.instance, wishes)
        program = program_of(profile, given, fitting)
        standing = None if wishes.whole_clock else coarse(profile, program)
        fits = standing is not None and (fitting.budget is None or standing.timeline.peak <= fitting.budget)
        return _routes(profile, (program, standing) if standing is not None and fits else (program,), None)
    if given is not None:
        other = (
            f"the schedule is for '{given.name}' with fingerprint {given.fingerprint:.32}, but this step has the fingerprint "
            f"{profile.instance.fingerprint}"
        )
        if wishes.budget is None:
            raise InputError(f"{other}; plan for a profile of this step, taken where it runs")
        log.warning("%s: it is planned for here", other)
    return _planned(profile, instance, wishes)


def restricted(profile: Profile, wishes: Wishes) -> Instance:
    """Return the instance of a profile under a person's wishes: with budgets and link, and with what is to stay held."""
    instance = profile.instance
    tensors = list(instance.tensors)
    for i, (tensor, facts) in enumerate(zip(tensors, profile.tensors, strict=True)):
        accesses = instance.accesses[i]
        excluded = any(fnmatchcase(facts.path, pattern) or facts.path.startswith(f"{pattern}.") for pattern in wishes.exclude)
        late = not wishes.whole_clock and any(instance.operations[t].phase == "backward" for t in instance.writers[i])
        if (excluded or late or tensor.size < wishes.smallest) and accesses[-1] - accesses[0] >= len(accesses):
            tensors[i] = replace(tensor, held=((accesses[0], accesses[-1]),))
    return _bounded(replace(instance, tensors=tuple(tensors)), wishes)


def _bounded(instance: Instance, wishes: Wishes) -> Instance:
    """Return the instance with budgets and link."""
    free = available()
    room = None if free is None else free - free * SPARE // 100
    host = min((size for size in (room, wishes.host_budget) if size is not None), default=None)
    budget = parse_budget(wishes.budget, instance.peak) if isinstance(wishes.budget, str) else wishes.budget
    return replace(instance, budget=budget, host_budget=host, link=wishes.link or instance.link)


def _planned(profile: Profile, instance: Instance, wishes: Wishes) -> Ready:
    deadline = time.monotonic() + wishes.time_limit
    schedule, result = _solved(instance, wishes, deadline)
    program = program_of(profile, schedule, instance)
    if wishes.whole_clock:
        return _routes(profile, (program,), result)
    budget, best = instance.budget, (program, result)
    for _ in range(ATTEMPTS):
        standing = coarse(profile, program)
        if standing is None or instance.budget is None or standing.timeline.peak <= instance.budget:
            return _routes(profile, (program, standing) if standing else (program,), result)
        budget = (budget or 0) - (standing.timeline.peak - instance.budget)
        try:
            schedule, result = _solved(instance.with_budget(max(budget, 0)), wishes, deadline)
        except InputError:
            break
        program = program_of(profile, schedule, instance)
    log.info("%s: the budget has no room for a clock that stands still in backward passes", instance.name)
    return _routes(profile, (best[0],), best[1])


def _solved(instance: Instance, wishes: Wishes, deadline: float) -> tuple[Schedule, Result | None]:
    if not isinstance(wishes.method, str):
        return wishes.method(instance), None
    result = solve(instance, wishes.method, time_limit=max(0.0, deadline - time.monotonic()))
    if result.schedule is None:
        raise InputError(f"no plan of method '{wishes.method}' fits this step into its budget: {result.message}")
    return result.schedule, result


def _routes(profile: Profile, programs: tuple[Program, ...], result: Result | None) -> Ready:
    """Give programs their memory on the host."""
    layouts = [layout(program.instance, program.schedule) for program in programs]
    need, room = max(each.size for each in layouts), programs[0].instance.host_budget
    if room is not None and need > room:
        raise InputError(
            f"the plan needs {need} bytes of host memory for its copies, but it may use {room}; give the step a larger budget"
        )
    pool = Pool(layouts, programs[0].device)
    peak = format_size(programs[-1].timeline.peak)
    log.info("%s: %s on the device, %s on the host", profile.instance.name, peak, format_size(need))
    routes = [Route(each, slots) for each, slots in zip(programs, pool.slots, strict=True)]
    return Ready(profile, routes[0], routes[-1], result, pool.size)
