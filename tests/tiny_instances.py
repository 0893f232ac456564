"""Hypothesis strategies for instances that are small enough for exhaustive search."""

from dataclasses import replace

from hypothesis import strategies as st

from slackswap_opt.instance import Instance, Link, Operation, Tensor


@st.composite
def tiny_instances(draw: st.DrawFn, tensors: int = 4, operations: int = 7) -> Instance:
    """Steps with shared parents, several outputs, in-place writers, held tensors, and reads in any phase, short of memory."""
    rows: list[tuple[set[int], list[int]]] = []
    made = 0
    for count in draw(st.lists(st.sampled_from((1, 1, 1, 2)), min_size=2, max_size=max(2, operations // 2))):
        count = min(count, tensors - made)
        reads = draw(st.sets(st.integers(0, made - 1), max_size=2)) if made else set[int]()
        again = [min(reads)] if reads and draw(st.integers(0, 4)) == 4 else []
        rows.append((reads, [*again, *range(made, made + count)]))
        made += count
    last = list(range(made))[::-1]
    while len(rows) < operations and last:
        more = draw(st.sets(st.integers(0, made - 1), max_size=1))
        rows.append(({last.pop(draw(st.integers(0, min(1, len(last) - 1))))} | more, []))
    flags = st.integers(0, 7).map(bool)
    instance = Instance(
        "tiny",
        tuple(Tensor(f"x{i}", draw(st.integers(1, 8)) if draw(flags) else 0, draw(flags)) for i in range(made)),
        tuple(
            Operation(
                f"o{t}", draw(st.integers(0, 9)), tuple(sorted(reads)), tuple(writes), draw(st.integers(0, 1)), draw(flags)
            )
            for t, (reads, writes) in enumerate(rows)
        ),
        draw(links()),
    )
    if not draw(flags):
        i = draw(st.integers(0, made - 1))
        first = draw(st.integers(instance.accesses[i][0], len(rows) - 1))
        stretch = (first, min(first + draw(st.integers(0, 2)), len(rows) - 1))
        tensors_ = list(instance.tensors)
        tensors_[i] = replace(tensors_[i], held=(stretch,))
        instance = replace(instance, tensors=tuple(tensors_))
    spare = max(instance.peak - instance.largest_need - 1, 0)
    return instance.with_budget(instance.largest_need + draw(st.integers(0, spare)))


def links() -> st.SearchStrategy[Link]:
    """Links of a quarter to two bytes a nanosecond, and none to three nanoseconds of latency."""
    rates = st.sampled_from((250_000_000, 500_000_000, 10**9, 2 * 10**9))
    return st.builds(Link, rates, rates, st.integers(0, 3), st.booleans())
