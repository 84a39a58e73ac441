"""Boards with one model on them: the true step time and power of every cell, and a rig that probes them with noise.

A probe reads the sensor for several of its windows, after it has settled. Noise is drawn twice per window, so the mean
of a longer probe is more exact than one reading. The board has a repetition error of its own, and a board that warms up
draws less at first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattune.cap import SensorLimit
from wattune.devices.base import Device, Knob, Sensor
from wattune.devices.cap_window import highest_mean
from wattune.devices.meter import sensor_window
from wattune.point import Knobs
from wattune_agent.cap_level import WINDOW_S

Array = NDArray[np.float64]

REPETITION = 0.002
"""Relative standard deviation of step time and power between probes, which longer probes do not reduce."""

READINGS_PER_WINDOW = 2
"""Independent readings per window; all others overlap with them."""

WARM_UP_STEPS, MIN_STEPS = 2, 3

REST = 0.9
"""Power at rest relative to the least that any cell draws."""


class Cell(NamedTuple):
    """A batch size and a clock."""

    batch_size: int
    clock_mhz: float


class Reading(NamedTuple):
    """Result of a probe: its steps, and the sensor's readings during them."""

    step_s: float
    step_std_s: float
    power_mean_w: float
    power_std_w: float
    power_peak_w: float
    steps: int
    power_window_w: float


@dataclass(frozen=True, eq=False)
class Board:
    """True figures: ``step_s`` and ``power_w`` (batch sizes, clocks); the power is the highest of any window, warm.

    ``noise_w``: standard deviation of one window's reading; ``noise_known``: True if the sensor's data sheet has it.
    ``step_noise``: relative standard deviation of a step's time. ``cold``: share by which the cold board draws less;
    ``warming_s``: time constant of warming up.
    """

    name: str
    batch_sizes: tuple[int, ...]
    clocks_mhz: tuple[float, ...]
    step_s: Array
    power_w: Array
    noise_w: float
    noise_known: bool
    step_noise: float
    resolution_w: float
    window_s: float
    lag_s: float
    cold: float = 0.0
    warming_s: float = 120.0

    def cap_w(self, share: float) -> float:
        """Cap at ``share`` of the range from the least to the most that any cell draws."""
        low, high = float(self.power_w.min()), float(self.power_w.max())
        return low + share * (high - low)

    def place(self, cell: Cell) -> tuple[int, int]:
        """Indices of a cell in ``step_s`` and ``power_w``."""
        return self.batch_sizes.index(cell.batch_size), self.clocks_mhz.index(cell.clock_mhz)

    def fastest(self, cap_w: float) -> dict[int, Cell]:
        """The fastest cell under the cap for each batch size that has one."""
        cells = {}
        for row, size in enumerate(self.batch_sizes):
            times = np.where(self.power_w[row] <= cap_w, self.step_s[row], math.inf)
            if math.isfinite(times.min()):
                cells[size] = Cell(size, self.clocks_mhz[int(times.argmin())])
        return cells

    def sample_s(self, cell: Cell) -> float:
        """True seconds per sample."""
        return float(self.step_s[self.place(cell)]) / cell.batch_size

    def cost(self, cell: Cell, samples: Mapping[int, float]) -> float:
        """True time to the target."""
        return self.sample_s(cell) * samples[cell.batch_size]

    def best(self, cap_w: float, samples: Mapping[int, float]) -> Cell | None:
        """The cell with the least time to the target; None if no cell stays under the cap."""
        fastest = self.fastest(cap_w)
        cells = [cell for size, cell in fastest.items() if math.isfinite(samples.get(size, math.inf))]
        return min(cells, key=lambda cell: self.cost(cell, samples), default=None)


def probe_length(board: Board, true_s: float, windows: int) -> tuple[int, int]:
    """Steps of a probe over ``windows`` windows, and its number of independent readings."""
    steps = max(MIN_STEPS, math.ceil(windows * board.window_s / true_s))
    return steps, max(1, round(steps * true_s / board.window_s)) * READINGS_PER_WINDOW


