"""Passes over a batch that can be repeated: random numbers that are drawn again from a key, and no trace in the model.

PyTorch has one random sequence per process. Without a key, the second of two passes over a batch would get other masks
of dropout than the first, and two threads would disturb each other's numbers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wattune.algorithms.counting.aten import device_of
from wattune.algorithms.random_state import own_random, random_state


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


_DRAWING = threading.Lock()
"""Held by the pass that draws: threads take turns in modules with dropout."""


class MaskedPasses:
    """The passes of a module over a batch, with the same random numbers in each of them."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._draws: bool | None = None

    @contextmanager
    def masks(self, x: Any, key: RandomKey) -> Iterator[bool]:
        """Context of a pass over ``x``, whose random numbers follow from ``key``; False if it draws none."""
        device = device_of(x)
        # Seeding takes time: skip it once a pass in training mode has drawn nothing.
        if self._draws is False or device.type == "meta":
            yield False
            return
        with _DRAWING, own_random(device, key.number(purpose=1)):
            before = _as_bytes(device) if self._draws is None else None
            yield True
            if before is not None and self._module.training:
                self._draws = before != _as_bytes(device)


def _as_bytes(device: torch.device) -> list[bytes]:
    # An operation on tensors would be counted with those of the pass.
    return [state.numpy().tobytes() for state in random_state(device)]


def own(module: nn.Module, x: Any) -> Any:
    """The module's input, or a copy if the module works in place."""
    if not any(getattr(m, "inplace", False) for m in module.modules()):
        return x
    return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, x)


def copied_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers, for a pass that must not change the module's."""
    return {name: buffer.clone() for name, buffer in module.named_buffers()}
