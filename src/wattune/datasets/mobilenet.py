"""MobileNetV2: inverted residuals of depthwise convolutions.

Source: Sandler et al. 2018, MobileNetV2: Inverted Residuals and Linear Bottlenecks (arXiv 1801.04381), table 2.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from wattune.errors import WorkloadError
from wattune.workloads.models import Average
from wattune.workloads.values import number

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks and stride of each stage."""


def rounded(channels: float) -> int:
    """Round to a multiple of eight channels: at least eight, and at least nine tenths of ``channels``."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def convolution(channels: int, filters: int, *, size: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Layers: a convolution without bias, batch normalisation, ReLU6."""
    layer = nn.Conv2d(channels, filters, size, stride, padding=size // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(filters), nn.ReLU6()]


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection; the input is added if the shape stays the same."""

    def __init__(self, channels: int, filters: int, stride: int, expansion: int):
        super().__init__()
        hidden = channels * expansion
        expanded = convolution(channels, hidden) if expansion != 1 else []
        depthwise = convolution(hidden, hidden, size=3, stride=stride, groups=hidden)
        projection = [nn.Conv2d(hidden, filters, 1, bias=False), nn.BatchNorm2d(filters)]
        self.layers = nn.Sequential(*expanded, *depthwise, *projection)
        self.adds = stride == 1 and channels == filters

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, filters, H / stride, W / stride)."""
        y = cast(Tensor, self.layers(x))
        return x + y if self.adds else y


class MobileNetV2(nn.Module):
    """MobileNetV2: 2,236,682 parameters with ``width`` 1 and 10 classes.

    ``stem``: "imagenet" is the paper's, for 224x224; "small" skips the first two halvings, for images of about 32x32.
    ``width`` multiplies the channels of all layers, but below 1 not those of the last convolution (section 4).
    """

    def __init__(
        self, *, classes: int = 10, channels: int = 3, stem: str = "small", dropout: float = 0.2, width: float = 1.0
    ):
        super().__init__()
        number("width of a MobileNetV2", width, above=0)
        if stem not in ("small", "imagenet"):
            raise WorkloadError("unknown stem of a MobileNetV2", value=stem, allowed="small, imagenet")
        small = stem == "small"
        blocks, filters = [], rounded(32 * width)
        self.stem = nn.Sequential(*convolution(channels, filters, size=3, stride=1 if small else 2))
        for stage, (expansion, unscaled, count, stride) in enumerate(STAGES):
            for index in range(count):
                first = 1 if index or (small and stage == 1) else stride
                blocks.append(InvertedResidual(filters, filters := rounded(unscaled * width), first, expansion))
        self.stages = nn.Sequential(*blocks)
        last = rounded(1280 * max(1.0, width))
        self.last = nn.Sequential(*convolution(filters, last))
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return cast(Tensor, self.fc(self.dropout(self.last(self.stages(self.stem(x))).mean((2, 3)))))

    def parts(self) -> list[nn.Module]:
        """Stem, blocks, last convolution, average, dropout and head: the modules that a pipeline is cut from."""
        return [self.stem, *self.stages, self.last, Average(), self.dropout, self.fc]