class Rig(Device):
    """One board under one cap, cold at first: counts probes, their time, and how far they exceeded the cap. It is all
    that a guided profile needs of a device beside the probes.

    The cap is on the mean power over a second, or over the sensor's own window if that is longer.
    """

    kind = "simulated"
    mode = ""
    memory_bytes = None
    data_types = frozenset({"fp32"})
    executes_steps = False

    def __init__(self, board: Board, cap_w: float, seed: int):
        self.board, self.cap_w, self.name = board, cap_w, board.name
        self.knobs = (Knob("clock_mhz", board.clocks_mhz),)
        self.probes, self.seconds, self._warm = 0, 0.0, 0.0
        self.over: list[float] = []
        self._present: Knobs | None = None
        self._draw = random.Random(f"{board.name} {cap_w:.6g} {seed}")
        self.sensor = Sensor(
            "board",
            resolution_w=board.resolution_w,
            period_s=board.window_s / READINGS_PER_WINDOW,
            window_s=board.window_s,
            lag_s=board.lag_s,
            noise_w=board.noise_w if board.noise_known else 0.0,
        )
        self._window_s = max(WINDOW_S, board.window_s)
        self.limit = SensorLimit(cap_w, window_s=self._window_s)

    def probe(self, cell: Cell, *, windows: int = 3) -> Reading | float:
        """Probe a cell; return the reading, or the mean power once that is surely above the cap."""
        board, gauss = self.board, self._draw.gauss
        true_s, warm_w = float(board.step_s[board.place(cell)]), float(board.power_w[board.place(cell)])
        power_w = warm_w * (1 - board.cold * (1 - self._warm))
        steps, count = probe_length(board, true_s, windows)
        self.probes += 1
        if power_w > self.cap_w:
            self.over.append(power_w / self.cap_w - 1)
        own_w = power_w * (1 + REPETITION * gauss(0, 1))
        readings = [self._rounded(own_w + board.noise_w * gauss(0, 1)) for _ in range(count)]
        above = self._above(readings)
        length_s = steps * true_s
        if above is not None:
            length_s = (above + 1) * board.window_s / READINGS_PER_WINDOW
        spent_s = board.window_s + board.lag_s + WARM_UP_STEPS * true_s + length_s
        self.seconds += spent_s
        towards = warm_w / float(board.power_w.max())
        self._warm += (towards - self._warm) * (1 - math.exp(-spent_s / board.warming_s))
        if above is not None:
            return fmean(readings[: above + 1])
        return Reading(
            step_s=true_s * (1 + REPETITION * gauss(0, 1) + board.step_noise / math.sqrt(steps) * gauss(0, 1)),
            step_std_s=true_s * board.step_noise,
            power_mean_w=fmean(readings),
            power_std_w=stdev(readings),
            power_peak_w=max(readings),
            steps=steps,
            power_window_w=highest_mean(readings, max(1, round(self._window_s / self.sensor.period_s))),
        )

    def _above(self, readings: list[float]) -> int | None:
        window = sensor_window(self.sensor, self.limit)
        for number, reading in enumerate(readings):
            window.add(number * self.sensor.period_s, reading)
            if window.is_above:
                return number
        return None

    def _rounded(self, power_w: float) -> float:
        step_w = self.board.resolution_w
        return round(power_w / step_w) * step_w

    def now_s(self) -> float:
        """Time that the rig has spent."""
        return self.seconds

    def power_w(self) -> float:
        """Power at rest, the only state in which it is read."""
        return REST * float(self.board.power_w.min())

    def wait(self, seconds: float) -> None:
        """Let time pass on the rig."""
        self.seconds += seconds

    def step(self, work: Any) -> Any:
        """Raise NotImplementedError: the rig measures cells."""
        raise NotImplementedError

    def current(self) -> Knobs | None:
        """The clock that was set."""
        return self._present

    def _apply(self, knobs: Knobs) -> None:
        self._present = knobs

    def _snapshot(self) -> object:
        return self._present

    def _restore(self, snapshot: object) -> None:
        self._present = snapshot  # type: ignore[assignment]
