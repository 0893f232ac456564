"""A step under construction: forward operations are recorded, and backward ones follow from them as in autograd."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from slackswap_opt.hardware import Hardware, Precision, Work
from slackswap_opt.instance import Instance, Operation, Phase, Tensor

BACKWARD: dict[Work, tuple[int, int]] = {"gemm": (4, 2), "attention": (5, 1), "elementwise": (3, 1)}
"""Halves of the forward work that a backward operation takes, and its kernels.

Products take 2 (one for each operand), fused attention 2.5 (it repeats the scores), the rest 1.5 (three tensors for two).
"""


class Value(NamedTuple):
    """A tensor, or a view of one of its equal parts. Views share the storage and have gradients of their own."""

    tensor: int
    part: int = 0
    parts: int = 1


class Cost(NamedTuple):
    """What bounds a forward operation: its floating-point operations, and bytes moved besides its tensors (parameters)."""

    work: Work
    flops: int = 0
    extra: int = 0


class Out(NamedTuple):
    """A tensor that an operation allocates: its kind, its size in bytes, and whether the backward operation reads it."""

    kind: str
    size: int
    saved: bool = False


class _Node(NamedTuple):
    """What autograd remembers of a forward operation, and how it turns gradients of `outputs` into those of `inputs`.

    ``"run"``: by an operation; ``"pass"``: unchanged, as a sum and a copy do; ``"join"``: those of views become one tensor.
    """

    rule: Literal["run", "pass", "join"]
    name: str
    block: str | None
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    saved: tuple[int, ...] = ()
    duration: int = 0
    workspace: int = 0


@dataclass(slots=True)
class Tape:
    """Records one step.

    Attributes
    ----------
    hardware, precision
        What the step runs on, and in.
    scope, block
        The prefix of names from here on, and the layer that operations from here on belong to, or None.
    """

    hardware: Hardware
    precision: Precision = "16-bit"
    scope: str = ""
    block: str | None = None
    _tensors: list[Tensor] = field(default_factory=list)
    _operations: list[Operation] = field(default_factory=list)
    _nodes: list[_Node] = field(default_factory=list)
    _gradients: dict[Value, int] = field(default_factory=dict)
    _gradient_names: dict[str, int] = field(default_factory=dict)

    @property
    def element(self) -> int:
        """Bytes of one element."""
        return 2 if self.precision == "16-bit" else 4

    def enter(self, scope: str, *, block: bool) -> None:
        """Name what follows after `scope`; `block` says whether that is a layer, to which its operations belong."""
        self.scope = scope
        self.block = scope if block else None

    def size(self, *values: Value) -> int:
        """Return the bytes of `values` together."""
        return sum(self._tensors[value.tensor].size // value.parts for value in values)

    def record(
        self,
        name: str,
        cost: Cost,
        reads: Sequence[Value],
        outs: Sequence[Out],
        *,
        saves: Sequence[Value] = (),
        in_place: bool = False,
        recomputable: bool = True,
        workspace: int = 0,
    ) -> Value:
        """Record a forward operation and what its backward operation will be; return its output.

        Parameters
        ----------
        name
            The last part of its name and of its output's; other `outs` have their kind besides.
        cost
            What bounds its duration besides the bytes that it reads and writes.
        reads
            What it reads; each gets a gradient.
        outs
            What it allocates. The first is the output, which alone has a gradient.
        saves
            Those of `reads` that the backward operation reads too.
        in_place
            It allocates nothing: it writes its first read, which is then its output.
        workspace
            Bytes alive while the backward operation runs.
        """
        writes = [reads[0]] if in_place else [self._allocate(name, k, out) for k, out in enumerate(outs)]
        moved = self.size(*reads, *writes) + cost.extra
        self._append(self._named(name), cost.work, cost.flops, moved, reads, writes, recomputable=recomputable)
        halves, kernels = BACKWARD[cost.work]
        saved = (*saves, *(value for value, out in zip(writes, outs, strict=False) if out.saved))
        self._nodes.append(
            _Node(
                "run",
                self._named(name),
                self.block,
                tuple(reads),
                (writes[0],),
                _storages(saved),
                self._duration(cost.work, cost.flops * halves // 2, moved * halves // 2, kernels),
                workspace,
            )
        )
        return writes[0]

    def add(self, name: str, reads: Sequence[Value], kind: str, *, in_place: bool = False) -> Value:
        """Record the sum of two values or the copy of one, through which gradients pass unchanged; return it."""
        total = reads[0] if in_place else self._allocate(name, 0, Out(kind, self.size(reads[0])))
        self._append(self._named(name), "elementwise", 0, self.size(*reads, total), reads, (total,))
        self._nodes.append(_Node("pass", self._named(name), self.block, tuple(reads), (total,)))
        return total

    def split(self, whole: Value, parts: int) -> tuple[Value, ...]:
        """Return views of the equal parts of a tensor; their gradients are joined by an operation of its own."""
        views = tuple(Value(whole.tensor, part, parts) for part in range(parts))
        self._nodes.append(_Node("join", self._tensors[whole.tensor].name, self.block, (whole,), views))
        return views

    def finish(self, name: str) -> Instance:
        """Record the backward pass and return the step.

        The operation recorded last makes the first gradient by itself. Backward operations run in the reverse of the forward
        order, and where a value had several readers, an addition of its own takes in each further gradient at once: both as
        PyTorch's engine has it on one device. Gradients of parameters are no tensors here.
        """
        for node in reversed(self._nodes):
            arriving = [self._gradients.pop(value) for value in node.outputs if value in self._gradients]
            for value, gradient in zip(node.inputs, self._passed_on(node, arriving), strict=True):
                earlier = self._gradients.get(value)
                self._gradients[value] = (
                    gradient if earlier is None else self._combine("accumulate", node, value, (earlier, gradient))
                )
        return Instance(name, tuple(self._tensors), tuple(self._operations), self.hardware.link())

    def _passed_on(self, node: _Node, arriving: Sequence[int]) -> Sequence[int]:
        if node.rule == "pass":
            return [arriving[0]] * len(node.inputs)
        if node.rule == "join":
            return [self._combine("join", node, node.inputs[0], arriving)]
        gradients = [self._gradient_of(value) for value in node.inputs]
        reads = (*arriving, *node.saved)
        self._operations.append(
            Operation(
                f"{node.name}.backward",
                node.duration,
                reads,
                tuple(gradients),
                node.workspace,
                phase="backward",
                block=node.block,
            )
        )
        return gradients

    def _combine(self, verb: str, node: _Node, value: Value, gradients: Sequence[int]) -> int:
        whole = self._gradient_of(value)
        reads = [Value(gradient) for gradient in gradients]
        name = f"{self._tensors[whole].name}.{verb}"
        self._append(name, "elementwise", 0, self.size(*reads, Value(whole)), reads, (Value(whole),), "backward", node.block)
        return whole

    def _gradient_of(self, value: Value) -> int:
        name = f"{self._tensors[value.tensor].name}.grad"
        count = self._gradient_names[name] = self._gradient_names.get(name, 0) + 1
        self._tensors.append(Tensor(name if count == 1 else f"{name}.{count}", self.size(value), kind="gradient"))
        return len(self._tensors) - 1

    def _allocate(self, name: str, position: int, out: Out) -> Value:
        suffix = f".{out.kind.replace(' ', '-')}" if position else ""
        self._tensors.append(Tensor(self._named(name) + suffix, out.size, kind=out.kind))
        return Value(len(self._tensors) - 1)

    def _named(self, name: str) -> str:
        return f"{self.scope}.{name}"

    def _append(
        self,
        name: str,
        work: Work,
        flops: int,
        moved: int,
        reads: Iterable[Value],
        writes: Iterable[Value],
        phase: Phase = "forward",
        block: str | None = None,
        *,
        recomputable: bool = True,
    ) -> None:
        operation = Operation(
            name,
            self._duration(work, flops, moved),
            _storages(reads),
            _storages(writes),
            recomputable=recomputable,
            phase=phase,
            block=self.block if phase == "forward" else block,
        )
        self._operations.append(operation)

    def _duration(self, work: Work, flops: int, moved: int, launches: int = 1) -> int:
        return self.hardware.duration(work, flops, moved, self.precision, launches=launches)


def _storages(values: Iterable[Value]) -> tuple[int, ...]:
    """The tensors of `values`, each once."""
    return tuple(dict.fromkeys(value.tensor for value in values))
