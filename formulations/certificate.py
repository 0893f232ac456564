r"""A lower bound on the makespan that anybody can check again, in integers and without a solver.

Any multipliers $y$ of the rows $A x \gtrless b$, signs clipped, prove that $c x \ge y b + \sum_j \min_{l_j \le x_j \le u_j}
(c_j - y A_j) x_j$. A solver proposes $y$; what counts is this sum, worked out exactly.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Self

from slackswap_opt.files import (
    InputError,
    check_format,
    check_integer,
    check_string,
    check_type,
    parse_json,
    read_json,
    shown,
    shown_path,
    take,
    write_text,
)
from slackswap_opt.formulations.linear import LinearProgram, Sense
from slackswap_opt.formulations.presolve import Reductions
from slackswap_opt.formulations.relaxation import relax
from slackswap_opt.formulations.rounding import Rounding, Units
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.instance import Instance, Link

FORMAT, VERSION = "slackswap-certificate", 1
BITS, MOST_BITS = 80, 1024
"""Multipliers are multiples of 2^-BITS; those of a file may be finer, up to the second."""


class CertificateError(InputError):
    """A certificate that is for something else, or whose multipliers do not prove what it states."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A proven lower bound for one instance.

    Attributes
    ----------
    name, fingerprint, durations
        Of the instance: its name, and hashes of its structure and of its operations' durations.
    link, budget
        Those of the instance, budget in bytes.
    units, reductions
        How the model is built from it, with outer rounding.
    bits, multipliers
        For rows by name, multiples of 2^-bits in units of the model; other rows have 0.
    bound
        No schedule of the plan space has a makespan of fewer nanoseconds; None if no schedule fits at all.
    """

    name: str
    fingerprint: str
    durations: str
    link: Link
    budget: int | None
    units: Units
    reductions: Reductions
    bits: int
    multipliers: tuple[tuple[str, int], ...]
    bound: int | None

    def to_json(self) -> str:
        """Return the certificate as JSON text, a line a row."""
        members = {
            "format": FORMAT,
            "version": VERSION,
            "instance": {"name": self.name, "fingerprint": self.fingerprint, "durations": self.durations},
            **{field: asdict(getattr(self, field)) for field in ("link", "units", "reductions")},
            **{field: getattr(self, field) for field in ("budget", "bits", "bound")},
        }
        head = ",\n ".join(f'"{key}": {json.dumps(value)}' for key, value in members.items())
        rows = ",\n  ".join(f'"{name}": {multiplier}' for name, multiplier in self.multipliers)
        return f'{{{head},\n "multipliers": {{{rows}}}}}\n'

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the certificate that `text` spells, or raise `InputError`; it is not verified."""
        return cls._from_data(parse_json(text))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the certificate to a JSON file; raise `InputError` if it exists and `overwrite` is false."""
        write_text(path, self.to_json(), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the certificate in a JSON file, or raise `InputError`; it is not verified."""
        data = read_json(path)
        try:
            return cls._from_data(data)
        except InputError as error:
            raise InputError(f"{shown_path(path)}: {error}") from None

    @classmethod
    def _from_data(cls, data: Any) -> Self:
        objects = ("instance", "link", "units", "reductions", "multipliers")
        required = {"format": str, "version": int, "bits": int, "budget": object, "bound": object}
        members = take(data, "", {**required, **dict.fromkeys(objects, dict)}, {})
        check_format(members, FORMAT, VERSION)
        instance = take(members["instance"], "instance", dict.fromkeys(("name", "fingerprint", "durations"), str), {})
        for key, text in instance.items():
            check_string(text, f"instance.{key}")
        link_keys = {"offload_bandwidth": int, "prefetch_bandwidth": int, "latency": int, "duplex": bool}
        reduction_keys = {"negligible": int, "rows": object, "merge": bool, "checkpoints": int}
        return cls(
            **instance,
            link=Link(**take(members["link"], "link", link_keys, {})),
            budget=_optional(members["budget"], "'budget'"),
            units=Units(**take(members["units"], "units", dict.fromkeys(("size", "time", "precision"), int), {})),
            reductions=Reductions(**take(members["reductions"], "reductions", reduction_keys, {})),
            bits=check_integer(members["bits"], "'bits'", most=MOST_BITS),
            multipliers=tuple((name, _multiplier(name, value)) for name, value in members["multipliers"].items()),
            bound=_optional(members["bound"], "'bound'"),
        )


def _optional(value: Any, where: str) -> int | None:
    return None if value is None else check_integer(value, where)


def _multiplier(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"multipliers[{shown(name)}] must be an integer, got {shown(value)}")
    return value


