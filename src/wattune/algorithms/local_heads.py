"""Heads by which the modules of a pipeline have losses of their own: what they give, pooled and mapped to the targets.

Source: Ren et al. 2023, arXiv 2210.03310, section 4 (local greedy losses with forward gradients).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from wattune.errors import WorkloadError


class Positions(nn.Module):
    """The mean over the places of a text."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, width)."""
        return x.mean(1)


def local_head(given: Sequence[int], wanted: Sequence[int]) -> nn.Module:
    """A head from what a module gives to what the whole model gives, both shapes without the dimension of samples.

    Images (C, H, W) are averaged, vectors taken as they are, and so is each place of a text (L, width) where the model
    says something of each; then one linear map. Raises: WorkloadError for shapes that this does not bring together.
    """
    match tuple(given), tuple(wanted):
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
        value=f"it gives {tuple(given)} for a sample, the model {tuple(wanted)}",
        allowed="images, vectors or texts that become a vector, or a vector for each place of a text",
        hint="loss=global",
    )


def local_heads(shapes: Sequence[Sequence[int]], wanted: Sequence[int], seed: int) -> nn.ModuleList:
    """A head for each of these shapes; the seed decides their initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.ModuleList(local_head(shape, wanted) for shape in shapes)
