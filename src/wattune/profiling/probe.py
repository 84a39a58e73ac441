"""One cell of a profile: a few steps at one setting, timed, with the power sensor read meanwhile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import mean, stdev
from typing import Any

from wattune.algorithms import open_algorithm, release
from wattune.devices import Device, Meter, MeterFigures, Setting
from wattune.errors import BoardUnusable, OutOfDeviceMemory
from wattune.profiling.fit import Fit, can_travel, fit, is_needed
from wattune.profiling.grid import Shape
from wattune.profiling.peak import PeakMemory
from wattune.profiling.strain import REPEATS, Strain, rest
from wattune.records import AbortedProbe, ProfileCell, ProfileCost, StepWork
from wattune.workloads import Workload

WARM_UP_STEPS = 2
WINDOWS = 3
"""A cell is measured for at least this many windows of the sensor."""

SHORTEST_WINDOW_S = 0.1

ENOUGH_S = 10.0
"""After so long no further step is asked for: long steps tell their time by themselves, and the sensor was read often.
Otherwise the slowest settings, which are hardly ever chosen, take most of a profile's time."""

Probe = tuple[ProfileCell | AbortedProbe, ProfileCost]
"""What came out of one probe, and what it cost the device, warm-up included."""


class Prober:
    """Measures cells of one workload on one device; what it needs for one shape is kept for the next setting.

    A device that does not execute steps is only told of them; on others the algorithm trains on a made-up batch, with
    weights of its own. Where training and the system share the memory, ``rows``, the shapes that will be asked for,
    are tried in a process of its own before the first of them is measured. ``calm``: whether all that the sensor may
    still show kept the cap; where it did not, or nobody knows, a probe begins by waiting until that has passed.
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
        rows: Sequence[Shape] = (),
        calm: bool = False,
    ):
        self._device = device
        self._workload = workload
        self._algorithm = algorithm
        self._steps = steps
        self._windows = windows
        self._cap_w = cap_w
        self._rows = rows
        self._fit: Fit | None = None
        self._shape: Shape | None = None
        self._work: StepWork | None = None
        self._peak: PeakMemory | None = None
        self._training: Iterator[Any] = itertools.repeat(None)
        self._is_calm = calm

    def probe(self, shape: Shape, setting: float | None) -> Probe:
        """Warm up, then measure for at least ``steps`` steps, or ``ENOUGH_S`` where they are long, and ``windows``
        windows of the sensor.

        At the first reading above the cap the device goes to its lowest setting, in the middle of a step, and the
        probe ends with that step. A cell that was taken while the board
        was throttled or had an over-current event is measured again after a rest, ``REPEATS`` times at most.
        Raises: DeviceError, InputError.
        """
        place: dict[str, Any] = {"batch_size": shape[0]}
        if shape[1] != shape[0]:
            place["micro_batch_size"] = shape[1]
        if setting is not None and self._device.actuator is not None:
            place[self._device.actuator] = setting
        spent: list[MeterFigures] = []
        if self._fits(shape):
            try:
                return self._undisturbed(shape, setting, place, spent), self._cost(spent)
            except OutOfDeviceMemory:
                pass
            self._shape, self._work, self._training = None, None, itertools.repeat(None)
            release()
        return ProfileCell(**place, out_of_memory=True), self._cost([])

    def _fits(self, shape: Shape) -> bool:
        if self._fit is None:
            self._fit = Fit(frozenset(), {}, 0.0)
            if self._rows and is_needed(self._device) and can_travel(self._workload):
                # Nobody watches the power meanwhile.
                lowest = None if self._cap_w is None else min(self._device.settings, default=None)
                with self._at(lowest):
                    self._fit = fit(self._device, self._workload, self._algorithm, self._rows)
        return shape[1] not in self._fit.unfit

    def _memory_bytes(self, shape: Shape, work: StepWork) -> float | None:
        """What a step takes: by the count of its operations where none is executed, else as it was measured."""
        if not self._device.executes_steps:
            return work.peak_memory_bytes
        measured = None if self._fit is None else self._fit.memory_bytes(shape)
        return measured if measured is not None or self._peak is None else self._peak.read()

    def _undisturbed(
        self, shape: Shape, setting: float | None, place: dict[str, Any], spent: list[MeterFigures]
    ) -> ProfileCell | AbortedProbe:
        for repeats_left in range(REPEATS, -1, -1):
            with self._at(setting) as actuator:
                work = self._prepared(shape)
                found = self._measure(work, actuator, place, spent)
                if isinstance(found, ProfileCell):
                    found = found.model_copy(update={"memory_bytes": self._memory_bytes(shape, work)})
            self._is_calm = not isinstance(found, AbortedProbe)
            if isinstance(found, AbortedProbe) or not found.disturbed or not repeats_left:
                break
            with Meter(self._device, cap_w=self._cap_w) as meter:
                rest(self._device)
            spent.append(meter.figures())
        return found

    @contextmanager
    def _at(self, setting: float | None) -> Iterator[Setting]:
        with self._device.at(setting) as actuator:
            if self._cap_w is not None:
                self._device.hand_over(self._cap_w)  # in a step that hangs nobody looks at readings
            yield actuator

    def _cost(self, spent: Sequence[MeterFigures]) -> ProfileCost:
        return ProfileCost(
            time_s=sum(figures.time_s for figures in spent),
            energy_j=sum(figures.energy_j for figures in spent),
            above_cap_s=sum(figures.above_cap_s for figures in spent),
            probes=1,
            cap_w=self._cap_w,
        )

    def _prepared(self, shape: Shape) -> StepWork:
        if self._shape != shape or self._work is None:
            self._training = itertools.repeat(None)  # the last one's memory goes before the next one needs it
            self._peak = PeakMemory.of_cuda(self._device.trains_on) if self._device.executes_steps else None
            algorithm = open_algorithm(
                self._algorithm,
                self._workload,
                shape[0],
                micro_batch_size=shape[1],
                on=self._device.trains_on if self._device.executes_steps else "cpu",
            )
            self._work = algorithm.work()
            if self._device.executes_steps:
                self._training = algorithm.run(itertools.repeat(self._workload.example(shape[0])))
                self._is_calm = False
            self._shape = shape
        return self._work

    def _measure(
        self, work: StepWork, actuator: Setting, place: dict[str, Any], spent: list[MeterFigures]
    ) -> ProfileCell | AbortedProbe:
        device, sensor, cap_w = self._device, self._device.sensor, self._cap_w
        above: list[float] = []
        calm_s = device.now_s() + (0.0 if self._is_calm or cap_w is None else sensor.settle_s)

        def look(_: float, power_w: float) -> None:
            if not math.isfinite(power_w):
                raise BoardUnusable(f"{device.name}: {sensor.rail} reads {power_w}, which is no power")
            if cap_w is None or power_w <= cap_w or device.now_s() < calm_s:
                return
            above.append(power_w)
            if actuator.value is not None and actuator.value != device.settings[0]:
                actuator.change(device.settings[0])  # a step may take seconds: nothing waits for its end

        window_s = max(sensor.window_s, sensor.period_s, SHORTEST_WINDOW_S)
        with Meter(device, cap_w=cap_w, on_reading=look) as warm_up:
            if calm_s > device.now_s():
                device.wait(calm_s - device.now_s())
            self._run(work, WARM_UP_STEPS, sensor.settle_s, above)
        spent.append(warm_up.figures())
        if not above:
            strain = Strain(device)
            with Meter(device, cap_w=cap_w, on_reading=look) as meter:
                times_s = self._run(work, self._steps, self._windows * window_s, above, strain)
            spent.append(meter.figures())
        if above:
            return AbortedProbe(**place, cap_w=cap_w, power_w=above[0])
        figures = spent[-1]
        return ProfileCell(
            **place,
            step_s=mean(times_s),
            step_std_s=stdev(times_s) if len(times_s) > 1 else None,
            power_mean_w=figures.power_mean_w,
            power_std_w=figures.power_std_w,
            power_peak_w=figures.power_peak_w,
            steps=len(times_s),
            **strain.fields(),
        )

    def _run(
        self, work: StepWork, steps: int, seconds: float, above: list[float], strain: Strain | None = None
    ) -> list[float]:
        """So many steps (or ``ENOUGH_S``) and seconds at least, or until a reading is above the cap; their times."""
        begun_s = self._device.now_s()
        times_s: list[float] = []
        while not above:
            before_s = self._device.now_s()
            if before_s - begun_s >= (seconds if len(times_s) >= steps else max(ENOUGH_S, seconds)):
                break
            with self._device.step(work):
                next(self._training)
            times_s.append(self._device.now_s() - before_s)
            if strain is not None:
                strain.look()
        return times_s
