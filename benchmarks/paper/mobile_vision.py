"""Vision models for small devices: EfficientViT-B1 and MobileNetV2.

EfficientViT has convolutions at high resolution and linear attention at low resolution. Source: Cai et al. 2023,
EfficientViT: Multi-Scale Linear Attention for High-Resolution Dense Prediction (ICCV; arXiv 2205.14756), section 3 and
figure 5. Bias and normalisation of each layer and the classification head, which the paper leaves open, follow the
authors' models, github.com/mit-han-lab/efficientvit.

MobileNetV2 has inverted residuals of depthwise convolutions. Source: Sandler et al. 2018, MobileNetV2: Inverted
Residuals and Linear Bottlenecks (arXiv 1801.04381), table 2.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn

from wattune.errors import WorkloadError

EXPANSION = 4
"""Expansion of every inverted residual; the blocks of the stem have none."""

EPSILON = 1e-15
"""Term added to the sum of the attention weights, which is 0 if ReLU zeroes the query or all keys."""


WIDTHS = (16, 32, 64, 128, 256)
DEPTHS = (1, 2, 3, 3, 4)
"""Channels and blocks of the stem and of each stage of EfficientViT-B1."""

HEAD_WIDTH = 16
"""Channels of an attention head."""

LAST = (1536, 1600)
"""Widths of the last convolution and of the hidden layer."""


class Residual(nn.Module):
    """The sum of an input and its layers' output."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, which the layers preserve."""
        return x + cast(Tensor, self.layers(x))


class LinearAttention(nn.Module):
    """Attention with the weights ReLU(q) . ReLU(k), over two scales: the pixels, and their 5x5 neighbourhoods.

    Without a softmax, (q k) v can be multiplied in either order. v k first takes time linear in the number of pixels;
    if there are no more pixels than channels in a head, q k is smaller and comes first.
    Computed in fp32 even under autocast, because the sums overflow fp16.
    """

    def __init__(self, channels: int, head_width: int):
        super().__init__()
        heads = channels // head_width
        self.head_width = head_width
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)
        self.around = nn.Sequential(
            nn.Conv2d(3 * channels, 3 * channels, 5, padding=2, groups=3 * channels, bias=False),
            nn.Conv2d(3 * channels, 3 * channels, 1, groups=3 * heads, bias=False),
        )
        self.out = nn.Sequential(nn.Conv2d(2 * channels, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        batch, _, height, width = x.shape
        qkv = self.qkv(x)
        scales = torch.cat([qkv, self.around(qkv)], 1)  # (B, 2 x heads x 3 x head width, H, W)
        with _full_precision(x):
            split = scales.float().view(batch, -1, 3, self.head_width, height * width)
            q, k, v = split[:, :, 0].relu(), split[:, :, 1].relu(), split[:, :, 2]  # (B, heads, head width, pixels)
            total = k.sum(-1).unsqueeze(-2) @ q  # (B, heads, 1, pixels)
            keys = k.transpose(-2, -1)
            mixed = (v @ keys) @ q if height * width > self.head_width else v @ (keys @ q)
            mixed = mixed / (total + EPSILON)
        return cast(Tensor, self.out(mixed.reshape(batch, -1, height, width)))


def _full_precision(x: Tensor) -> AbstractContextManager[object]:
    # Autocast does not support the meta device, where nothing is cast anyway.
    return nullcontext() if x.device.type == "meta" else torch.autocast(x.device.type, enabled=False)


def layer(channels: int, filters: int, *, size: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Layers: a convolution without bias, and batch normalisation."""
    convolution = nn.Conv2d(channels, filters, size, stride, padding=size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(filters)]


def inverted(channels: int, filters: int, stride: int = 1, *, normalised: bool = True) -> list[nn.Module]:
    """Layers of an inverted residual: expansion, depthwise convolution, projection.

    If not ``normalised``, as in the stages with attention, only the projection is, and the others have biases.
    """
    hidden = EXPANSION * channels
    if normalised:
        expanded, depthwise = layer(channels, hidden), layer(hidden, hidden, size=3, stride=stride, groups=hidden)
    else:
        expanded = [nn.Conv2d(channels, hidden, 1)]
        depthwise = [nn.Conv2d(hidden, hidden, 3, stride, padding=1, groups=hidden)]
    return [*expanded, nn.Hardswish(), *depthwise, nn.Hardswish(), *layer(hidden, filters)]


class EfficientViT(nn.Module):
    """EfficientViT-B1: 7,517,034 parameters with 10 classes.

    ``stem``: "imagenet" is the authors', for 224x224 (with 1000 classes, 9.1 million parameters). They have none for
    32x32; "small" is ours. Like the other models here, it skips the first two halvings, in the stem and the first
    stage, so that the stages have 32x32, 32x32, 16x16, 8x8 and 4x4 pixels and attention spans 64 and 16 of them (196
    and 49 at 224x224). Both have the same parameters.
    """

    def __init__(self, *, classes: int = 10, channels: int = 3, stem: str = "small"):
        super().__init__()
        _check_stem(stem)
        halving = 1 if stem == "small" else 2
        first = WIDTHS[0]
        blocks: list[nn.Module] = []
        for _ in range(DEPTHS[0]):
            depthwise = layer(first, first, size=3, groups=first)
            blocks.append(Residual(*depthwise, nn.Hardswish(), *layer(first, first)))
        self.stem = nn.Sequential(*layer(channels, first, size=3, stride=halving), nn.Hardswish(), *blocks)
        blocks, before = [], first
        for stage, (width, depth) in enumerate(zip(WIDTHS[1:], DEPTHS[1:], strict=True), start=1):
            attends = stage > 2
            stride = halving if stage == 1 else 2
            blocks.append(nn.Sequential(*inverted(before, width, stride, normalised=not attends)))
            for _ in range(depth if attends else depth - 1):
                if attends:
                    blocks.append(Residual(LinearAttention(width, HEAD_WIDTH)))
                blocks.append(Residual(*inverted(width, width, normalised=not attends)))
            before = width
        self.stages = nn.Sequential(*blocks)
        wide, last = LAST
        self.last = nn.Sequential(*layer(before, wide), nn.Hardswish())
        self.hidden = nn.Sequential(nn.Linear(wide, last, bias=False), nn.LayerNorm(last), nn.Hardswish())
        self.fc = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return cast(Tensor, self.fc(self.hidden(self.last(self.stages(self.stem(x))).mean((2, 3)))))


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
    return [*layer(channels, filters, size=size, stride=stride, groups=groups), nn.ReLU6()]


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection; the input is added if the shape stays the same."""

    def __init__(self, channels: int, filters: int, stride: int, expansion: int):
        super().__init__()
        hidden = channels * expansion
        expanded = convolution(channels, hidden) if expansion != 1 else []
        depthwise = convolution(hidden, hidden, size=3, stride=stride, groups=hidden)
        self.layers = nn.Sequential(*expanded, *depthwise, *layer(hidden, filters))
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
        _check_stem(stem)
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


def _check_stem(stem: str) -> None:
    if stem not in ("small", "imagenet"):
        raise WorkloadError("unknown stem", value=stem, allowed="small, imagenet")
