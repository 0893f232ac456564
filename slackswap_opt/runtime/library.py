"""Writes the library of profiled steps: ``python -m slackswap_opt.runtime.library FOLDER [NAME ...]``.

The files that the package ships are what this wrote into ``instances/library``. Each holds one step as `profile_fake` sees
it; what it is of stands beside it in ``index.json``.
"""

import gzip
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from slackswap_opt.files import InputError
from slackswap_opt.instance import Instance
from slackswap_opt.runtime.fake import profile_fake
from slackswap_opt.runtime.image_models import ResNet50, UNet
from slackswap_opt.runtime.language_models import BERT_LARGE, GPT2_XL, LLAMA_7B, SMALL_MOE, Bert, Gpt2, Llama, Shape
from slackswap_opt.runtime.profile import Profile

HARDWARE = "a100-40gb"
"""The device that the library's durations are for."""

Build = Callable[[], Callable[[], Any]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of the library.

    Attributes
    ----------
    model
        What it is of, in words.
    batch
        The shape of what the model is given.
    build
        Makes the step, all of it in 16 bits.
    """

    model: str
    batch: tuple[int, ...]
    build: Build


def language(model: type[nn.Module], shape: Shape, batch: int) -> Build:
    """Return what builds a step of a language model: the cross entropy of every token of random sequences."""

    def build() -> Callable[[], Any]:
        network = model(shape).bfloat16()
        tokens = torch.randint(0, shape.vocabulary, (batch, shape.length))
        return lambda: functional.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten()).backward()  # type: ignore[no-untyped-call]

    return build


def _resnet(batch: int) -> Build:
    def build() -> Callable[[], Any]:
        network = ResNet50().bfloat16().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = torch.randn(batch, 3, 224, 224, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        labels = torch.randint(0, 1000, (batch,))
        return lambda: functional.cross_entropy(network(images), labels).backward()  # type: ignore[no-untyped-call]

    return build


def _unet(batch: int) -> Build:
    def build() -> Callable[[], Any]:
        network = UNet().bfloat16()
        images, noise = (torch.randn(batch, 4, 64, 64, dtype=torch.bfloat16) for _ in range(2))
        when = torch.randint(0, 1000, (batch,))

        def step() -> None:
            loss: Tensor = functional.mse_loss(network(images, when), noise)
            loss.backward()  # type: ignore[no-untyped-call]

        return step

    return build


ENTRIES: dict[str, Entry] = {
    "bert-large": Entry("BERT-Large, masked language modelling", (32, 512), language(Bert, BERT_LARGE, 32)),
    "gpt2-xl": Entry("GPT-2 XL", (8, 1024), language(Gpt2, GPT2_XL, 8)),
    "llama-7b": Entry("Llama-7B", (4, 2048), language(Llama, LLAMA_7B, 4)),
    "moe": Entry("12 layers of width 1024 with 8 experts each, two for a token", (16, 1024), language(Llama, SMALL_MOE, 16)),
    "resnet-50": Entry("ResNet-50, channels last", (256, 3, 224, 224), _resnet(256)),
    "unet": Entry("U-Net of width 320 at four resolutions, as of latent diffusion", (16, 4, 64, 64), _unet(16)),
}


def write(name: str, folder: Path) -> Profile:
    """Profile one step, write its file and what it is of, and return the profile."""
    entry = ENTRIES[name]
    result = profile_fake(entry.build, HARDWARE, name=f"library/{name}")
    # No time stamp, so that the same step gives the same file.
    packed = gzip.compress(result.instance.to_json().encode(), compresslevel=9, mtime=0)
    (folder / f"{name}.json.gz").write_bytes(packed)
    index = folder / "index.json"
    entries = json.loads(index.read_text(encoding="utf-8")) if index.exists() else {}
    entries[name] = _provenance(entry, result.instance)
    lines = ",\n ".join(f"{json.dumps(key)}: {json.dumps(entries[key])}" for key in sorted(entries))
    index.write_text("{" + lines + "}\n", encoding="utf-8")
    return result


def _provenance(entry: Entry, instance: Instance) -> dict[str, Any]:
    return {
        "model": entry.model,
        "batch": list(entry.batch),
        "precision": "bfloat16",
        "hardware": HARDWARE,
        "torch": torch.__version__.partition("+")[0],
        "command": "python -m slackswap_opt.runtime.library",
        "operations": len(instance.operations),
        "tensors": len(instance.tensors),
        "peak": instance.peak,
        "ideal": instance.ideal,
    }


def main(arguments: Sequence[str]) -> int:
    """Write the steps named, or all, into a folder."""
    folder, *names = arguments or ["instances/library"]
    if unknown := [name for name in names if name not in ENTRIES]:
        raise InputError(f"unknown step '{unknown[0]}'; choose from {', '.join(ENTRIES)}")
    if not Path(folder).is_dir():
        raise InputError(f"{folder}: is no folder; expected one to write the library into")
    for name in names or ENTRIES:
        instance = write(name, Path(folder)).instance
        sys.stdout.write(f"{name}: {len(instance.operations)} operations, peak {instance.peak} bytes\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except InputError as error:
        sys.exit(f"error: {error}")
