"""One cell of a profile: a few steps at one setting, timed, with the power sensor read meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from wattune.algorithms import open_algorithm, release
from wattune.cap import SensorLimit
from wattune.devices import Device, MeterFigures
from wattune.errors import OutOfDeviceMemory
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.power.capped_run import CappedRun
from wattune.profiling.board_health import BoardHealth, undisturbed
from wattune.profiling.journal import Measured, is_calm, probe_cost
from wattune.profiling.memory_fit import MemoryFit, can_travel, fit, is_needed
from wattune.profiling.peak_memory import PeakMemory
from wattune.records import AbortedProbe, ProfileCell, StepWork
from wattune.workloads import Workload

WARM_UP_STEPS = 2
WINDOWS = 3
"""A cell is measured for at least this many windows of the sensor."""

SHORTEST_WINDOW_S = 0.1

ENOUGH_S = 2.0
"""Time after which no further step is asked for: a few long steps are enough to tell their time and their power.
Otherwise the slowest settings, which are hardly ever chosen, take most of a profile's time."""


class CellProbe:
    """Measures cells of one workload on one device; preparations for a shape are reused at the next setting.

    A device that does not execute steps only gets their work; on others the algorithm trains on a synthetic batch, with
    weights of its own. If training and the system share the memory, ``rows``, the shapes to come, are tried in a
    process of its own before the first of them is measured. ``workload`` None: a replayed table, whose steps are known
    by their shape alone. ``calm``: all that the sensor may still show is below the
    cap; otherwise the first probe begins by waiting until that has passed. ``stops``: False measures to the end, above
    the limit as well. ``works``: without a workload, the work of a step of a program by its batch size, where it fits.
    """

    def __init__(
        self,
        device: Device,
        workload: Workload | None,
        algorithm: str,
        *,
        steps: int,
        limit: SensorLimit,
        windows: int = WINDOWS,
        rows: Sequence[BatchShape] = (),
        calm: bool = False,
        stops: bool = True,
        works: Mapping[int, StepWork] = {},
    ):
        self._device = device
        self._stops = stops
        self._works = works
        self._workload = workload
        self._algorithm = algorithm
        self._steps = steps
        self._windows = windows
        self._limit = limit
        self._rows = rows
        self._fit: MemoryFit | None = None
        self._shape: BatchShape | None = None
        self._work: StepWork | None = None
        self._peak: PeakMemory | None = None
        self._training: Iterator[Any] = itertools.repeat(None)
        self._is_calm = calm

    def measure(self, point: OperatingPoint) -> Measured:
        """Warm up, then measure at least ``steps`` steps, or ``ENOUGH_S`` if they are long, and ``windows`` windows of
        the sensor.

        As soon as the power is above the cap the device goes to its safest setting, in the middle of a step, and the
        probe ends with that step. A cell that was taken while the board was throttled or had an over-current event is
        measured again after a rest, ``REPEATS`` times at most. Raises: DeviceError, InputError.
        """
        spent: list[MeterFigures] = []
        self._device.select(point.knobs)
        if self._fits(point.shape):
            try:
                result = undisturbed(self._device, self._limit, spent, lambda: self._measured(point, spent))
                return result, probe_cost(spent, self._limit.limit_w)
            except OutOfDeviceMemory:
                pass
            self._shape, self._work, self._training = None, None, itertools.repeat(None)
            release()
        return ProfileCell(**point.fields(), out_of_memory=True), probe_cost([], self._limit.limit_w)

    def _fits(self, shape: BatchShape) -> bool:
        if self._fit is None:
            self._fit = MemoryFit(frozenset(), {}, 0.0)
            if self._rows and is_needed(self._device) and self._workload and can_travel(self._workload):
                # The power is not measured meanwhile.
                safest = Knobs() if self._limit.limit_w is None else self._device.safest
                with CappedRun(self._device, self._limit, safest):
                    self._fit = fit(self._device, self._workload, self._algorithm, self._rows)
        return shape.micro not in self._fit.unfit

    def _memory_bytes(self, shape: BatchShape, work: StepWork) -> float | None:
        """Memory of a step: by the count of its operations if none is executed, else as it was measured."""
        if not self._device.executes_steps:
            return work.peak_memory_bytes or None
        measured = None if self._fit is None else self._fit.memory_bytes(shape)
        return measured if measured is not None or self._peak is None else self._peak.read()

    def _measured(self, point: OperatingPoint, spent: list[MeterFigures]) -> ProfileCell | AbortedProbe:
        with CappedRun(self._device, self._limit, point.knobs) as run:
            if not self._stops:
                run.move_cap(self._limit, is_answered=False)
            run.limiter.move(point.knobs, probe=True)
            work = self._prepared(point.shape)
            result = self._steps_timed(work, run, point, spent)
            if isinstance(result, ProfileCell):
                result = result.model_copy(update={"memory_bytes": self._memory_bytes(point.shape, work)})
        self._is_calm = is_calm(result, self._limit)
        return result

    def _prepared(self, shape: BatchShape) -> StepWork:
        if self._workload is None:
            if self._works and shape.batch not in self._works:
                raise OutOfDeviceMemory(f"batch size {shape.batch} does not fit")
            return self._works.get(shape.batch) or _known_by_shape(shape, self._device)
        if self._shape != shape or self._work is None:
            self._training = itertools.repeat(None)  # the last one's memory goes before the next one needs it
            self._peak = PeakMemory.of_cuda(self._device.trains_on) if self._device.executes_steps else None
            algorithm = open_algorithm(
                self._algorithm,
                self._workload,
                shape.batch,
                micro_batch_size=shape.micro,
                on=self._device.trains_on if self._device.executes_steps else "cpu",
            )
            self._work = algorithm.work()
            if self._device.executes_steps:
                self._training = algorithm.run(itertools.repeat(self._workload.example(shape.batch)))
                self._is_calm = False
            self._shape = shape
        return self._work

    def _steps_timed(
        self, work: StepWork, run: CappedRun, point: OperatingPoint, spent: list[MeterFigures]
    ) -> ProfileCell | AbortedProbe:
        device, sensor, limiter = self._device, self._device.sensor, run.limiter
        window_s = max(sensor.window_s, sensor.period_s, SHORTEST_WINDOW_S)
        seconds = max(self._windows * window_s, self._limit.window_s or 0.0)
        with run.metered(is_calm=self._is_calm) as warm_up:
            if limiter.quiet_s:
                device.wait(limiter.quiet_s)
            self._run(work, run, WARM_UP_STEPS, sensor.settle_s)
        spent.append(warm_up.figures())
        if limiter.crossed_w is None:
            health = BoardHealth(device)
            with run.metered() as meter:
                times_s = self._run(work, run, self._steps, seconds, health)
            spent.append(meter.figures())
        if limiter.crossed_w is not None:
            return AbortedProbe(**point.fields(), cap_w=self._limit.limit_w, power_w=limiter.crossed_w)
        figures = spent[-1]
        return ProfileCell(
            **point.fields(),
            step_s=mean(times_s),
            step_std_s=stdev(times_s) if len(times_s) > 1 else None,
            power_mean_w=figures.power_mean_w,
            power_std_w=figures.power_std_w,
            power_peak_w=figures.power_peak_w,
            power_window_w=figures.power_window_w,
            steps=len(times_s),
            **health.fields(),
        )

    def _run(
        self, work: StepWork, run: CappedRun, steps: int, seconds: float, health: BoardHealth | None = None
    ) -> list[float]:
        """Times of at least ``steps`` steps (or ``ENOUGH_S``) over ``seconds``, or until the probe is over."""
        begun_s = self._device.now_s()
        times_s: list[float] = []
        while run.limiter.crossed_w is None and run.meter.lost is None:
            before_s = self._device.now_s()
            if before_s - begun_s >= (seconds if len(times_s) >= steps else max(ENOUGH_S, seconds)):
                break
            with self._device.step(work):
                next(self._training)
            times_s.append(self._device.now_s() - before_s)
            if health is not None:
                health.look()
        return times_s


def _known_by_shape(shape: BatchShape, device: Device) -> StepWork:
    return StepWork(
        samples=shape.batch,
        micro_batch_size=shape.micro,
        data_type=min(device.data_types),
        phases=(),
        peak_memory_bytes=0.0,
    )
