"""What people do today, as plans like any other: keep all, recompute blocks, swap all."""

from collections.abc import Set

from slackswap_opt.instance import IdleInterval, Instance
from slackswap_opt.place import PlacementError, place
from slackswap_opt.plan import Decision, Plan


def keep_all(instance: Instance) -> Plan:
    """Keep every tensor through its lifetime."""
    return Plan.keep_all(instance)


def swap_all(instance: Instance) -> Plan:
    """Swap whatever may be swapped while an operation that is over budget runs, overlapped with computation."""
    over = _over_budget(instance)
    swaps = {
        g: Decision.SWAP
        for g, interval in enumerate(instance.idle_intervals)
        if instance.tensors[interval.tensor].swappable and over[interval.end] > over[interval.start + 1]
    }
    return Plan.keep_all(instance).with_intervals(swaps)


def recompute_all(instance: Instance) -> Plan:
    """Recompute each block from its input, whatever the budget: activation checkpointing of every block."""
    return recompute_blocks(instance, blocks_of(instance))


def first_blocks(instance: Instance) -> Plan:
    """Recompute the fewest blocks, the first of the net first, with which the step fits; all of them if none do.

    More blocks are taken to need less memory, which a bisection over their number uses.
    """
    blocks = blocks_of(instance)
    fewest, most = 0, len(blocks)
    while fewest < most:
        middle = (fewest + most) // 2
        if _fits(instance, recompute_blocks(instance, blocks[:middle])):
            most = middle
        else:
            fewest = middle + 1
    return recompute_blocks(instance, blocks[:fewest])


def blocks_of(instance: Instance) -> tuple[str, ...]:
    """Return the names of the blocks that have a forward operation, in order."""
    named = (operation.block for operation in instance.operations if operation.phase == "forward")
    return tuple(dict.fromkeys(block for block in named if block is not None))


def recompute_blocks(instance: Instance, blocks: tuple[str, ...]) -> Plan:
    """Return the plan that drops, between forward and backward, what the forward operations of `blocks` write for themselves.

    What leaves a block is kept, after its last access too, as long as a re-run reads it: each block is rebuilt from its input.
    """
    chosen = set(blocks)
    inner = {i for i in range(len(instance.tensors)) if _is_inner(instance, i, chosen)}
    decisions = {
        g: Decision.RECOMPUTE
        for g, interval in enumerate(instance.idle_intervals)
        if interval.tensor in inner and _crosses(instance, interval) and instance.can_recompute(interval)
    }
    tails = tuple(
        Decision.DISCARD if i in inner and instance.rebuildable[i] else Decision.KEEP for i in range(len(instance.tensors))
    )
    plan = Plan.keep_all(instance).with_intervals(decisions)
    return Plan(plan.intervals, tails)


def _is_inner(instance: Instance, i: int, blocks: Set[str]) -> bool:
    """Whether tensor `i` is written and read by forward operations of a single one of `blocks` only."""
    forward = {
        instance.operations[t].block
        for t in {*instance.writers[i], *instance.accesses[i]}
        if instance.operations[t].phase == "forward"
    }
    return len(forward) == 1 and forward <= blocks


def _crosses(instance: Instance, interval: IdleInterval) -> bool:
    """Whether an interval opens in the forward pass and ends in the backward pass."""
    return instance.operations[interval.start].phase == "forward" and instance.operations[interval.end].phase == "backward"


def _over_budget(instance: Instance) -> list[int]:
    """For each position how many operations before it are over budget when everything is kept."""
    counts = [0]
    for held in instance.keep_all_memory:
        counts.append(counts[-1] + (instance.budget is not None and held > instance.budget))
    return counts


def _fits(instance: Instance, plan: Plan) -> bool:
    try:
        place(instance, plan)
    except PlacementError:
        return False
    return True
