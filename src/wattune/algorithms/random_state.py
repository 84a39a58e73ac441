"""PyTorch's random numbers on the CPU and on a device: a state that code continues from, and leaves as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def random_state(device: torch.device) -> list[Tensor]:
    """States of the CPU's generator and, on CUDA, of the device's."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else ())]


def set_random_state(state: Sequence[Tensor], device: torch.device) -> None:
    """Continue from a ``random_state`` of this device."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)


@contextmanager
def own_random(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Draw from ``seed`` on within, and leave the global random state as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                torch.cuda.manual_seed(seed)
        yield
