"""Times of steps: computing, waiting for the loader and copying."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

SYNCHRONISE_EVERY = 16
"""Number of steps from one synchronisation with a GPU to the next."""


class Sync:
    """Synchronises with a GPU, which computes asynchronously, at one of ``SYNCHRONISE_EVERY`` steps, to time them."""

    def __init__(self) -> None:
        self._is_synchronised = True
        self._steps = 0

    def end(self, *, always: bool) -> bool:
        """End a step. Returns: True if both its ends were synchronised, so that its time is its own."""
        before, self._is_synchronised = self._is_synchronised, always or self._steps % SYNCHRONISE_EVERY < 2
        self._steps += 1
        if self._is_synchronised:
            torch.cuda.synchronize()
        return before and self._is_synchronised


@dataclass
class StepTimes:
    """Seconds of the device's time that all steps took, by what they were spent on."""

    compute_s: float = 0.0
    waiting_s: float = 0.0
    copying_s: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``; states of before had three kinds of waiting."""
        self.compute_s, self.copying_s = state["compute_s"], state["copying_s"]
        self.waiting_s = sum(state.get(name, 0.0) for name in ("waiting_s", "starting_s", "fetching_s"))
