"""The three power readings of an NVIDIA GPU, each with the window that it averages over."""

from __future__ import annotations

from typing import Protocol

from wattune.devices.base import Sensor
from wattune.devices.nvidia.nvml import AMPERE, GA100, Gpu
from wattune.errors import SensorError
from wattune_agent.energy_steps import REFRESH_S, WINDOW_S, EnergySteps
from wattune_agent.errors import NoReading

COVERS = "the GPU board with its memory, not the rest of the machine"


class PowerReader(Protocol):
    """One of the three: its properties as a sensor, and a reading in watts."""

    sensor: Sensor

    def read_w(self) -> float:
        """Take a reading. Raises: DeviceError."""


class EnergyCounter:
    """Power as the difference of the energy counter between two of its refreshes (Volta and newer).

    A reading waits for the next refresh, at most a tenth of a second; the first one for a few.
    """

    sensor = Sensor("energy counter", period_s=REFRESH_S, window_s=WINDOW_S, covers=COVERS)

    def __init__(self, gpu: Gpu):
        self._gpu = gpu
        self._steps = EnergySteps(self._energy_j)

    def read_w(self) -> float:
        """Mean power over about the last half second.

        Raises: SensorError if the counter does not move or is gone; DeviceError.
        """
        try:
            return self._steps.read_w()
        except NoReading as error:
            raise SensorError(f"{self._gpu.name}: {error}") from error

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
