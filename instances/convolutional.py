"""ResNet-50 (He et al. 2015), storage by storage as eager PyTorch keeps torchvision's model: ReLU and sums in place."""

from dataclasses import dataclass
from typing import Annotated

from slackswap_opt.hardware import Hardware, Precision
from slackswap_opt.instance import Instance
from slackswap_opt.instances.layers import cross_entropy, linear
from slackswap_opt.instances.parameters import About
from slackswap_opt.instances.tape import Cost, Out, Tape, Value

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of the bottleneck blocks of each stage; a block puts out four times its width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNet:
    """What can be chosen about a ResNet-50; the meanings stand beside the fields."""

    batch: Annotated[int, About("images in a step")] = 256
    image: Annotated[int, About("height and width of an image", least=32)] = 224
    classes: Annotated[int, About("classes")] = 1000
    precision: Annotated[Precision, About("of activations and products")] = "16-bit"
    rerun_norms: Annotated[
        bool, About("let plans re-run batch norm, for a runtime that then spares its running statistics")
    ] = False


RESNET_50 = ResNet()


def resnet50(name: str, p: ResNet, hardware: Hardware) -> Instance:
    """Build the step of an image classifier."""
    m = _Model(p, hardware)
    m.tape.enter("stem", block=False)
    x = m.relu("relu", m.norm("norm", m.convolution("convolution", None, 3, 64, 7, 2)))
    x = m.pool("pool", x)
    channels = 64
    for stage, (width, blocks) in enumerate(STAGES, start=1):
        for number in range(blocks):
            m.tape.enter(f"layer{stage}.{number}", block=True)
            x = m.bottleneck(x, channels, width, 2 if stage > 1 and number == 0 else 1)
            channels = 4 * width
    m.tape.enter("head", block=False)
    size = p.batch * channels * m.tape.element
    x = m.tape.record("average", Cost("elementwise"), (x,), [Out("pooled", size)])
    cross_entropy(m.tape, linear(m.tape, "logits", x, p.batch, p.classes, "logits"), "eager")
    return m.tape.finish(name)


class _Model:
    """The operations of a ResNet over one tape; `side` is the height and width of the images at this point."""

    def __init__(self, p: ResNet, hardware: Hardware) -> None:
        self.p = p
        self.tape = Tape(hardware, p.precision)
        self.side = p.image

    # At the end of a line: what autograd saves there, in elements of the block's width at its input size, stride 1. What a norm
    # writes, ReLU overwrites: one storage, saved by ReLU and by the next convolution.

    def bottleneck(self, x: Value, channels: int, width: int, stride: int) -> Value:
        """Products of 1 x 1, 3 x 3 and 1 x 1 around a shortcut, which changes its width or size by a product of its own."""
        side = self.side
        y = self.convolution("convolution-1", x, channels, width, 1, 1)  #                      x 4
        y = self.relu("relu-1", self.norm("norm-1", y))  #                                      convolution 1
        y = self.convolution("convolution-2", y, width, width, 3, stride)  #                    ReLU 1
        y = self.relu("relu-2", self.norm("norm-2", y))  #                                      convolution 1
        y = self.convolution("convolution-3", y, width, 4 * width, 1, 1)  #                     ReLU 1
        y = self.norm("norm-3", y)  #                                                           convolution 4
        if channels != 4 * width or stride != 1:
            self.side = side
            x = self.norm("shortcut-norm", self.convolution("shortcut", x, channels, 4 * width, 1, stride))  # shortcut 4
        y = self.tape.add("sum", (y, x), "sum", in_place=True)
        return self.relu("relu-3", y)

    def convolution(self, name: str, x: Value | None, channels: int, width: int, kernel: int, stride: int) -> Value:
        """Record a convolution, which saves its input; without one it reads the images, which the step does not allocate."""
        images = self.p.batch * channels * self.side**2 * self.tape.element if x is None else 0
        self.side = -(-self.side // stride)
        pixels, weights = self.p.batch * self.side**2, channels * width * kernel**2
        cost = Cost("gemm", flops=2 * pixels * weights, extra=weights * self.tape.element + images)
        reads = () if x is None else (x,)
        return self.tape.record(name, cost, reads, [Out("convolution", pixels * width * self.tape.element)], saves=reads)

    def norm(self, name: str, x: Value) -> Value:
        """Record a batch norm, which reads its input twice, saves it and two numbers a channel, and updates statistics."""
        size = self.tape.size(x)
        width = size // (self.p.batch * self.side**2 * self.tape.element)
        outs = [Out("norm output", size), Out("mean", 4 * width, True), Out("deviation", 4 * width, True)]
        cost = Cost("elementwise", extra=size)
        return self.tape.record(name, cost, (x,), outs, saves=(x,), recomputable=self.p.rerun_norms)

    def relu(self, name: str, x: Value) -> Value:
        """Record a ReLU in place, which saves its result."""
        return self.tape.record(name, Cost("elementwise"), (x,), (), saves=(x,), in_place=True)

    def pool(self, name: str, x: Value) -> Value:
        """Record a maximum over 3 x 3 pixels at stride 2, which saves its input and an index of 8 bytes for each result."""
        elements = self.tape.size(x) // self.tape.element // self.side**2
        self.side = -(-self.side // 2)
        elements *= self.side**2
        outs = [Out("pooled", elements * self.tape.element), Out("indices", elements * 8, True)]
        return self.tape.record(name, Cost("elementwise"), (x,), outs, saves=(x,))
