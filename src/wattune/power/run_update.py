"""The state of a run at one moment, for displays and trackers: power, energy, temperature and operating point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wattune.point import OperatingPoint
from wattune.records import Kind


@dataclass(frozen=True)
class RunUpdate:
    """The state of a run, once a second, at each change of its operating point, and when it ends.

    ``event``: "reading" (a second has passed), "point" (training moved to another point, for ``reason``) or "end" (the
    last update; ``reason`` says how the run ended). Times are the device's, and continue those of a run that was
    resumed.
    """

    event: Literal["reading", "point", "end"]
    time_s: float
    """Seconds since the run began."""
    samples: int
    """Samples that were trained on so far, by all ranks."""
    steps: int
    """Optimizer steps so far."""
    passes: int
    """Complete passes over the data set so far."""
    power_w: float | None
    """Mean power in watts since the last update that had one; None before the first reading."""
    energy_j: float
    """Energy in joules so far."""
    temperature_c: float | None
    """Temperature of the device in °C; None if it has no sensor."""
    cap_w: float | None
    """The present limit in watts at the power sensor; None without a cap."""
    point: OperatingPoint
    """The present batch size, micro-batch size and knobs: those of the device, which a cap may have lowered."""
    probing: bool
    """True while the search measures this point."""
    device: str
    """Name of the device."""
    kind: Kind
    """Origin of power and time: "measured", "simulated", "recorded" or "replayed"."""
    reason: str = ""

    @property
    def batch_size(self) -> int:
        """Samples of an optimizer step."""
        return self.point.batch_size

    @property
    def clock_mhz(self) -> float | None:
        """Clock of the processor that trains, in MHz; None if it is not set."""
        return self.point.knobs.get("clock_mhz")
