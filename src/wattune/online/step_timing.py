"""Where the time of the steps goes: computing, waiting for the loader, copying; and what would help."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

WORTH_SAYING = 0.1
"""Share of the time that goes into waiting (or copying) from which on there is advice."""

SYNCHRONISE_EVERY = 16
"""Steps from one that is waited for on a GPU to the next."""

STEPS_AT_LEAST = 10
"""Steps before there is any."""


class Sync:
    """A GPU computes while the CPU goes on: one of so many steps is waited for, to see where the time goes."""

    def __init__(self) -> None:
        self._is_waited_for = True
        self._steps = 0

    def end(self, *, always: bool) -> bool:
        """A step ended; whether both its ends were waited for, so that its time is its own."""
        before, self._is_waited_for = self._is_waited_for, always or self._steps % SYNCHRONISE_EVERY < 2
        self._steps += 1
        if self._is_waited_for:
            torch.cuda.synchronize()
        return before and self._is_waited_for


class StepTimes:
    """Seconds of the device's time. ``waiting_s`` is what ordinary steps waited for, ``starting_s`` the first ones of a
    pass, ``fetching_s`` what was fetched ahead for probes."""

    def __init__(self) -> None:
        self.compute_s = 0.0
        self.waiting_s = 0.0
        self.starting_s = 0.0
        self.fetching_s = 0.0
        self.copying_s = 0.0
        self.ordinary_s = 0.0
        self.steps = self.ordinary_steps = 0

    def step(self, seconds: float, *, ordinary: bool) -> None:
        """A step computed for so long; ``ordinary``: it was no part of a probe."""
        self.compute_s += seconds
        self.steps += 1
        if ordinary:
            self.ordinary_s += seconds
            self.ordinary_steps += 1

    @property
    def waited_s(self) -> float:
        """All the time in which the device waited for data."""
        return self.waiting_s + self.starting_s + self.fetching_s

    def advice(self, loader: Any, *, on_gpu: bool) -> tuple[str, ...]:
        """What would help, by what was seen; empty where little is to be won."""
        # What is fetched ahead for a probe is not fetched beside the computing, as workers would.
        if getattr(loader, "num_workers", 0):
            steps, waiting_s, computing_s = self.ordinary_steps, self.waiting_s + self.starting_s, self.ordinary_s
        else:
            steps, waiting_s, computing_s = self.steps, self.waited_s, self.compute_s
        if steps < STEPS_AT_LEAST:
            return ()
        total_s = computing_s + waiting_s
        said = []
        if total_s > 0 and waiting_s / total_s > WORTH_SAYING:
            share = f"{waiting_s / total_s:.0%} of the time went into waiting for the loader: "
            said.append(share + self._remedy(loader))
        if total_s > 0 and self.copying_s / total_s > WORTH_SAYING and on_gpu:
            pinned = getattr(loader, "pin_memory", False)
            remedy = "fewer or smaller samples" if pinned else "pin_memory=True lets copies run beside the computing"
            said.append(f"{self.copying_s / total_s:.0%} of the time went into copying: {remedy}")
        return tuple(said)

    def _remedy(self, loader: Any) -> str:
        if not isinstance(loader, DataLoader):
            return "its batches are made while the device waits; make them in a process of their own"
        if not loader.num_workers:
            return "batches are made between the steps; num_workers=2 or more makes them beside the training"
        if self.starting_s > self.waiting_s and not loader.persistent_workers:
            return "mostly at the begin of each pass, for the workers to start; persistent_workers=True keeps them"
        ahead = loader.prefetch_factor or 2
        return (
            f"{loader.num_workers} worker{'s' * (loader.num_workers > 1)} cannot keep up; more of them, or "
            f"prefetch_factor={2 * ahead} where their speed varies"
        )

    def state_dict(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        vars(self).update(state)
