"""Steps that no model has: a plain chain to learn and test with, and random graphs with every trait that a step can have."""

from dataclasses import dataclass, field, replace
from random import Random
from typing import Annotated, Any, NamedTuple

from slackswap_opt.hardware import Hardware, get
from slackswap_opt.instance import Instance, Operation, Tensor
from slackswap_opt.instances.parameters import About, described


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What can be chosen about a chain; the meanings stand beside the fields."""

    blocks: Annotated[int, About("blocks, each with one activation", most=1_000_000)] = 10
    size: Annotated[int, About("bytes of an activation", least=0)] = 100_000_000
    duration: Annotated[int, About("nanoseconds of a forward operation; a backward one takes twice as long", least=0)] = (
        2_000_000
    )
    spread: Annotated[int, About("percent by which sizes and durations vary, up and down", least=0, most=100)] = 0
    seed: Annotated[int, About("of what varies", least=0)] = 0


CHAIN = Chain()


def chain(name: str, p: Chain, hardware: Hardware) -> Instance:
    """Build blocks in a row: each writes one activation, which the next block and its own backward operation read."""
    random = Random(p.seed)
    sizes = [_varied(random, p.size, p.spread) for _ in range(p.blocks)]
    durations = [_varied(random, p.duration, p.spread) for _ in range(p.blocks)]
    last = p.blocks - 1
    tensors = [Tensor(f"blocks.{i}.output", size, kind="activation") for i, size in enumerate(sizes)]
    tensors += [Tensor(f"blocks.{i}.output.grad", sizes[i], kind="gradient") for i in range(last)]
    operations = [
        Operation(f"blocks.{i}", duration, (i - 1,) if i else (), (i,), block=f"blocks.{i}")
        for i, duration in enumerate(durations)
    ]
    for i in range(last, -1, -1):
        reads = (i,) if i == last else (i, p.blocks + i)
        writes = (p.blocks + i - 1,) if i else ()
        operations.append(
            Operation(f"blocks.{i}.backward", 2 * durations[i], reads, writes, phase="backward", block=f"blocks.{i}")
        )
    return Instance(name, tuple(tensors), tuple(operations), hardware.link())


def _varied(random: Random, amount: int, percent: int) -> int:
    return amount * (100 + random.randint(-percent, percent)) // 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered:
    """What can be chosen about a random graph; the meanings stand beside the fields."""

    seed: Annotated[int, About("of everything", least=0)] = 0
    tensors: Annotated[int, About("tensors, gradients among them", least=2, most=1_000_000)] = 300
    in_place: Annotated[int, About("percent of forward operations that write in place", least=0, most=90)] = 12
    second_output: Annotated[int, About("percent of forward operations with two outputs", least=0, most=100)] = 15
    workspace: Annotated[int, About("percent of operations with a workspace", least=0, most=100)] = 20
    unswappable: Annotated[int, About("percent of activations that cannot be swapped", least=0, most=100)] = 6
    run_once: Annotated[int, About("percent of forward operations that cannot run again", least=0, most=100)] = 8


LAYERED = Layered()


def random_instance(seed: int, *, tensors: int = LAYERED.tensors, hardware: str | Hardware = "a100-40gb") -> Instance:
    """Return a random step of so many tensors; equal arguments give equal steps.

    A layered graph with skip connections, and the mirrored backward pass. Some operations have several outputs, write in place,
    need workspace or cannot run again; some tensors are read many times, are tiny or cannot be swapped.

    Raises
    ------
    InputError
        If the seed is not an integer of 0 or more, or there are fewer than two tensors.
    """
    known = described(LAYERED)
    chosen: dict[str, Any] = {name: known[name].check(value) for name, value in (("seed", seed), ("tensors", tensors))}
    return layered(f"random seed={seed}", replace(LAYERED, **chosen), get(hardware))


def layered(name: str, p: Layered, hardware: Hardware) -> Instance:
    """Build the random graph that `p` describes."""
    graph = _Graph(p, hardware, Random(p.seed))
    graph.forward()
    graph.backward()
    return Instance(name, tuple(graph.tensors), tuple(graph.operations), hardware.link())


class _Forward(NamedTuple):
    """A forward operation as the backward pass needs it; `inputs` and `outputs` have gradients, `masks` have none."""

    number: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    masks: tuple[int, ...] = ()


@dataclass(slots=True)
class _Graph:
    """A random step under construction.

    Attributes
    ----------
    unread
        Activations that nothing has read yet, oldest first: as many as the graph has branches.
    hubs
        Activations that any later operation may read again: skip connections and shared inputs.
    last_writer
        For each activation the last operation that writes it: no backward operation may ask for what stood there earlier.
    """

    p: Layered
    hardware: Hardware
    random: Random
    tensors: list[Tensor] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    forwards: list[_Forward] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    hubs: list[int] = field(default_factory=list)
    last_writer: dict[int, int] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    block: int = 0

    def forward(self) -> None:
        """Add forward operations until only gradients are missing from the wanted number of tensors."""
        left = self.p.tensors
        while left:
            if self.unread and self._chance(self.p.in_place):
                self._write_in_place()
                continue
            outputs = 2 if left >= 4 and self._chance(self.p.second_output) else 1
            left -= 2 * outputs
            masks = 1 if left == 1 or (left >= 3 and self._chance(10)) else 0
            left -= masks
            self._compute(outputs, masks)
        self._add(tuple(self.unread), (), ())

    def backward(self) -> None:
        """Add the mirrored backward operations."""
        for forward in reversed(self.forwards):
            arriving = [self.gradients[i] for i in forward.outputs]
            valid = [i for i in (*forward.inputs, *forward.outputs) if self.last_writer[i] <= forward.number]
            saved = [*(i for i in valid if self._chance(60)), *forward.masks]
            summed = [self.gradients[i] for i in forward.inputs if i in self.gradients]
            reads = tuple(dict.fromkeys((*arriving, *saved, *summed)))
            writes = tuple(self._gradient(i) for i in forward.inputs)
            of = self.operations[forward.number]
            duration, workspace = of.duration * self.random.randint(10, 30) // 10, self._workspace()
            self.operations.append(
                Operation(f"{of.name}.backward", duration, reads, writes, workspace, phase="backward", block=of.block)
            )

    def _compute(self, outputs: int, masks: int) -> None:
        waiting = len(self.unread)
        taken = 3 if waiting > 3 else self.random.randint(min(1, waiting), waiting)
        skipped = [self.random.choice(self.hubs)] if self.hubs and self._chance(30) else []
        inputs = tuple(dict.fromkeys([*self.unread[:taken], *skipped]))
        written = [self._activation("output", k) for k in range(outputs)]
        masked = [self._activation("mask", k) for k in range(masks)]
        self._add(inputs, tuple(written), tuple(masked))
        self.unread = [i for i in self.unread if i not in inputs] + written
        self.hubs += [i for i in written if self._chance(25)]

    def _write_in_place(self) -> None:
        i = self.random.choice(self.hubs if self.hubs and self._chance(25) else self.unread)
        others = [self.random.choice(self.unread)] if self._chance(30) else []
        inputs = tuple(dict.fromkeys((i, *others)))
        self._add(inputs, (i,), ())
        self.unread = [j for j in self.unread if j not in inputs] + [i]

    def _add(self, inputs: tuple[int, ...], outputs: tuple[int, ...], masks: tuple[int, ...]) -> None:
        number = len(self.operations)
        self.block += self._chance(16)
        self.forwards.append(_Forward(number, inputs, outputs, masks))
        self.last_writer.update(dict.fromkeys((*outputs, *masks), number))
        writes = (*outputs, *masks)
        moved = sum(self.tensors[i].size for i in (*inputs, *writes))
        duration = self.hardware.duration("elementwise", 0, moved << self.random.randint(0, 5))
        self.operations.append(
            Operation(
                f"operation-{number}",
                duration,
                inputs,
                writes,
                self._workspace(),
                recomputable=not self._chance(self.p.run_once),
                block=f"blocks.{self.block}",
            )
        )

    def _activation(self, kind: str, k: int) -> int:
        swappable = not self._chance(self.p.unswappable)
        self.tensors.append(Tensor(f"operation-{len(self.operations)}.{kind}-{k}", self._size(), swappable, kind))
        return len(self.tensors) - 1

    def _gradient(self, i: int) -> int:
        if i not in self.gradients:
            self.gradients[i] = len(self.tensors)
            self.tensors.append(Tensor(f"{self.tensors[i].name}.grad", self.tensors[i].size, kind="gradient"))
        return self.gradients[i]

    def _size(self) -> int:
        """From 1 KiB to 256 MiB, about as often in each octave, and mostly over 1 MiB."""
        octave = 1 << (self.random.randint(10, 19) if self._chance(15) else self.random.randint(20, 27))
        return octave + self.random.randrange(octave)

    def _workspace(self) -> int:
        return self._size() if self._chance(self.p.workspace) else 0

    def _chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent
