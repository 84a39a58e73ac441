"""One cell of a profile: a few steps at one setting, timed, with the power sensor read meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from statistics import mean, stdev
from typing import Any

from wattune.algorithms import open_algorithm
from wattune.devices import Device, Meter
from wattune.errors import OutOfDeviceMemory
from wattune.profiling.grid import Shape
from wattune.records import AbortedProbe, ProfileCell, ProfileCost, StepWork
from wattune.workloads import Workload

WARM_UP_STEPS = 2
WINDOWS = 3
"""A cell is measured for at least this many windows of the sensor."""

SHORTEST_WINDOW_S = 0.1


Probe = tuple[ProfileCell | AbortedProbe, ProfileCost]
"""What came out of one probe, and what it cost the device, warm-up included."""


class Prober:
    """Measures cells of one workload on one device; what it needs for one shape is kept for the next setting.

    A device that does not execute steps is only told of them; on others the algorithm trains on a made-up batch, with
    weights of its own.
    """

    def __init__(
        self,
        device: Device,
        workload: Workload,
        algorithm: str,
        *,
        steps: int,
        cap_w: float | None,
        windows: int = WINDOWS,
    ):
        self._device = device
        self._workload = workload
        self._algorithm = algorithm
        self._steps = steps
        self._windows = windows
        self._cap_w = cap_w
        self._shape: Shape | None = None
        self._work: StepWork | None = None
        self._training: Iterator[Any] = itertools.repeat(None)

    def probe(self, shape: Shape, setting: float | None) -> Probe:
        """Warm up, then measure for at least ``steps`` steps and ``windows`` windows of the sensor.

        Stopped after the step in which a reading of this cell is above the cap. Raises: DeviceError, InputError.
        """
        place: dict[str, Any] = {"batch_size": shape[0]}
        if shape[1] != shape[0]:
            place["micro_batch_size"] = shape[1]
        if setting is not None and self._device.actuator is not None:
            place[self._device.actuator] = setting
        try:
            with self._device.at(setting):
                return self._measure(self._prepared(shape), place)
        except OutOfDeviceMemory:
            self._shape = None
            nothing = ProfileCost(time_s=0, energy_j=0, above_cap_s=0, probes=1, cap_w=self._cap_w)
            return ProfileCell(**place, out_of_memory=True), nothing

    def _prepared(self, shape: Shape) -> StepWork:
        if self._shape != shape or self._work is None:
            self._training = itertools.repeat(None)  # the last one's memory goes before the next one needs it
            algorithm = open_algorithm(self._algorithm, self._workload, shape[0], micro_batch_size=shape[1])
            self._work = algorithm.work()
            if self._device.executes_steps:
                self._training = algorithm.run(itertools.repeat(self._workload.example(shape[0])))
            self._shape = shape
        return self._work

    def _measure(self, work: StepWork, place: dict[str, Any]) -> Probe:
        device, sensor, cap_w = self._device, self._device.sensor, self._cap_w
        begun_s = device.now_s()
        above: list[float] = []

        def look(_: float, power_w: float) -> None:
            # Until the sensor has settled, a reading holds something of what was before this cell.
            if cap_w is not None and power_w > cap_w and device.now_s() - begun_s >= sensor.settle_s:
                above.append(power_w)

        window_s = max(sensor.window_s, sensor.period_s, SHORTEST_WINDOW_S)
        with Meter(device, cap_w=cap_w, on_reading=look) as warm_up:
            self._run(work, WARM_UP_STEPS, sensor.settle_s, above)
        spent = [warm_up.figures()]
        if not above:
            with Meter(device, cap_w=cap_w, on_reading=look) as meter:
                times_s = self._run(work, self._steps, self._windows * window_s, above)
            spent.append(meter.figures())
        cost = ProfileCost(
            time_s=sum(figures.time_s for figures in spent),
            energy_j=sum(figures.energy_j for figures in spent),
            above_cap_s=sum(figures.above_cap_s for figures in spent),
            probes=1,
            cap_w=cap_w,
        )
        if above:
            return AbortedProbe(**place, cap_w=cap_w, power_w=above[0]), cost
        figures = spent[-1]
        cell = ProfileCell(
            **place,
            step_s=mean(times_s),
            step_std_s=stdev(times_s) if len(times_s) > 1 else None,
            power_mean_w=figures.power_mean_w,
            power_std_w=figures.power_std_w,
            power_peak_w=figures.power_peak_w,
            steps=len(times_s),
        )
        return cell, cost

    def _run(self, work: StepWork, steps: int, seconds: float, above: list[float]) -> list[float]:
        """So many steps and seconds at least, or until a reading is above the cap; the time of each step."""
        begun_s = self._device.now_s()
        times_s: list[float] = []
        while not above and (len(times_s) < steps or self._device.now_s() - begun_s < seconds):
            before_s = self._device.now_s()
            with self._device.step(work):
                next(self._training)
            times_s.append(self._device.now_s() - before_s)
        return times_s
