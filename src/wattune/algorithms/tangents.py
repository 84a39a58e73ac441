"""Random directions that are never kept: the same key gives the same numbers again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch


class Key(NamedTuple):
    """What a direction is drawn from: the training's seed, the step (batch), the module and the number of the direction
    among several of the same step."""

    seed: int
    step: int
    module: int = 0
    direction: int = 0

    def generator(self, device: torch.device, purpose: int = 0) -> torch.Generator:
        """Random numbers of this key on a device; ``purpose`` tells the directions (0) from dropout's masks (1), and
        both from whatever else the same step draws."""
        (state,) = np.random.SeedSequence([*self, purpose]).generate_state(1, np.uint64)
        return torch.Generator(device).manual_seed(int(state) >> 1)

    def on(self, device: torch.device, purpose: int = 0) -> torch.Generator | None:
        """``generator``, or None on the meta device, where nothing is drawn."""
        return None if device.type == "meta" else self.generator(device, purpose)
