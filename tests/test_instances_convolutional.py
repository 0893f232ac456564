from dataclasses import replace

import pytest
import torch
from torch import nn

from slackswap_opt.hardware import get
from slackswap_opt.instances import load

STATISTICS = {"mean", "deviation"}


class Bottleneck(nn.Module):
    """The block as torchvision has it: ReLU in place, and the shortcut added in place."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(channels, width, 1, bias=False),
                nn.Conv2d(width, width, 3, stride, 1, bias=False),
                nn.Conv2d(width, 4 * width, 1, bias=False),
            ]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(w) for w in (width, width, 4 * width)])
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if channels != 4 * width or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norms[0](self.convolutions[0](x)))
        y = self.relu(self.norms[1](self.convolutions[1](y)))
        y = self.norms[2](self.convolutions[2](y))
        y += self.shortcut(x)
        result: torch.Tensor = self.relu(y)
        return result


def blocks() -> list[nn.Module]:
    channels = 64
    made: list[nn.Module] = []
    for stage, (width, number) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for block in range(number):
            made.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    return made


@pytest.mark.parametrize("image", [64, 96])
def test_the_net_saves_what_eager_pytorch_does(image: int) -> None:
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    net = nn.Sequential(*stem, *blocks(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 10))
    images, labels = torch.randn(2, 3, image, image), torch.tensor([3, 5])
    storages: dict[int, tuple[torch.Tensor, int]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = (tensor, tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = nn.functional.cross_entropy(net(images), labels)
    outside = [*net.parameters(), *net.buffers(), images, labels]
    for tensor in outside:
        storages.pop(tensor.untyped_storage().data_ptr(), None)

    instance = load("resnet-50", batch=2, image=image, classes=10, precision="fp32")
    made = {i for operation in instance.operations if operation.phase == "forward" for i in operation.writes}
    read = {i for operation in instance.operations if operation.phase == "backward" for i in operation.reads}
    # The log-likelihood saves its total weight besides, one number.
    expected = sorted([4, *(instance.tensors[i].size for i in made & read)])
    assert sorted(size for _, size in storages.values()) == expected
    assert loss.requires_grad


def test_a_norm_is_re_run_only_where_that_is_asked_for() -> None:
    plain, asked = load("resnet-50", batch=1), load("resnet-50", batch=1, rerun_norms=True)
    for instance in (plain, asked):
        rebuildable = {tensor.name for tensor, can in zip(instance.tensors, instance.rebuildable, strict=True) if can}
        assert "layer2.1.convolution-2" in rebuildable
        # Norm, ReLU in place; norm, sum in place, ReLU in place.
        groups = {"stem.norm", "layer2.1.norm-1", "layer2.1.norm-3", "layer2.0.shortcut-norm"}
        assert groups & rebuildable == (groups if instance is asked else set())
    assert sum(asked.rebuildable) == len(asked.tensors)


def test_what_a_block_writes_in_place() -> None:
    instance = load("resnet-50", batch=1)
    writers = {
        tensor.name: [instance.operations[t].name.split(".")[-1] for t in writers]
        for tensor, writers in zip(instance.tensors, instance.writers, strict=True)
    }
    assert writers["layer1.0.norm-1"] == ["norm-1", "relu-1"]
    assert writers["layer1.0.norm-3"] == ["norm-3", "sum", "relu-3"]
    assert writers["layer1.0.shortcut-norm"] == ["shortcut-norm"]


def test_sizes_by_hand() -> None:
    instance = load("resnet-50", batch=2)
    sizes = {tensor.name: tensor.size for tensor in instance.tensors}
    assert sizes["stem.norm"] == 2 * 64 * 112 * 112 * 2
    assert sizes["stem.pool"] == 2 * 64 * 56 * 56 * 2
    assert sizes["stem.pool.indices"] == 2 * 64 * 56 * 56 * 8
    assert sizes["layer3.0.convolution-1"] == 2 * 256 * 28 * 28 * 2
    assert sizes["layer3.0.convolution-2"] == 2 * 256 * 14 * 14 * 2
    assert sizes["layer3.0.shortcut"] == 2 * 1024 * 14 * 14 * 2
    assert sizes["layer4.2.norm-3.mean"] == 4 * 2048
    assert sizes["head.logits"] == 2 * 1000 * 2
    blocks = {operation.block for operation in instance.operations} - {None}
    assert len(blocks) == 16


def test_the_net_has_the_figures_of_the_documentation() -> None:
    instance = load("resnet-50")
    assert instance.peak == pytest.approx(11.23e9, rel=1e-3)
    assert instance.ideal == pytest.approx(107.7e6, rel=1e-3)


def test_products_of_the_net() -> None:
    # The net is known for 4.1 billion multiplications a 224 x 224 image: twice that in operations forward, at a rate at which
    # nothing but products takes time.
    slow = replace(get("a100-40gb"), flops_16=10**12, gemm=100, launch=0, memory_bandwidth=10**18)
    instance = load("resnet-50", batch=1, hardware=slow)
    forward = sum(operation.duration for operation in instance.operations if operation.phase == "forward")
    assert forward == pytest.approx(2 * 4.09e9 / 1e12 * 1e9, rel=0.01)
