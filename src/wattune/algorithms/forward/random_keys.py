"""Keys of random directions, which are drawn again instead of stored: the same key gives the same numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch


class RandomKey(NamedTuple):
    """Key of a direction: the run's seed, the step (batch), the module, and the number of the direction in the step."""

    seed: int
    step: int
    module: int = 0
    direction: int = 0

    def generator(self, device: torch.device, purpose: int = 0) -> torch.Generator:
        """Generator of this key on a device; ``purpose`` separates directions (even) from dropout masks (odd)."""
        (state,) = np.random.SeedSequence([*self, purpose]).generate_state(1, np.uint64)
        return torch.Generator(device).manual_seed(int(state) >> 1)

    def on(self, device: torch.device, purpose: int = 0) -> torch.Generator | None:
        """Like ``generator``, but None on the meta device, where nothing is drawn."""
        return None if device.type == "meta" else self.generator(device, purpose)
