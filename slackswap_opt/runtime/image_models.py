"""Image models of the shapes that the library holds, in plain PyTorch."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Bottleneck(nn.Module):
    """Three convolutions, the middle one strided, and a sum around them (He et al. 2015, the variant of later libraries)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv_1, self.norm_1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv_2, self.norm_2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv_3, self.norm_3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        y = self.relu(self.norm_1(self.conv_1(x)))
        y = self.relu(self.norm_2(self.conv_2(y)))
        y = self.norm_3(self.conv_3(y))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.relu(y)  # type: ignore[no-any-return]


class ResNet50(nn.Module):
    """Sixteen bottleneck blocks in four stages."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        inputs = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for number in range(count):
                blocks.append(Bottleneck(inputs, width, stride if number == 0 else 1))
                inputs = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each class."""
        x = self.blocks(self.pool(self.relu(self.norm(self.conv(x)))))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Two convolutions behind group norms, and a sum around them; the time of diffusion enters in between."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm_2, self.conv_2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time, self.dropout = nn.Linear(time, outputs), nn.Dropout(0.1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return the block's features."""
        y = self.conv_1(functional.silu(self.norm_1(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        y = self.conv_2(self.dropout(functional.silu(self.norm_2(y))))
        return self.shortcut(x) + y  # type: ignore[no-any-return]


class PixelAttention(nn.Module):
    """Attention of all pixels to all pixels, with a sum around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.inputs, self.output = nn.GroupNorm(32, width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        tokens = self.inputs(self.norm(x).flatten(2).transpose(1, 2)).unflatten(-1, (3, self.heads, -1))
        query, key, value = tokens.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return x + self.output(mixed.transpose(1, 2).flatten(2)).transpose(1, 2).view_as(x)  # type: ignore[no-any-return]


class UNet(nn.Module):
    """A noise predictor of diffusion: down and up through four resolutions, features kept on the way down for the way up."""

    def __init__(self, channels: int = 4, width: int = 320, multiples: tuple[int, ...] = (1, 2, 4, 4)) -> None:
        super().__init__()
        time, widths = 4 * width, [width * multiple for multiple in multiples]
        self.features = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.down, self.up, kept = nn.ModuleList(), nn.ModuleList(), [width]
        inputs = width
        for level, outputs in enumerate(widths):
            for _ in range(2):
                self.down.append(self._stage(inputs, outputs, time, attends=level > 0))
                inputs = outputs
                kept.append(inputs)
            if level < len(widths) - 1:
                self.down.append(nn.Conv2d(inputs, inputs, 3, 2, 1))
                kept.append(inputs)
        self.middle = self._stage(inputs, inputs, time, attends=True)
        for level, outputs in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.up.append(self._stage(inputs + kept.pop(), outputs, time, attends=level > 0))
                inputs = outputs
            if level:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(inputs, inputs, 3, padding=1)))
        self.last = nn.Sequential(nn.GroupNorm(32, inputs), nn.SiLU(), nn.Conv2d(inputs, channels, 3, padding=1))

    @staticmethod
    def _stage(inputs: int, outputs: int, time: int, *, attends: bool) -> nn.Module:
        attention = PixelAttention(outputs, outputs // 40) if attends else nn.Identity()
        return nn.ModuleList((Residual(inputs, outputs, time), attention))

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        """Return the noise in images `x` at times `when`."""
        frequencies = 10_000 ** -torch.linspace(0, 1, self.features // 2, device=x.device)
        angles = torch.outer(when.float(), frequencies)
        time = self.time(torch.cat((angles.cos(), angles.sin()), -1).to(x.dtype))
        kept = [x := self.first(x)]
        for stage in self.down:
            x = self._run(stage, x, time)
            kept.append(x)
        x = self._run(self.middle, x, time)
        for stage in self.up:
            if isinstance(stage, nn.ModuleList):
                x = torch.cat((x, kept.pop()), 1)
            x = self._run(stage, x, time)
        return self.last(x)  # type: ignore[no-any-return]

    @staticmethod
    def _run(stage: nn.Module, x: Tensor, time: Tensor) -> Tensor:
        if isinstance(stage, nn.ModuleList):
            return stage[1](stage[0](x, time))  # type: ignore[no-any-return]
        return stage(x)  # type: ignore[no-any-return]
