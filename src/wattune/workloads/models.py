"""The built-in models: plain eager PyTorch, small enough to read and to train on a CPU.

Every image model takes (B, C, H, W), and every model ends in a layer called ``fc``, so that ``reinitialise = ["fc"]``
gives a pre-trained one a new head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wattune.errors import WorkloadError


def small_cnn(*, classes: int = 10, width: int = 16, channels: int = 3) -> nn.Sequential:
    """Three convolutions of ``width``, 2 ``width``, 4 ``width`` filters, each halving the image, and a linear head."""
    model = nn.Sequential()
    for index, filters in enumerate((width, 2 * width, 4 * width), start=1):
        model.add_module(f"conv{index}", nn.Conv2d(channels, filters, 3, padding=1, bias=False))
        model.add_module(f"norm{index}", nn.BatchNorm2d(filters))
        model.add_module(f"relu{index}", nn.ReLU())
        model.add_module(f"pool{index}", nn.MaxPool2d(2))
        channels = filters
    model.add_module("average", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(channels, classes))
    return model


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut, which is a 1x1 convolution if the shape changes.

    Source: He et al. 2016, Deep Residual Learning for Image Recognition, figure 2 and section 3.3 (option B).
    """

    def __init__(self, channels: int, filters: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, filters, H / stride, W / stride)."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Average(nn.Module):
    """The mean over an image."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C)."""
        return x.mean((2, 3))


class ResNet(nn.Module):
    """A residual network of basic blocks: ``blocks[i]`` of them with ``width * 2**i`` filters in stage i.

    ``stem``: "small" is one 3x3 convolution, for images of about 32x32; "imagenet" a 7x7 one with stride 2 and
    pooling, for 224x224. Source: He et al. 2016, table 1 and section 4.2.
    """

    def __init__(self, blocks: tuple[int, ...], *, classes: int, width: int, channels: int, stem: str = "small"):
        super().__init__()
        if stem == "small":
            self.stem = nn.Sequential(
                nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
            )
        elif stem == "imagenet":
            self.stem = nn.Sequential(
                nn.Conv2d(channels, width, 7, 2, padding=3, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.MaxPool2d(3, 2, padding=1),
            )
        else:
            raise WorkloadError("unknown stem of a ResNet", value=stem, allowed="small, imagenet")
        stages = []
        channels = width
        for stage, count in enumerate(blocks):
            filters = width * 2**stage
            for index in range(count):
                stages.append(Block(channels, filters, stride=2 if stage and not index else 1))
                channels = filters
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, classes)."""
        return cast(Tensor, self.fc(self.stages(self.stem(x)).mean((2, 3))))

    def parts(self) -> list[nn.Module]:
        """Stem, blocks, average and head: the units of a pipeline's modules."""
        return [self.stem, *self.stages, Average(), self.fc]


def resnet8(*, classes: int = 10, width: int = 16, channels: int = 3) -> ResNet:
    """CIFAR-style ResNet with 3 stages of 1 block (77 thousand parameters at width 16)."""
    return ResNet((1, 1, 1), classes=classes, width=width, channels=channels)


def resnet20(*, classes: int = 10, width: int = 16, channels: int = 3) -> ResNet:
    """CIFAR-style ResNet with 3 stages of 3 blocks (0.27 million parameters at width 16)."""
    return ResNet((3, 3, 3), classes=classes, width=width, channels=channels)


def resnet18(*, classes: int = 10, width: int = 64, channels: int = 3, stem: str = "small") -> ResNet:
    """ResNet18 (11 million parameters at width 64); ``stem`` "small" for 32x32, "imagenet" for 224x224."""
    return ResNet((2, 2, 2, 2), classes=classes, width=width, channels=channels, stem=stem)


class Attention(nn.Module):
    """Causal self-attention, spelled out as matrix products and a softmax, so that its cost is easy to see.

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, width); each position attends to itself and to those before it."""
        batch, length, _ = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each (B, heads, L, head width)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, heads, L, L)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return cast(Tensor, self.out((weights @ v).transpose(1, 2).flatten(2)))


class Layer(nn.Module):
    """Attention and a two-layer perceptron, each with normalisation before it and a residual connection."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, width)."""
        x = x + self.attention(self.norm1(x))
        return cast(Tensor, x + self.mlp(self.norm2(x)))


class CharacterTransformer(nn.Module):
    """Predict the next character at every position of a text of at most ``length`` characters.

    Six layers and a width of 256, as in arXiv 2502.18323, section 5.1, but eight heads of 32 by default: the paper's
    six heads do not divide 256.
    """

    def __init__(self, *, vocabulary: int = 96, length: int = 64, layers: int = 6, heads: int = 8, width: int = 256):
        super().__init__()
        if width % heads:
            raise WorkloadError("the width of a transformer", value=width, allowed=f"a multiple of its {heads} heads")
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Characters (B, L), int64 -> logits (B, L, vocabulary)."""
        return cast(Tensor, self.fc(self.norm(self.layers(embedded(x, self.token, self.place)))))

    def parts(self) -> list[nn.Module]:
        """Embedding, layers, normalisation and head: the units of a pipeline's modules."""
        return [Embedded(self.token, self.place), *self.layers, self.norm, self.fc]


def embedded(x: Tensor, token: nn.Embedding, place: nn.Embedding) -> Tensor:
    """Embed characters (B, L) and their positions as (B, L, width). Raises: WorkloadError if the text is too long."""
    if x.shape[1] > place.num_embeddings:
        raise WorkloadError(
            "a text longer than the transformer", value=x.shape[1], allowed=f"at most {place.num_embeddings}"
        )
    return cast(Tensor, token(x) + place(torch.arange(x.shape[1], device=x.device)))


class Embedded(nn.Module):
    """The embedding of a transformer as a module."""

    def __init__(self, token: nn.Embedding, place: nn.Embedding):
        super().__init__()
        self.token, self.place = token, place

    def forward(self, x: Tensor) -> Tensor:
        """Characters (B, L), int64 -> (B, L, width)."""
        return embedded(x, self.token, self.place)


MODELS: dict[str, Callable[..., nn.Module]] = {
    "small-cnn": small_cnn,
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "character-transformer": CharacterTransformer,
}
"""Name in a workload file -> the factory of the model."""