def lower_bound(
    instance: Instance, *, reductions: Reductions | None = None, units: Units | None = None, time_limit: float | None = None
) -> Certificate:
    """Return a certified lower bound on the makespan of every schedule of the plan space.

    Parameters
    ----------
    instance
        What is planned; without a budget the bound is the ideal makespan.
    reductions
        What presolve does; by default `Reductions.for_bound`.
    units
        What the model counts in; by default bytes and nanoseconds.
    time_limit
        Seconds for the solver; the bound is the ideal makespan if they run out.

    Raises
    ------
    ImportError
        If highspy is not installed.
    RelaxationError
        If HiGHS fails.
    """
    check_type(instance, Instance, "'instance'", "an Instance")
    reductions, units = reductions or Reductions.for_bound(instance), units or Units()
    model = SlackModel(instance, rounding=Rounding.OUTER, units=units, reductions=reductions)
    relaxation = relax(model.program, time_limit=time_limit)
    multipliers = to_grid(model.program, relaxation.multipliers)
    return Certificate(
        instance.name,
        instance.fingerprint,
        _hash_of_durations(instance),
        instance.link,
        instance.budget,
        units,
        reductions,
        BITS,
        tuple(multipliers.items()),
        proven_bound(model, multipliers, BITS) if relaxation.feasible or not proves_infeasible(model, multipliers) else None,
    )


def verify(instance: Instance, certificate: Certificate) -> None:
    """Raise `CertificateError` unless the certificate is for `instance` and its multipliers prove what it states.

    The model is built again from the instance; no solver is asked.
    """
    check_type(instance, Instance, "'instance'", "an Instance")
    check_type(certificate, Certificate, "'certificate'", "a Certificate")
    for field, mine, stated in (
        ("fingerprint", instance.fingerprint, certificate.fingerprint),
        ("durations with hash", _hash_of_durations(instance), certificate.durations),
        ("link", instance.link, certificate.link),
        ("budget", instance.budget, certificate.budget),
    ):
        if mine != stated:
            spelled = shown(stated) if isinstance(stated, str) else stated
            raise CertificateError(f"the certificate is for an instance with {field} {spelled}, not {mine}")
    model = SlackModel(instance, rounding=Rounding.OUTER, units=certificate.units, reductions=certificate.reductions)
    multipliers = dict(certificate.multipliers)
    if unknown := multipliers.keys() - {row.name for row in model.program.rows}:
        raise CertificateError(f"the certificate has a multiplier for {shown(min(unknown))}, which is no row of the model")
    if certificate.bound is None:
        if not proves_infeasible(model, multipliers):
            raise CertificateError("the certificate states that no schedule fits, but its multipliers do not prove it")
    elif (proven := proven_bound(model, multipliers, certificate.bits)) != certificate.bound:
        raise CertificateError(
            f"the certificate states a bound of {certificate.bound} ns, but its multipliers prove {proven} ns"
        )


def to_grid(program: LinearProgram, multipliers: Sequence[float]) -> dict[str, int]:
    """Return multipliers by row, signs clipped, as multiples of 2^-BITS; those that are 0 are left out."""
    rounded = {}
    for row, y in zip(program.rows, multipliers, strict=False):
        # Towards 0: then no delay, whose bound is far away, gets a lower reduced cost than in the solver's view.
        multiplier = int(y * (1 << BITS))
        if row.sense is not Sense.EQUAL:
            multiplier = max(multiplier, 0) if row.sense is Sense.AT_LEAST else min(multiplier, 0)
        if multiplier:
            rounded[row.name] = multiplier
    return rounded


def proven_bound(model: SlackModel, multipliers: Mapping[str, int], bits: int) -> int:
    """Return the makespan in nanoseconds that multipliers prove: the ideal, and their overhead up to the model's horizon."""
    costs = {column: cost << bits for column, cost in model.program.objective.items()}
    overhead = min(Fraction(lagrangian(model.program, multipliers, costs), 1 << bits), Fraction(model.horizon))
    return model.instance.ideal + max(0, ceil(overhead * model.units.time))


def proves_infeasible(model: SlackModel, multipliers: Mapping[str, int]) -> bool:
    """Return whether multipliers, of rows that no delay appears in, prove that no values of the columns meet the rows."""
    delays = {*model.delay, *model.ahead.values()}
    timeless = {row.name for row in model.program.rows if delays.isdisjoint(row.columns)}
    return lagrangian(model.program, {name: y for name, y in multipliers.items() if name in timeless}, {}) > 0


def lagrangian(program: LinearProgram, multipliers: Mapping[str, int], costs: Mapping[int, int]) -> int:
    r"""Return $y b + \sum_j \min (c_j - y A_j) x_j$ over the columns' bounds, a lower bound on $c x$.

    Raises
    ------
    CertificateError
        If a multiplier has the wrong sign for its row.
    """
    total, reduced = 0, dict(costs)
    for name, columns, coefficients, sense, rhs in program.rows:
        if not (y := multipliers.get(name, 0)):
            continue
        if (y < 0 and sense is Sense.AT_LEAST) or (y > 0 and sense is Sense.AT_MOST):
            raise CertificateError(f"the multiplier of row '{name}' has the wrong sign")
        total += y * rhs
        for column, coefficient in zip(columns, coefficients, strict=True):
            reduced[column] = reduced.get(column, 0) - y * coefficient
    for column, cost in reduced.items():
        variable = program.variables[column]
        total += cost * (variable.lower if cost > 0 else variable.upper)
    return total


def _hash_of_durations(instance: Instance) -> str:
    return hashlib.sha256(json.dumps([o.duration for o in instance.operations]).encode()).hexdigest()[:32]
