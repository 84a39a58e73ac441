"""Passes over a batch that can be repeated: random numbers drawn again from a key, and no trace in the model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


class RandomKey(NamedTuple):
    """Key of a direction: the run's seed, the step (batch), the module, the direction in the step, the micro-batch."""

    seed: int
    step: int
    module: int = 0
    direction: int = 0
    part: int = 0

    def number(self, purpose: int = 0) -> int:
        """Seed of this key; ``purpose``: 0 for directions, 1 for dropout masks."""
        numbers = self.seed, self.step, self.module, self.direction, 2 * self.part + purpose
        return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1

    def generator(self, device: torch.device) -> torch.Generator | None:
        """Generator of a direction on a device; None on the meta device, where nothing is drawn."""
        return None if device.type == "meta" else torch.Generator(device).manual_seed(self.number())


def own(module: nn.Module, x: Any) -> Any:
    """The module's input, or a copy if the module works in place."""
    if not any(getattr(m, "inplace", False) for m in module.modules()):
        return x
    return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, x)


def copied_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers, for a pass that must not change the module's."""
    return {name: buffer.clone() for name, buffer in module.named_buffers()}
