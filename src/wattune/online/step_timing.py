"""The time of steps, divided into computing, waiting for the loader and copying, and advice to reduce it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

WORTH_SAYING = 0.1
"""Share of the time for waiting (or copying) above which there is advice."""

SYNCHRONISE_EVERY = 16
"""Number of steps from one synchronisation with a GPU to the next."""

MIN_STEPS = 10
"""Least number of steps before there is advice."""


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


class StepTimes:
    """Seconds of the device's time. Steps waited ``waiting_s`` for data: ``starting_s`` is that of the first steps of a
    pass, ``fetching_s`` the time to fetch ahead for probes."""

    def __init__(self) -> None:
        self.compute_s = 0.0
        self.waiting_s = 0.0
        self.starting_s = 0.0
        self.fetching_s = 0.0
        self.copying_s = 0.0
        self.ordinary_s = 0.0
        self.steps = self.ordinary_steps = 0

    def step(self, seconds: float, *, ordinary: bool) -> None:
        """Add a step that computed for ``seconds``; ``ordinary``: it was not part of a probe."""
        self.compute_s += seconds
        self.steps += 1
        if ordinary:
            self.ordinary_s += seconds
            self.ordinary_steps += 1

    @property
    def waited_s(self) -> float:
        """Total time for which the device waited for data."""
        return self.waiting_s + self.starting_s + self.fetching_s

    def advice(self, loader: Any, *, on_gpu: bool) -> tuple[str, ...]:
        """Advice to reduce waiting and copying; empty if there is little to gain."""
        # Workers would fetch for a probe while the device computes; without them, fetching ahead is waiting too.
        if getattr(loader, "num_workers", 0):
            steps, waiting_s, computing_s = self.ordinary_steps, self.waiting_s + self.starting_s, self.ordinary_s
        else:
            steps, waiting_s, computing_s = self.steps, self.waited_s, self.compute_s
        if steps < MIN_STEPS:
            return ()
        total_s = computing_s + waiting_s
        advice = []
        if total_s > 0 and waiting_s / total_s > WORTH_SAYING:
            share = f"{waiting_s / total_s:.0%} of the time was spent waiting for the loader: "
            advice.append(share + self._remedy(loader))
        if total_s > 0 and self.copying_s / total_s > WORTH_SAYING and on_gpu:
            pinned = getattr(loader, "pin_memory", False)
            remedy = "use fewer or smaller samples" if pinned else "pin_memory=True copies while the GPU computes"
            advice.append(f"{self.copying_s / total_s:.0%} of the time was spent copying: {remedy}")
        return tuple(advice)

    def _remedy(self, loader: Any) -> str:
        if not isinstance(loader, DataLoader):
            return "its batches are made while the device waits; make them in another process"
        if not loader.num_workers:
            return "batches are made between the steps; num_workers=2 or more makes them while the model trains"
        if self.starting_s > self.waiting_s and not loader.persistent_workers:
            return (
                "mostly at the start of each pass, while the workers start; persistent_workers=True keeps them running"
            )
        ahead = loader.prefetch_factor or 2
        return (
            f"{loader.num_workers} worker{'s' * (loader.num_workers > 1)} cannot keep up; use more of them, or "
            f"prefetch_factor={2 * ahead} if their speed varies"
        )

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
        vars(self).update(state)
