"""A run in TensorBoard: scalars over the steps, in groups of their own beside the user's."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from tensorboard.summary import DirectoryOutput, Writer

from wattune.power.run_update import RunUpdate
from wattune.tracking.trackers import values_of

FIELDS = ("power_w", "energy_j", "clock_mhz", "temperature_c", "cap_w")
"""Fields of an update in the group "system"; TensorBoard has no names of its own for them."""


class TensorboardEvents:
    """A tracker that writes event files to ``folder``, by default a new one below ``runs``.

    Without torch: its ``SummaryWriter`` writes the same files.
    """

    def __init__(self, folder: str | None = None):
        self._folder = None if folder is None else Path(folder)
        self._writer: Writer | None = None

    def __call__(self, update: RunUpdate) -> None:
        """Write an update."""
        if self._writer is None:
            device = re.sub(r"\W+", "-", update.device).strip("-")
            folder = self._folder or Path("runs", f"{datetime.now():%Y%m%d-%H%M%S}-{device}-{update.kind}")
            self._writer = Writer(DirectoryOutput(str(folder)))
        for tag, value in values_of(update, {field: f"system/{field}" for field in FIELDS}).items():
            self._writer.add_scalar(tag, value, update.steps, description=f"{update.device}, {update.kind}")
        self._writer.flush()
        if update.event == "end":
            self._writer.close()
            self._writer = None
