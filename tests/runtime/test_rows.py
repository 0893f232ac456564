"""Where memory goes, on a step of four operations worked out by hand."""

from slackswap_opt.instance import Instance, Link, Operation, Tensor
from slackswap_opt.runtime.lifetimes import OperationFacts, TensorFacts
from slackswap_opt.runtime.rows import MemoryRow, memory_rows


def tensor(maker: int, path: str, fixed: str = "") -> TensorFacts:
    return TensorFacts(maker, 0, path, None, (), "float32", ((maker, maker + 1),), 4, (), (), (maker,), False, fixed)


# Two layers write an activation each (10 and 30 bytes), the loss 1 byte, and backward a gradient (5 bytes). The clock: the
# operations begin at 0, 7, 18 and 20 and the last ends at 23. Alive: 10, 40, 41, 46. The first activation is idle from 7 to 20,
# the second from 18 to 20.
INSTANCE = Instance(
    "by hand",
    (Tensor("a", 10, kind="activation"), Tensor("b", 30, kind="activation"), Tensor("loss", 1), Tensor("g", 5, False)),
    (
        Operation("layers.0.f", 7, writes=(0,)),
        Operation("layers.1.f", 11, writes=(1,), recomputable=False),
        Operation("loss", 2, writes=(2,)),
        Operation("back", 3, reads=(0, 1, 2), writes=(3,), recomputable=False, phase="backward"),
    ),
    Link(1, 1),
)
TENSORS = (tensor(0, "layers.0"), tensor(1, "layers.1"), tensor(2, ""), tensor(3, "", "it belongs to the backward pass"))
OPERATIONS = (
    OperationFacts("f", "layers.0", False, False, ""),
    OperationFacts("f", "layers.1", False, False, "the host reads its data"),
    OperationFacts("loss", "", False, False, ""),
    OperationFacts("back", "", False, False, "it belongs to the backward pass"),
)


def test_rows_are_by_module_and_kind() -> None:
    assert memory_rows(INSTANCE, TENSORS, OPERATIONS) == (
        MemoryRow("layers.*", "activation", 2, 40, 40, 18, (10 * 13 + 30 * 2) // 40, 40, 10, ""),
        MemoryRow("", "", 2, 6, 6, 5, 0, 1, 1, "it belongs to the backward pass"),
    )


def test_what_can_neither_move_nor_be_rebuilt_has_its_reason() -> None:
    stuck = (TENSORS[0], tensor(1, "layers.1", "it is saved as a Marked"), *TENSORS[2:])
    tensors = (INSTANCE.tensors[0], Tensor("b", 30, False, "activation"), *INSTANCE.tensors[2:])
    instance = Instance("stuck", tensors, INSTANCE.operations, INSTANCE.link)
    assert memory_rows(instance, stuck, OPERATIONS)[0].reason == "it is saved as a Marked"
    # Without a reason of its own, that of the operation that would have to run again counts.
    assert memory_rows(instance, TENSORS, OPERATIONS)[0].reason == "the host reads its data"


def test_numbers_in_names_stay() -> None:
    named = tuple(tensor(t, path) for t, path in enumerate(("Gpt2", "layers.3.norm_1", "layers.12.norm_1", "")))
    assert {row.path for row in memory_rows(INSTANCE, named, OPERATIONS)} == {"Gpt2", "layers.*.norm_1", ""}


def test_a_step_without_operations_has_no_rows() -> None:
    assert memory_rows(Instance("empty", (), (), Link(1, 1)), (), ()) == ()
