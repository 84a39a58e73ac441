"""The three power readings of an NVIDIA GPU, each with the window that it averages over."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

from wattune.devices.base import Sensor
from wattune.devices.nvidia.nvml import AMPERE, GA100, Gpu
from wattune.errors import SensorError

COVERS = "the GPU board with its memory, not the rest of the machine"

REFRESH_S = 0.1
"""Time between fresh values of the energy counter. Source: ml.energy, "Thermally stable profiling"."""

WINDOW_S = 0.5
"""Window of the energy counter's power: five refreshes, whose ends are known to a few milliseconds."""

SHORTEST_S = 0.2
"""Least window of the first reading, and of one after a pause."""

POLL_S = 0.002
"""Time between reads of the energy counter while waiting for its next refresh."""

STILL_S = 1.0
"""Time without a change after which an energy counter counts as broken: a GPU always draws some power."""


class PowerReader(Protocol):
    """One of the three: its properties as a sensor, and a reading in watts."""

    sensor: Sensor

    def read_w(self) -> float:
        """Take a reading. Raises: DeviceError."""


class EnergyCounter:
    """Power as the difference of the energy counter between two of its refreshes (Volta and newer).

    The counter moves in steps, so a difference between two arbitrary moments would be off by up to a step at either
    end. A reading therefore waits for the next refresh, at most a tenth of a second; the first one for a few.
    """

    sensor = Sensor("energy counter", period_s=REFRESH_S, window_s=WINDOW_S, covers=COVERS)

    def __init__(self, gpu: Gpu):
        self._gpu = gpu
        self._lock = threading.Lock()
        self._refreshes: deque[tuple[float, float]] = deque()

    def read_w(self) -> float:
        """Mean power over about the last half second.

        Raises: SensorError if the counter does not move or is gone; DeviceError.
        """
        with self._lock:
            known = self._refreshes
            known.append(self._next_refresh())
            while known[-1][0] - known[0][0] > WINDOW_S + REFRESH_S:
                known.popleft()
            while known[-1][0] - known[0][0] < SHORTEST_S:
                known.append(self._next_refresh())
            (begin_s, begin_j), (end_s, end_j) = known[0], known[-1]
            if end_j < begin_j:  # the driver was loaded again
                known.clear()
                raise SensorError(f"{self._gpu.name}: the energy counter fell")
            return (end_j - begin_j) / (end_s - begin_s)

    def _next_refresh(self) -> tuple[float, float]:
        before_j = self._energy_j()
        began_s = time.monotonic()
        while True:
            time.sleep(POLL_S)
            energy_j = self._energy_j()
            now_s = time.monotonic()
            if energy_j != before_j:
                return now_s, energy_j
            if now_s - began_s > STILL_S:
                raise SensorError(f"{self._gpu.name}: the energy counter stands still at {energy_j:.3f} J")

    def _energy_j(self) -> float:
        energy_j = self._gpu.energy_j()
        if energy_j is None:
            raise SensorError(f"{self._gpu.name}: the energy counter is gone")
        return energy_j


class InstantPower:
    """The field of instantaneous power. An A100 or H100 samples a quarter of the time. Source: arXiv 2312.02741."""

    sensor = Sensor("instantaneous power", period_s=REFRESH_S, covers=COVERS)

    def __init__(self, gpu: Gpu):
        self._gpu = gpu

    def read_w(self) -> float:
        """Raises: SensorError, DeviceError."""
        return _given(self._gpu, self._gpu.instant_w(), self.sensor)


class ReportedPower:
    """The power in ``nvidia-smi``: the mean of a second on Ampere (except GA100) and newer, instantaneous before.

    Source: NVML reference, nvmlDeviceGetPowerUsage.
    """

    def __init__(self, gpu: Gpu):
        self._gpu = gpu
        averaged = gpu.architecture >= AMPERE and gpu.capability != GA100
        self.sensor = Sensor(
            "averaged power" if averaged else "reported power",
            period_s=REFRESH_S,
            window_s=1.0 if averaged else 0.0,
            covers=COVERS,
        )

    def read_w(self) -> float:
        """Raises: SensorError, DeviceError."""
        return _given(self._gpu, self._gpu.usage_w(), self.sensor)


def find_reader(gpu: Gpu) -> PowerReader | None:
    """The best that the GPU has: energy counter, else instantaneous power, else what it reports; None without any.

    Raises: DeviceError.
    """
    if gpu.energy_j() is not None:
        return EnergyCounter(gpu)
    if gpu.instant_w() is not None:
        return InstantPower(gpu)
    return None if gpu.usage_w() is None else ReportedPower(gpu)


def _given(gpu: Gpu, power_w: float | None, sensor: Sensor) -> float:
    if power_w is None:
        raise SensorError(f"{gpu.name}: {sensor.rail} is gone")
    return power_w
