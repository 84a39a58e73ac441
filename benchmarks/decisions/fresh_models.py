"""Small networks that train all seeds of a configuration at once: every tensor has the seed as its first dimension.

The loss is summed over the seeds, and Adam is elementwise, so the seeds train independently.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Parameters = list[Tensor]


class Stack:
    """Base of networks with one copy per seed; the last weight and bias are the head."""

    shapes: Sequence[tuple[int, ...]]

    def new(self, seeds: Sequence[int]) -> Parameters:
        """He-normal weights and zero biases, drawn for each seed."""
        draws = [torch.Generator().manual_seed(seed) for seed in seeds]
        return [torch.stack([_layer(shape, draw) for draw in draws]) for shape in self.shapes]

    def begin(self, pretrained: Parameters, seeds: Sequence[int]) -> Parameters:
        """Pre-trained layers for every seed, each with a head of its own."""
        body = [part.expand(len(seeds), *part.shape[1:]).clone() for part in pretrained[:-2]]
        return [part.requires_grad_() for part in (*body, *self.new(seeds)[-2:])]

    def logits(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Logits (seeds, batch, classes) of inputs (seeds, batch, ...)."""
        raise NotImplementedError


class Perceptron(Stack):
    """A network with flat inputs and one hidden layer."""

    def __init__(self, inputs: int, hidden: int, classes: int):
        self.shapes = ((inputs, hidden), (hidden,), (hidden, classes), (classes,))

    def logits(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Logits (seeds, batch, classes); see `Stack`."""
        first, bias, head, head_bias = parameters
        hidden = torch.relu(torch.baddbmm(bias[:, None], inputs.flatten(2), first))
        return torch.baddbmm(head_bias[:, None], hidden, head)


class Convolutions(Stack):
    """A network for 3 x 16 x 16 images: two convolutions, as products of patches, mean pooling, a head."""

    def __init__(self, classes: int):
        self.shapes = ((3 * 16, 16), (16,), (16 * 9, 32), (32,), (32, classes), (classes,))

    def logits(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Logits (seeds, batch, classes); see `Stack`."""
        first, bias, second, second_bias, head, head_bias = parameters
        seeds, batch = inputs.shape[:2]
        features = torch.relu(torch.baddbmm(bias[:, None], _patches(inputs, 4, 2), first))  # (S, B * 49, 16)
        features = features.reshape(seeds, batch, 7, 7, 16).permute(0, 1, 4, 2, 3)
        features = torch.relu(torch.baddbmm(second_bias[:, None], _patches(features, 3, 2), second))  # (S, B * 9, 32)
        pooled = features.reshape(seeds, batch, 9, 32).mean(dim=2)
        return torch.baddbmm(head_bias[:, None], pooled, head)


class Characters(Stack):
    """A predictor of the next character from the last twelve: an embedding, one hidden layer, a head."""

    def __init__(self, alphabet: int, context: int = 12, width: int = 10, hidden: int = 64):
        self.shapes = ((alphabet, width), (context * width, hidden), (hidden,), (hidden, alphabet), (alphabet,))

    def logits(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Logits (seeds, batch, classes) of indices (seeds, batch, context)."""
        embedding, first, bias, head, head_bias = parameters
        seeds, alphabet, width = embedding.shape
        places = inputs + torch.arange(seeds)[:, None, None] * alphabet
        embedded = F.embedding(places, embedding.reshape(seeds * alphabet, width))
        hidden = torch.relu(torch.baddbmm(bias[:, None], embedded.flatten(2), first))
        return torch.baddbmm(head_bias[:, None], hidden, head)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy, mean over the batch and summed over the seeds."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) * len(logits)


def _layer(shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    return torch.zeros(shape) if len(shape) == 1 else torch.randn(shape, generator=draw) * (2 / shape[0]) ** 0.5


def _patches(images: Tensor, size: int, stride: int) -> Tensor:
    """Patches (seeds, batch * places, channels * size * size) of images (seeds, batch, channels, height, width)."""
    patches = images.unfold(3, size, stride).unfold(4, size, stride).permute(0, 1, 3, 4, 2, 5, 6)
    return patches.flatten(4).flatten(1, 3)
