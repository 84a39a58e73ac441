"""Heads that give the modules of a pipeline local losses: the module's output, pooled and mapped to the targets.

Source: Ren et al. 2023, arXiv 2210.03310, section 4 (local greedy losses with forward gradients).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wattune.errors import WorkloadError


class Positions(nn.Module):
    """The mean over the positions of a text."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, width)."""
        return x.mean(1)


def local_head(module_shape: Sequence[int], model_shape: Sequence[int]) -> nn.Module:
    """Make a head from a module's output to the model's output, given their shapes for one sample.

    Images (C, H, W) are averaged and vectors stay unchanged; of a text (L, width) each position stays if the model has
    an output for each, else they are averaged; then one linear map. Raises: WorkloadError for any other shapes.
    """
    match tuple(module_shape), tuple(model_shape):
        case (channels, _, _), (classes,):
            return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        case (width,), (classes,):
            return nn.Sequential(nn.Linear(width, classes))
        case (length, width), (same, classes) if length == same:
            return nn.Sequential(nn.Linear(width, classes))
        case (_, width), (classes,):
            return nn.Sequential(Positions(), nn.Linear(width, classes))
    raise WorkloadError(
        "a local loss for a module",
        value=f"output {tuple(module_shape)} of the module, {tuple(model_shape)} of the model",
        allowed="images, vectors or texts that become a vector, or a vector per position of a text",
        hint="use loss=global",
    )


def local_heads(shapes: Sequence[Sequence[int]], model_shape: Sequence[int], seed: int) -> nn.ModuleList:
    """Make a head for each of these shapes; the seed determines their initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.ModuleList(local_head(shape, model_shape) for shape in shapes)
