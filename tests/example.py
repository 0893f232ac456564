"""A step small enough to follow by hand, and two ways through it: tensor `a` swapped, or recomputed.

Three tensors of 100 bytes over a link of a byte a nanosecond. Keeping everything holds 300 bytes in `h`; the budget is 200.

    time      0     100     300     600     900    1000     1200
    swap      f      g       h       h'     stall    g'              offload of a 100-200, prefetch of a 900-1000
    recompute f      g       h       h'       f      g'
"""

from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.result import Result, Status
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import simulate

STEP = Instance(
    name="step",
    tensors=(Tensor("a", 100), Tensor("b", 100), Tensor("c", 100)),
    operations=(
        Operation("f", 100, (), (0,)),
        Operation("g", 200, (0,), (1,)),
        Operation("h", 300, (1,), (2,)),
        Operation("h'", 300, (1, 2), (), phase="backward"),
        Operation("g'", 200, (0, 1), (), phase="backward"),
    ),
    link=Link(10**9, 10**9),
    budget=200,
)


def schedule(text: str) -> Schedule:
    """Read instructions such as ``run 0, offload 0``."""
    return Schedule.of(STEP, (Instruction(Action(a), int(i)) for a, i in map(str.split, text.split(","))))


SWAP = schedule("run 0, offload 0, run 1, evict 0, run 2, run 3, drop 2, prefetch 0, run 4, drop 0, drop 1")
RECOMPUTE = schedule("run 0, run 1, drop 0, run 2, run 3, drop 2, run 0, run 4, drop 0, drop 1")


def result(of: Schedule, decision: Decision) -> Result:
    """Return the judged result of one of the two."""
    # The idle intervals are a in (1, 4) and b in (3, 4), which has nothing inside and is none.
    plan = Plan((decision,), (Decision.DISCARD,) * 3)
    return Result(Status.FEASIBLE, "by hand", STEP, plan, of, simulate(STEP, of), runtime=1_500_000)
