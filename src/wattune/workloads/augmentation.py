"""Augmentation of images, drawn independently for every sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wattune.errors import WorkloadError
from wattune.workloads.values import flag, number, whole


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images (C, H, W): mirror, shift by up to ``shift`` pixels (filled with zeros), and add noise of
    standard deviation ``noise``.

    The draws depend only on the seed and on the sample's position in the stream: neither on its batch (draws shared
    by a batch would flatter small batches) nor on where a resumed run starts.
    """

    flip: bool = False
    shift: int = 0
    noise: float = 0.0

    def __post_init__(self) -> None:
        flag("flip of the augmentation", self.flip)
        whole("shift of the augmentation", self.shift, least=0)
        number("noise of the augmentation", self.noise, least=0)

    def check(self, shape: tuple[int, ...]) -> None:
        """Check that it can change samples of this shape. Raises: WorkloadError."""
        if (self.flip or self.shift) and len(shape) != 3:
            raise WorkloadError(
                "augmentation of samples of the shape", value=shape, allowed="images (channels, height, width)"
            )
        if self.shift and self.shift >= min(shape[1:]):
            raise WorkloadError(
                "shift of the augmentation", value=self.shift, allowed=f"less than the image, {shape[1:]}"
            )

    def apply(self, x: Tensor, *, seed: int, start: int) -> Tensor:
        """Changed copies of float samples (B, ...), the first at position ``start`` of the stream."""
        if not (self.flip or self.shift or self.noise):
            return x
        result = torch.empty_like(x)
        for index, sample in enumerate(x):
            # A counter-based generator (Philox) keyed by (seed, position) costs nothing to start anywhere.
            draws = np.random.Generator(np.random.Philox(key=[seed, start + index]))
            if self.flip and draws.random() < 0.5:
                sample = sample.flip(-1)
            if self.shift:
                down, right = (int(d) for d in draws.integers(-self.shift, self.shift + 1, size=2))
                sample = F.pad(sample, (right, -right, down, -down))
            if self.noise:
                normal = draws.standard_normal(tuple(sample.shape), dtype=np.float32)
                sample = sample + self.noise * torch.from_numpy(normal)
            result[index] = sample
        return result
