"""Small steps: drawn in a given size, written as rows, and with one thing less."""

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import strategies as st

from slackswap_opt.instance import Instance, Operation, Tensor
from tests.handmade import LINK

NAMES = "abcde"


@st.composite
def steps(draw: st.DrawFn, tensors: int, operations: int, flags: bool) -> Instance:
    """Steps of just so many tensors and operations, short of memory; with `flags` not all can be moved, nor run again."""
    flag = st.booleans() if flags else st.just(False)
    makers = sorted(draw(st.lists(st.integers(0, operations - 1), min_size=tensors, max_size=tensors)))
    rows = []
    for t in range(operations):
        made = sum(maker < t for maker in makers)
        reads = draw(st.sets(st.integers(0, made - 1), max_size=2)) if made else set[int]()
        writes = tuple(i for i, maker in enumerate(makers) if maker == t)
        duration, workspace = draw(st.integers(1, 9)), draw(st.integers(0, 4))
        rows.append(Operation(f"o{t}", duration, tuple(sorted(reads)), writes, workspace, not draw(flag)))
    sized = [Tensor(NAMES[i], draw(st.integers(1, 8)), not draw(flag)) for i in range(tensors)]
    instance = Instance("step", tuple(sized), tuple(rows), LINK)
    least = max(instance.floor)
    return instance.with_budget(least + draw(st.integers(0, max(0, instance.peak - least - 1))))


def spelled(instance: Instance) -> list[str]:
    """Return the operations as `tests.handmade.step` reads them, under names by place."""
    lines, written = [], set[int]()
    for t, operation in enumerate(instance.operations):
        words = ["fghijklmnopqrst"[t] + "!" * (not operation.recomputable), str(operation.duration)]
        words += [f"+{operation.workspace}"] * (operation.workspace > 0)
        words[-1] += ":"
        words += [NAMES[i] for i in operation.reads] + ["->"]
        for i in operation.writes:
            tensor = instance.tensors[i]
            words.append(NAMES[i] if i in written else f"{NAMES[i]}={tensor.size}{'!' * (not tensor.swappable)}")
        written.update(operation.writes)
        lines.append(" ".join(words))
    return lines


def smaller(instance: Instance) -> Iterator[Instance]:
    """Yield what is left without one operation, tensor, read or flag, or with one number less by 1.

    A tensor that only its writer uses may become workspace.
    """
    operations, tensors = instance.operations, instance.tensors
    for t in range(len(operations)):
        yield from _without(instance, {i for i, writers in enumerate(instance.writers) if writers[0] == t}, {t})
    for i in range(len(tensors)):
        yield from _without(instance, {i}, set())
        if len(instance.accesses[i]) == 1:
            (t,) = instance.accesses[i]
            more = replace(operations[t], workspace=operations[t].workspace + tensors[i].size)
            wider = replace(instance, operations=(*operations[:t], more, *operations[t + 1 :]))
            yield from _without(wider, {i}, set())
    for t, operation in enumerate(operations):
        less: list[Operation] = [replace(operation, recomputable=True)] if not operation.recomputable else []
        less += [replace(operation, reads=tuple(j for j in operation.reads if j != i)) for i in operation.reads]
        less += [replace(operation, duration=operation.duration - 1)] if operation.duration > 1 else []
        less += [replace(operation, workspace=operation.workspace - 1)] if operation.workspace else []
        yield from (replace(instance, operations=(*operations[:t], one, *operations[t + 1 :])) for one in less)
    for i, tensor in enumerate(tensors):
        fewer = [replace(tensor, swappable=True)] if not tensor.swappable else []
        fewer += [replace(tensor, size=tensor.size - 1)] if tensor.size > 1 else []
        yield from (replace(instance, tensors=(*tensors[:i], one, *tensors[i + 1 :])) for one in fewer)
    if instance.budget:
        yield instance.with_budget(instance.budget - 1)


def _without(instance: Instance, tensors: set[int], operations: set[int]) -> Iterator[Instance]:
    """Yield the instance without some tensors and operations, under budgets that are lower by up to what that frees."""
    left = [i for i in range(len(instance.tensors)) if i not in tensors]
    rows = [
        replace(
            o,
            reads=tuple(left.index(i) for i in o.reads if i in left),
            writes=tuple(left.index(i) for i in o.writes if i in left),
        )
        for t, o in enumerate(instance.operations)
        if t not in operations
    ]
    if rows:
        rest = Instance(instance.name, tuple(instance.tensors[i] for i in left), tuple(rows), instance.link)
        freed = sum(instance.tensors[i].size for i in tensors)
        yield from (
            rest.with_budget(budget) for budget in range(max(0, (instance.budget or 0) - freed), (instance.budget or 0) + 1)
        )
