import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt import InputError, Instance, hardware, simulate
from slackswap_opt.instances import load, names, parameters, parse, random_instance
from slackswap_opt.schedule import Action, Instruction, Schedule

SMALL: dict[str, dict[str, int]] = {
    **{name: {"layers": 2, "batch": 1, "sequence": 64} for name in ("bert-large", "gpt2-xl", "llama-7b")},
    "resnet-50": {"batch": 2},
    "chain": {"spread": 50},
    "random": {"seed": 7},
}


def keep_all(instance: Instance) -> Schedule:
    """Run everything, and drop each tensor after its last access."""
    last: dict[int, list[int]] = {}
    for i, accesses in enumerate(instance.accesses):
        last.setdefault(accesses[-1], []).append(i)
    instructions = []
    for t in range(len(instance.operations)):
        instructions.append(Instruction(Action.RUN, t))
        instructions += [Instruction(Action.DROP, i) for i in last.get(t, [])]
    return Schedule.of(instance, instructions)


@pytest.mark.parametrize("name", names())
def test_every_model_is_a_step_that_the_judge_accepts(name: str) -> None:
    instance = load(name, **SMALL[name])
    timeline = simulate(instance, keep_all(instance))
    assert (timeline.peak, timeline.makespan) == (instance.peak, instance.ideal)
    assert Instance.from_json(instance.to_json()) == instance
    phases = [operation.phase for operation in instance.operations]
    assert phases == sorted(phases, reverse=True)
    assert {"forward", "backward"} == set(phases)
    assert all(tensor.kind for tensor in instance.tensors)


@pytest.mark.parametrize("name", names())
def test_other_hardware_changes_durations_and_link_alone(name: str) -> None:
    instance = load(name, **SMALL[name])
    other = load(name, hardware="gh200", **SMALL[name])
    assert other.fingerprint == instance.fingerprint
    assert other.link == hardware.get("gh200").link()
    if name != "chain":
        assert other.ideal < instance.ideal
    assert load(name, hardware=hardware.get("gh200"), **SMALL[name]) == other


def test_the_name_says_what_was_chosen() -> None:
    assert load("gpt2-xl", layers=1, batch=8).name == "gpt2-xl layers=1"
    assert load("chain", blocks=3, hardware="h100").name == "chain blocks=3 hardware=h100"


@pytest.mark.parametrize("name", names())
def test_every_default_can_be_spelled(name: str) -> None:
    known = parameters(name)
    spelled = {key: str(parameter.default) for key, parameter in known.items()}
    assert parse(name, spelled) == {key: parameter.default for key, parameter in known.items()}
    assert all(parameter.meaning for parameter in known.values())


def test_values_are_parsed_by_the_type_of_their_default() -> None:
    texts = {"batch": " 8 ", "dropout": "0", "head": "No", "attention": "eager", "hardware": "h100"}
    values = parse("gpt2-xl", texts)
    assert values == {"batch": 8, "dropout": 0.0, "head": False, "attention": "eager", "hardware": "h100"}
    assert [type(value) for value in values.values()] == [int, float, bool, str, str]
    assert load("gpt2-xl", layers=1, **values).link == hardware.get("h100").link()


REFUSED = [
    ("gpt3", {}, "unknown model 'gpt3'; choose from bert-large, gpt2-xl, llama-7b, resnet-50, chain, random"),
    (
        "chain",
        {"block": "3"},
        "unknown parameter 'block' of 'chain'; choose from blocks, size, duration, spread, seed, hardware",
    ),
    ("chain", {"blocks": "0"}, "'blocks' must be an integer from 1 to 1000000, got '0'"),
    ("chain", {"blocks": "2.5"}, "'blocks' must be an integer from 1 to 1000000, got '2.5'"),
    ("chain", {"blocks": ""}, "'blocks' must be an integer from 1 to 1000000, got ''"),
    ("chain", {"hardware": "a100"}, "'hardware' must be one of a100-40gb, a100-80gb, h100, h200, gh200, got 'a100'"),
    ("bert-large", {"attention": "Flash"}, "'attention' must be one of flash, eager, got 'Flash'"),
    ("bert-large", {"causal": "2"}, "'causal' must be true or false, got '2'"),
    ("bert-large", {"dropout": "nan"}, "'dropout' must be a number from 0 to 1, got 'nan'"),
]


@pytest.mark.parametrize(("name", "settings", "message"), REFUSED)
def test_texts_that_are_refused(name: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as error:
        parse(name, settings)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("gpt2-xl", {"layers": True}, "'layers' must be an integer from 1 to 100000, got True"),
        ("gpt2-xl", {"head": 1}, "'head' must be true or false, got 1"),
        ("gpt2-xl", {"batch": "8"}, "'batch' must be an integer from 1 to 9223372036854775807, got '8'"),
        ("gpt2-xl", {"dropout": 10**400}, "'dropout' must be a number from 0 to 1, got 1000"),
        ("gpt2-xl", {"dropout": float("inf")}, "'dropout' must be a number from 0 to 1, got inf"),
        ("gpt2-xl", {"heads": 24}, "'heads' must divide 'hidden', which is 1600, got 24"),
        ("gpt2-xl", {"hardware": 5}, "unknown hardware 5; choose from a100-40gb"),
        ("resnet-50", {"image": 8}, "'image' must be an integer from 32 to"),
        (
            "gpt2-xl",
            {"layers": 1, "batch": 2**62},
            "tensors[0].size ('embeddings.words') must be an integer from 0 to 9223372036854775807",
        ),
    ],
)
def test_values_that_are_refused(name: str, chosen: dict[str, bool | int | float | str], message: str) -> None:
    with pytest.raises(InputError) as error:
        load(name, **chosen)
    assert str(error.value).startswith(message)


@given(st.sampled_from(names()), st.text(max_size=8), st.text(max_size=8))
def test_nothing_but_an_input_error_comes_of_any_text(name: str, key: str, text: str) -> None:
    for known in (key, *parameters(name)):
        try:
            value = parse(name, {known: text})[known]
        except InputError:
            continue
        assert parameters(name)[known].check(value) == value


def test_a_random_instance_is_that_of_the_catalogue() -> None:
    assert (
        random_instance(3, tensors=40, hardware="h100").operations
        == load("random", seed=3, tensors=40, hardware="h100").operations
    )


def test_the_catalogue_loads_neither_torch_nor_a_solver() -> None:
    script = (
        "import sys, slackswap_opt.instances; print({'torch', 'pulp', 'ortools', 'highspy', 'matplotlib'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_load_knows_the_library_too() -> None:
    with pytest.raises(InputError, match=r"unknown model 'gpt2-xs'; did you mean 'gpt2-xl'[?] choose from .*, library/moe"):
        load("gpt2-xs")
