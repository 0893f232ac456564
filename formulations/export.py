"""The formulation of an instance as text that solvers and people read."""

from slackswap_opt.files import InputError
from slackswap_opt.formulations.linear import to_lp, to_mps
from slackswap_opt.formulations.presolve import FOR_PLANS, Reductions
from slackswap_opt.formulations.rounding import Rounding
from slackswap_opt.formulations.slack import SlackModel
from slackswap_opt.instance import Instance
from slackswap_opt.units import format_size

FORMATS = {"lp": to_lp, "mps": to_mps}
"""What writes each format."""

_LEGEND = """\
Sizes are in bytes, times in nanoseconds; i is a tensor, a and b the accesses around an idle interval, t and d operations.
s_i_a_b, r_i_a_b    the interval is swapped, recomputed; if neither, it is kept: rows one_i_a_b
y_i_a_b_d           a recomputed interval's tensor is back by d already
keep_i_d, fetch_i   after its last access a tensor is kept until d, or fetched from the host, for a re-run
rebuild_i_d         or rebuilt by d; hold_i_d: held over d once rebuilt; x_t_d: times that operation t has run again by d
delay_t             re-runs and waits just before t; ahead_t: re-run work that is done before it is due
gone_t              bytes that are gone while t runs: rows memory_t ask for as many as are over budget
Q_t, H_t, P_t       bytes not yet copied out, copied out ahead of their interval, back ahead of their use
N_t, Y_t, copy_i_a  bytes written that may be copied ahead; bytes back when t starts; the copy for the interval is the first"""


def export(instance: Instance, format_: str, *, rounding: Rounding = Rounding.OUTER) -> str:
    """Return the formulation of an instance as an LP or MPS file.

    Parameters
    ----------
    instance
        What is planned; its budget must be set.
    format_
        One of `FORMATS`.
    rounding
        OUTER, whose optimum bounds the overhead of every plan from below and whose relaxation is what certificates are made of,
        or INNER, whose solutions are plans.

    Raises
    ------
    InputError
        If there is no budget, no such format, or nothing to decide.
    """
    if format_ not in FORMATS:
        raise InputError(f"unknown format {format_!r}; choose from {', '.join(FORMATS)}")
    if instance.budget is None:
        raise InputError(f"the formulation of '{instance.name}' needs a budget")
    if instance.budget >= instance.peak:
        raise InputError(
            f"'{instance.name}' fits in {format_size(instance.budget)} with everything kept: there is nothing to decide"
        )
    reductions = Reductions.for_bound(instance) if rounding is Rounding.OUTER else FOR_PLANS
    model = SlackModel(instance, rounding=rounding, reductions=reductions)
    about = f"{instance.name}, budget {instance.budget}, {rounding} rounding"
    return FORMATS[format_](model.program, [about, *_LEGEND.splitlines()])
