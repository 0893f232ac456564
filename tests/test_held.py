"""What something outside the plan holds cannot leave meanwhile, and nobody who runs an operation again needs it."""

import pytest

from slackswap_opt.files import InputError
from slackswap_opt.instance import IdleInterval, Instance, Link, Operation, Tensor
from slackswap_opt.schedule import Action, Instruction, Schedule
from slackswap_opt.simulate import ScheduleError, simulate

# The user's code keeps a variable on x (4 bytes) while f, g and h run; y and z (2 bytes each) are the results of g and h.
#
#   f: -> x    g: x -> y    h: y -> z    loss: z    back: y    last: x
#
# x is alive through 0..5; it may be away at 3 and 4 only.
STEP = Instance(
    name="local variable",
    tensors=(Tensor("x", 4, held=((0, 2),)), Tensor("y", 2), Tensor("z", 2)),
    operations=(
        Operation("f", 10, writes=(0,)),
        Operation("g", 10, reads=(0,), writes=(1,)),
        Operation("h", 10, reads=(1,), writes=(2,)),
        Operation("loss", 10, reads=(2,), phase="backward", recomputable=False),
        Operation("back", 10, reads=(1,), phase="backward", recomputable=False),
        Operation("last", 10, reads=(0,), phase="backward", recomputable=False),
    ),
    link=Link(1_000_000_000, 1_000_000_000),
)


def judge(*instructions: tuple[str, int], instance: Instance = STEP) -> int:
    schedule = Schedule.of(instance, (Instruction(Action(action), target) for action, target in instructions))
    return simulate(instance, schedule).peak


def test_being_held_is_an_access() -> None:
    assert STEP.accesses[0] == (0, 1, 2, 5)
    assert STEP.idle_intervals == (IdleInterval(0, 2, 5), IdleInterval(1, 2, 4))


def test_held_bytes_count_in_what_an_operation_needs() -> None:
    assert STEP.need == (4, 6, 8, 2, 2, 4)
    assert STEP.keep_all_memory == (4, 6, 8, 8, 6, 4)


def test_a_held_tensor_may_leave_once_the_stretch_is_over() -> None:
    head = (("run", 0), ("run", 1), ("run", 2), ("offload", 0))
    assert judge(*head, ("evict", 0), ("run", 3), ("drop", 2), ("run", 4), ("drop", 1), ("prefetch", 0), ("run", 5)) == 8


def test_a_held_tensor_cannot_leave_before() -> None:
    with pytest.raises(ScheduleError, match=r"instruction 3 \(evict 0 'x'\).*held outside the plan until operation 2 has run"):
        judge(("run", 0), ("run", 1), ("offload", 0), ("evict", 0))
    with pytest.raises(ScheduleError, match=r"instruction 2 \(drop 0 'x'\).*held outside"):
        judge(("run", 0), ("run", 1), ("drop", 0))


def test_a_second_stretch_needs_the_tensor_back_where_it_begins() -> None:
    tensors = (Tensor("x", 4, held=((0, 2), (4, 5))), *STEP.tensors[1:])
    instance = Instance(STEP.name, tensors, STEP.operations, STEP.link)
    away = (("run", 0), ("run", 1), ("run", 2), ("offload", 0), ("evict", 0), ("run", 3))
    assert instance.idle_intervals[0] == IdleInterval(0, 2, 4)
    assert judge(*away, ("prefetch", 0), ("run", 4), ("run", 5), instance=instance) == 8
    with pytest.raises(ScheduleError, match=r"run 4 'back'.*begins to hold tensor 0 \('x'\), which is not resident"):
        judge(*away, ("run", 4), instance=instance)


def test_running_again_does_not_need_what_was_held() -> None:
    # h runs again for z while x is away: it reads y alone. y's own stretch is over, so it stays by choice.
    head = (("run", 0), ("run", 1), ("run", 2), ("drop", 2), ("offload", 0), ("evict", 0), ("run", 2), ("run", 3))
    assert judge(*head, ("drop", 2), ("run", 4), ("drop", 1), ("prefetch", 0), ("run", 5)) == 8


def test_running_again_does_not_need_the_last_state_of_what_was_held() -> None:
    # g changes x in place, and h only ran while x was held; h runs again with x away.
    operations = (STEP.operations[0], Operation("g", 10, reads=(0,), writes=(0, 1)), *STEP.operations[2:])
    instance = Instance(STEP.name, STEP.tensors, operations, STEP.link)
    head = (("run", 0), ("run", 1), ("run", 2), ("drop", 2), ("offload", 0), ("evict", 0), ("run", 2), ("run", 3))
    assert judge(*head, ("drop", 2), ("run", 4), ("drop", 1), ("prefetch", 0), ("run", 5), instance=instance) == 8


def test_files_keep_what_is_held_and_say_nothing_where_nothing_is() -> None:
    text = STEP.to_json()
    assert Instance.from_json(text) == STEP
    assert text.count('"held"') == 1


def test_the_fingerprint_covers_what_is_held() -> None:
    free = Instance(STEP.name, (Tensor("x", 4), *STEP.tensors[1:]), STEP.operations, STEP.link)
    assert free.fingerprint != STEP.fingerprint


@pytest.mark.parametrize("held", [((2, 1),), ((0, 6),), ((0, 2), (2, 3)), ((0, 1), (3,)), ((-1, 2),), (7,), ((0, True),)])
def test_stretches_must_be_pairs_in_order(held: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(InputError, match=r"tensors\[0\]\.held \('x'\) must hold pairs"):
        Instance("bad", (Tensor("x", 4, held=held), *STEP.tensors[1:]), STEP.operations, STEP.link)


def test_nothing_is_held_before_it_exists() -> None:
    tensors = (STEP.tensors[0], Tensor("y", 2, held=((0, 1),)), STEP.tensors[2])
    with pytest.raises(InputError, match=r"tensors\[1\]\.held: 'y' is held before any operation has written it"):
        Instance("bad", tensors, STEP.operations, STEP.link)


def test_a_file_says_where_a_stretch_is_wrong() -> None:
    text = STEP.to_json().replace('"held": [[0, 2]]', '"held": 3')
    with pytest.raises(InputError, match=r"tensors\[0\]\.held must be a list of pairs, got 3"):
        Instance.from_json(text)
