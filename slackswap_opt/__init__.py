"""Keep, swap or recompute: plans the activations of a training step into a memory budget.

Importing the package loads no solver, no PyTorch and no matplotlib: each is imported when it is first used.
"""

from slackswap_opt.files import InputError
from slackswap_opt.instance import IdleInterval, Instance, Link, Operation, Tensor
from slackswap_opt.instances import load
from slackswap_opt.place import PlacementError, place
from slackswap_opt.plan import Decision, Plan
from slackswap_opt.result import Result, Status
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate
from slackswap_opt.solve import METHODS, compare, solve
from slackswap_opt.timeline import Timeline

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Action",
    "Decision",
    "IdleInterval",
    "InputError",
    "Instance",
    "Instruction",
    "Link",
    "Operation",
    "PlacementError",
    "Plan",
    "Result",
    "Schedule",
    "ScheduleError",
    "Status",
    "Tensor",
    "Timeline",
    "__version__",
    "compare",
    "load",
    "place",
    "simulate",
    "solve",
]
