"""One cell of a program's profile: the program run at one batch size and setting, timed and metered."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean, stdev
from typing import Any, NamedTuple

from wattune.cap import SensorLimit
from wattune.devices import Device, MeterFigures
from wattune.devices.meter import highest_window
from wattune.errors import OutOfDeviceMemory, WorkloadError
from wattune.point import OperatingPoint
from wattune.power.capped_run import CappedRun
from wattune.profiling.board_health import BoardHealth, undisturbed
from wattune.profiling.journal import Measured, probe_cost
from wattune.profiling.program.step_times import SKIPPED, StepStretch, StepTimes, by_lengths, readings_between
from wattune.program.process import Process
from wattune.program.rounds import StepPage
from wattune.records import AbortedProbe, ProfileCell

TICK_S = 0.1
WINDOWS = 3
SHORTEST_S = 1.0
"""A cell is measured for at least this many windows of the sensor, and this many seconds."""

LONGER = 8
"""Most times that a run is longer than the one before it, until its steps are known."""

TRIES = 8
"""Runs of growing length, until one is long enough."""

BLIND_TRIES = 3
"""Most of these without any step time in the output: it may print one in a hundred steps, or never."""


class Above(Exception):
    """A reading was above the cap."""


class ProgramRun(NamedTuple):
    """One run, in seconds since its meter began."""

    begun_s: float
    ended_s: float
    readings: tuple[tuple[float, float], ...]
    times: StepTimes
    health: dict[str, Any]
    last: str


class ProgramProbe:
    """Measures cells of a program on a device that it runs on.

    ``words`` gives the command for a batch size and a number of steps, which it takes if it ``has_lengths``; ``times``
    makes the reader of a run's step times, for a page of steps and a batch size. Unless they are ``is_timed``, the time
    of a step comes from two runs of different length. ``limit_s``: a run that takes longer has failed. ``say`` is
    called before each run, with its point and its number of steps.
    """

    def __init__(
        self,
        device: Device,
        words: Callable[[int, int], list[str]],
        *,
        times: Callable[[StepPage, int], StepTimes],
        has_lengths: bool,
        is_timed: bool,
        steps: int,
        limit: SensorLimit,
        limit_s: float,
        say: Callable[[OperatingPoint, int], None],
    ):
        self._device = device
        self._words, self._times = words, times
        self._has_lengths, self._is_timed = has_lengths, is_timed
        self._steps = steps
        self._limit = limit
        self._limit_s = limit_s
        self._say = say
        window_s = max(device.sensor.window_s, device.sensor.period_s)
        self._needed_s = device.sensor.settle_s + max(SHORTEST_S, WINDOWS * window_s)
        self._known: dict[int, int] = {}  # batch size -> steps that were enough
        self._readings: list[tuple[float, float]] = []
        self._is_warm = False
        self._unfit: int | None = None

    def measure(self, point: OperatingPoint) -> Measured:
        """Run the program until its steps and its power are known, or a reading is above the cap.

        A cell that was taken while the board was throttled or had an over-current event is measured again after a rest.

        Raises: WorkloadError if the program fails, hangs, or reports nothing of its steps; DeviceError, InputError.
        """
        spent: list[MeterFigures] = []
        result: ProfileCell | AbortedProbe = ProfileCell(**point.fields(), out_of_memory=True)
        if self._unfit is None or point.batch_size < self._unfit:
            try:
                result = undisturbed(self._device, self._limit, spent, lambda: self._measured(point, spent))
            except OutOfDeviceMemory:
                self._unfit = point.batch_size
        return result, probe_cost(spent, self._limit.limit_w)

    def _measured(self, point: OperatingPoint, spent: list[MeterFigures]) -> ProfileCell | AbortedProbe:
        with CappedRun(self._device, self._limit, point.knobs, on_reading=self._read) as run:
            run.limiter.move(point.knobs, probe=True)
            try:
                return self._cell(point, run, spent)
            except Above:
                assert self._limit.limit_w is not None
                assert run.limiter.crossed_w is not None
                return AbortedProbe(**point.fields(), cap_w=self._limit.limit_w, power_w=run.limiter.crossed_w)

    def _read(self, time_s: float, power_w: float) -> None:
        self._readings.append((time_s, power_w))

    def _cell(self, point: OperatingPoint, capped: CappedRun, spent: list[MeterFigures]) -> ProfileCell:
        batch_size = point.batch_size
        runs: list[ProgramRun] = []

        def run(steps: int) -> ProgramRun:
            self._say(OperatingPoint(point.shape, capped.setting.knobs), steps)
            with StepPage() as page, page.stamped():
                runs.append(self._run(page, batch_size, steps, capped, spent))
            return runs[-1]

        stretch, steps = self._by_times(batch_size, run) if self._is_timed else self._by_lengths(batch_size, run)
        sensor, last = self._device.sensor, runs[-1]
        powers = readings_between(last.readings, stretch.begin_s + sensor.settle_s, stretch.end_s + sensor.lag_s)
        # The cap holds from the first second to the last, whatever a program does before it trains.
        peaks = [readings_between(r.readings, r.begun_s + sensor.settle_s, r.ended_s + sensor.settle_s) for r in runs]
        return ProfileCell(
            **point.fields(),
            step_s=mean(stretch.times_s),
            step_std_s=stdev(stretch.times_s) if len(stretch.times_s) > 1 else None,
            power_mean_w=mean(powers),
            power_std_w=stdev(powers) if len(powers) > 1 else 0.0,
            power_peak_w=max(max(peak) for peak in peaks),
            power_window_w=max(filter(None, (highest_window(peak, self._limit) for peak in peaks)), default=None),
            steps=steps,
            **last.health,
        )

    # ------------------------------------------------------------------------------------------------- lengths of runs

    def _by_times(self, batch_size: int, run: Callable[[int], ProgramRun]) -> tuple[StepStretch, int]:
        """By step times that the program tells. Gives what was measured, and how many times there were."""
        wanted = self._steps + SKIPPED
        steps = self._known.get(batch_size, wanted)
        for tries in range(1, TRIES + 1):
            last = run(steps)
            last.times.check(last.ended_s - last.begun_s)
            stretch = last.times.stretch(last.begun_s)
            if self._is_enough(stretch):
                assert stretch is not None
                self._known[batch_size] = steps
                return stretch, len(stretch.times_s)
            if not self._has_lengths or (stretch is None and tries == BLIND_TRIES):
                break
            missing = LONGER / 2.0
            if stretch is not None:
                missing = 1.3 * max(
                    wanted / (len(stretch.times_s) + SKIPPED), self._needed_s / max(stretch.seconds, 1e-3)
                )
            steps = math.ceil(steps * min(max(missing, 1.3), LONGER))
        if stretch is None:
            where = last.times.where
            raise WorkloadError(
                f"too few step times in {where}, with the first {SKIPPED} left out; the last line of the program",
                value=last.last,
                hint=last.times.hint,
            )
        raise WorkloadError(
            f"the program trains for {stretch.seconds:.2g} s and {len(stretch.times_s)} step times, too short to be "
            "measured",
            allowed=f"{self._needed_s:.2g} s and {self._steps} step times",
            hint="put {steps} into the command, or let it train for longer",
        )

    def _by_lengths(self, batch_size: int, run: Callable[[int], ProgramRun]) -> tuple[StepStretch, int]:
        """By two runs of different length, the second of them long enough for what comes before and after training."""
        few = self._steps
        if not self._is_warm:
            run(few)  # the first of all reads its files from the disk, later ones from memory
            self._is_warm = True
        short = run(few)
        short_s = short.ended_s - short.begun_s
        many = self._known.get(batch_size, LONGER * few)
        alike = 0
        for _ in range(TRIES):
            last = run(many)
            many_s = last.ended_s - last.begun_s
            stretch = by_lengths((few, short_s), (many, many_s), last.begun_s)
            alike = 0 if stretch is not None else alike + 1
            if alike == BLIND_TRIES:
                break
            needed_s = max(2 * SHORTEST_S, 2 * self._needed_s)
            if stretch is not None:
                step_s = stretch.times_s[0]
                needed_s = max(needed_s, 2 * (many_s - many * step_s))
                if many * step_s >= needed_s:
                    self._known[batch_size] = many
                    return stretch, many - few
            longer = math.inf if stretch is None else 1.5 * needed_s / stretch.times_s[0] / many
            many = math.ceil(many * min(max(longer, 1.5), LONGER))
        raise WorkloadError(
            f"the program takes {short_s:.3g} s for {few} steps and {many_s:.3g} s for {many}: hardly longer",
            hint="use {steps} as the number of steps, or let it print step times and give --step-time PATTERN",
        )

    def _is_enough(self, stretch: StepStretch | None) -> bool:
        return stretch is not None and len(stretch.times_s) >= self._steps and stretch.seconds >= self._needed_s

    # --------------------------------------------------------------------------------------------------------- one run

    def _run(
        self, page: StepPage, batch_size: int, steps: int, capped: CappedRun, spent: list[MeterFigures]
    ) -> ProgramRun:
        stopped, self._readings = False, []
        health, times = BoardHealth(self._device), self._times(page, batch_size)
        words = self._words(batch_size, steps)
        try:
            with (
                # Until the sensor has settled, a reading may hold power from before the program.
                capped.metered(is_calm=False) as meter,
                Process(words, now_s=lambda: capped.meter.elapsed_s, on_line=times.hear) as program,
            ):
                while not (stopped or capped.limiter.crossed_w is not None or program.over.wait(TICK_S)):
                    health.look()
                    if meter.lost is not None:
                        raise meter.lost
                    run_s = meter.elapsed_s - program.begun_s
                    if run_s > self._limit_s:
                        raise WorkloadError(
                            f"the program did not end within {self._limit_s:g} s at batch size {batch_size}; its last "
                            "line",
                            value=program.last_line,
                            hint="give more time by --run-limit",
                        )
                    if times.is_unseen(run_s):
                        what = "no step of the program is seen; its last line"
                        raise WorkloadError(what, value=program.last_line, hint=times.hint)
                    if not self._has_lengths:  # else it knows itself when to end
                        times.look(meter.elapsed_s)
                        stopped = self._is_enough(times.stretch(program.begun_s))
                ended_s = program.ended_s if program.over.is_set() else meter.elapsed_s
                times.look(meter.elapsed_s)  # not later: it may go on while it is asked to end
        finally:
            if capped.limiter.has_read:
                spent.append(capped.meter.figures())
        if capped.limiter.crossed_w is not None:
            raise Above
        if not stopped:
            knobs = capped.setting.knobs
            program.check_ending(f"at batch size {batch_size}" + (f" and {knobs}" if knobs else ""))
        readings, last = tuple(self._readings), program.last_line
        return ProgramRun(program.begun_s, ended_s, readings, times, health.fields(), last)
