"""Training steps to plan: models by the count of their storages, random graphs, saved profiles.

Every figure of a model follows from its parameters: ``load("gpt2-xl", batch=4, hardware="h100")``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from slackswap_opt import hardware as devices
from slackswap_opt.files import InputError, check_type, shown
from slackswap_opt.hardware import Hardware
from slackswap_opt.instance import Instance
from slackswap_opt.instances import saved
from slackswap_opt.instances.convolutional import RESNET_50, resnet50
from slackswap_opt.instances.parameters import Parameter, Value, described, look_up
from slackswap_opt.instances.synthetic import CHAIN, LAYERED, chain, layered, random_instance
from slackswap_opt.instances.transformers import BERT_LARGE, GPT2_XL, LLAMA_7B, bert, gpt2, llama

__all__ = ["LIBRARY", "Parameter", "library", "load", "names", "parameters", "parse", "random_instance"]


@dataclass(frozen=True, slots=True)
class _Model:
    """A name's default parameters, and what builds a step from its name, parameters and hardware."""

    defaults: Any
    build: Callable[[str, Any, Hardware], Instance]


_MODELS = {
    "bert-large": _Model(BERT_LARGE, bert),
    "gpt2-xl": _Model(GPT2_XL, gpt2),
    "llama-7b": _Model(LLAMA_7B, llama),
    "resnet-50": _Model(RESNET_50, resnet50),
    "chain": _Model(CHAIN, chain),
    "random": _Model(LAYERED, layered),
}
LIBRARY = "library/"
"""What the name of a profiled step of the library begins with."""
_HARDWARE = Parameter("hardware", "a100-40gb", "device and link that durations and copies are for", devices.names())


def names() -> tuple[str, ...]:
    """Return the names of models, each of which has `parameters`."""
    return tuple(_MODELS)


def library() -> tuple[str, ...]:
    """Return the names of profiled steps, which have none: ``library/NAME``."""
    return tuple(f"{LIBRARY}{name}" for name in saved.names())


def parameters(name: str) -> dict[str, Parameter]:
    """Return what can be chosen about a model, by name: each with its default, its meaning and its range.

    Raises
    ------
    InputError
        If there is no model of that name.
    """
    return {**described(_model(name).defaults), "hardware": _HARDWARE}


def parse(name: str, settings: Mapping[str, str]) -> dict[str, Value]:
    """Return the values that the texts of `settings` spell for parameters of a model, as `load` takes them.

    Raises
    ------
    InputError
        If there is no such model or parameter, or a text spells no value that it can have.
    """
    known = parameters(name)
    return {key: look_up(name, known, key).parse(text) for key, text in settings.items()}


def load(name: str, *, hardware: Value | Hardware = "a100-40gb", **chosen: Value) -> Instance:
    """Return the training step of a model.

    Parameters
    ----------
    name
        One of `names` or of `library`.
    hardware
        The device and link that durations and copies are for, by name or as they are.
    **chosen
        Values of `parameters`; the others have their defaults.

    Raises
    ------
    InputError
        If there is no such model, parameter or hardware, or a value is out of its range.

    Examples
    --------
    >>> load("chain", blocks=3).peak
    400000000
    """
    check_type(name, str, "the name of a model", "a string")
    if name.startswith(LIBRARY):
        if chosen or devices.get(hardware).name != _HARDWARE.default:
            asked = shown({**chosen, "hardware": devices.get(hardware).name})
            raise InputError(f"'{name}' is a profile for {_HARDWARE.default} and takes no parameters, got {asked}")
        return saved.load_saved(name.removeprefix(LIBRARY))
    model, known = _model(name, library()), parameters(name)
    values = {key: look_up(name, known, key).check(value) for key, value in chosen.items()}
    device = devices.get(hardware)
    changes = [f"{key}={value}" for key, value in values.items() if value != known[key].default]
    if device.name != _HARDWARE.default:
        changes.append(f"hardware={device.name}")
    return model.build(" ".join([name, *changes]), replace(model.defaults, **values), device)


def _model(name: str, also: tuple[str, ...] = ()) -> _Model:
    if name not in _MODELS:
        choices = [*names(), *also]
        near = get_close_matches(str(name), choices, 1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise InputError(f"unknown model {shown(name)}; {hint}choose from {', '.join(choices)}")
    return _MODELS[name]
