"""How many instructions a second of processor time the judge takes: `python tests/benchmarks/bench_judge.py [layers]`.

The schedule has the shape of a transformer's: in each layer some activations are swapped, some recomputed, the rest kept, and
everything is dropped after its last use.
"""

import sys
import time
from typing import NamedTuple

from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import simulate


class Part(NamedTuple):
    """A forward operation of a layer, whose input is `x`: its tensors, its nanoseconds, and what its backward reads."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    duration: int
    saved: tuple[str, ...]


LAYER = (
    Part("norm1", ("x",), ("a", "a.stats"), 90_000, ("x", "a.stats")),
    Part("qkv", ("a",), ("qkv",), 900_000, ("a",)),
    Part("attention", ("qkv",), ("b", "b.lse"), 700_000, ("qkv", "b", "b.lse")),
    Part("projection", ("b",), ("c",), 300_000, ("b",)),
    Part("dropout1", ("c",), ("d", "d.mask"), 120_000, ("d.mask",)),
    Part("add1", ("x", "d"), ("y",), 120_000, ()),
    Part("norm2", ("y",), ("e", "e.stats"), 90_000, ("y", "e.stats")),
    Part("up", ("e",), ("up",), 1_200_000, ("e",)),
    Part("gelu", ("up",), ("f",), 200_000, ("up",)),
    Part("down", ("f",), ("g",), 1_200_000, ("f",)),
    Part("dropout2", ("g",), ("h", "h.mask"), 120_000, ("h.mask",)),
    Part("add2", ("y", "h"), ("z",), 120_000, ()),
)
SWAPPED, RECOMPUTED = {"qkv", "b", "up"}, {"a", "a.stats", "e", "e.stats", "f"}


def transformer(layers: int) -> Instance:
    """Return a step of `layers` layers, 24 operations each."""
    tensors: list[Tensor] = []
    operations: list[Operation] = []
    numbers: dict[tuple[int, str], int] = {}

    def write(layer: int, name: str, size: int) -> int:
        numbers[layer, name] = len(tensors)
        tensors.append(Tensor(f"{layer} {name}", size, kind=name))
        return numbers[layer, name]

    operations.append(Operation("input", 0, (), (write(-1, "z", 10_000_000),)))
    for layer in range(layers):
        numbers[layer, "x"] = numbers[layer - 1, "z"]
        for part in LAYER:
            reads = tuple(numbers[layer, name] for name in part.reads)
            writes = tuple(write(layer, name, 500_000 if "." in name else 10_000_000) for name in part.writes)
            operations.append(Operation(f"{layer} {part.name}", part.duration, reads, writes, 100_000))
    reads = (numbers[layers - 1, "z"],)
    for layer in reversed(range(layers)):
        for part in reversed(LAYER):
            saved = tuple(numbers[layer, name] for name in part.saved)
            name = f"{part.name} gradient"
            gradient = write(layer, name, 10_000_000)
            operations.append(
                Operation(f"{layer} {name}", 2 * part.duration, saved + reads, (gradient,), 200_000, False, "backward")
            )
            reads = (gradient,)
    return Instance("a transformer", tuple(tensors), tuple(operations), Link(25_000_000_000, 25_000_000_000, 10_000))


def partly_swapped(instance: Instance) -> Schedule:
    """Return a schedule that swaps and recomputes the tensors of those kinds, each fetched or re-run just before its use."""
    instructions: list[Instruction] = []
    kinds = [tensor.kind for tensor in instance.tensors]
    forward = sum(operation.phase == "forward" for operation in instance.operations)
    last_forward = [max((t for t in accesses if t < forward), default=0) for accesses in instance.accesses]
    away: set[int] = set()

    def fetch(i: int) -> None:
        if i in away and kinds[i] in SWAPPED:
            instructions.append(Instruction(Action.PREFETCH, i))
            away.remove(i)
        elif i in away:
            producer = instance.writers[i][0]
            for j in instance.operations[producer].reads:
                fetch(j)
            instructions.append(Instruction(Action.RUN, producer))
            away.difference_update(instance.operations[producer].writes)

    for t, operation in enumerate(instance.operations):
        for i in operation.reads:
            fetch(i)
        instructions.append(Instruction(Action.RUN, t))
        instructions += [Instruction(Action.OFFLOAD, i) for i in operation.writes if kinds[i] in SWAPPED]
        for i in sorted({*operation.reads, *operation.writes}):
            if instance.accesses[i][-1] == t:
                instructions.append(Instruction(Action.DROP, i))
            elif last_forward[i] == t and kinds[i] in SWAPPED | RECOMPUTED:
                instructions.append(Instruction(Action.EVICT if kinds[i] in SWAPPED else Action.DROP, i))
                away.add(i)
    return Schedule.of(instance, instructions)


def main() -> None:
    """Print the best of five runs."""
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    instance = transformer(layers)
    schedule = partly_swapped(instance)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        timeline = simulate(instance, schedule)
        seconds.append(time.process_time() - start)
    count, best = len(schedule.instructions), min(seconds)
    print(f"{layers} layers, {len(instance.operations)} operations, {count} instructions")
    print(f"retained {timeline.retained:.1%}, peak {timeline.peak / instance.peak:.1%} of keep-all")
    print(f"{best:.3f} s, {count / best:,.0f} instructions/s")


if __name__ == "__main__":
    main()
