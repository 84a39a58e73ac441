"""A run in Weights & Biases, with the names of its own system metrics."""

from __future__ import annotations

from typing import Any

import wandb

from wattune.power.run_update import RunUpdate
from wattune.tracking.trackers import values_of

TAGS = {
    "power_w": "powerWatts",
    "energy_j": "energyJoules",
    "clock_mhz": "graphicsClock",
    "temperature_c": "temp",
    "cap_w": "enforcedPowerLimitWatts",
}
"""Field of an update -> the tag that W&B gives that metric of a GPU; "system/gpu.0." stands before it.

Source: docs.wandb.ai/models/ref/python/experiments/system-metrics.
"""


class WandbRun:
    """A tracker that logs to the user's active W&B run, else to a run of its own in the project "wattune".

    In the user's run the values join the rows that the user logs: rows of our own would move its step on, and W&B drops
    rows of an earlier step.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._is_own = False

    def __call__(self, update: RunUpdate) -> None:
        """Log an update."""
        if self._run is None:
            self._is_own = wandb.run is None
            self._run = wandb.init(project="wattune") if self._is_own else wandb.run
            self._run.config.update({"wattune/device": update.device, "wattune/kind": update.kind})
        where = "system/gpu.0." if update.processor == "gpu" else "system/cpu."
        values = values_of(update, {field: where + tag for field, tag in TAGS.items()})
        self._run.log({**values, "wattune/steps": update.steps}, commit=self._is_own)
        if update.event == "end":
            if self._is_own:
                self._run.finish(exit_code=0 if update.reason == "finished" else 1)
            self._run = None
