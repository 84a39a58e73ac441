"""One cell of a program's profile: it is run at one batch size and setting, timed, and the power is read meanwhile."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from wattune.devices import Device, Meter, MeterFigures, Setting
from wattune.errors import OutOfDeviceMemory, WorkloadError
from wattune.profiling.grid import Shape
from wattune.profiling.process import Process
from wattune.profiling.steptimes import SKIPPED, StepTimes, Stretch, by_lengths, readings_between
from wattune.profiling.strain import REPEATS, Strain, rest
from wattune.profiling.template import Template
from wattune.records import AbortedProbe, ProfileCell, ProfileCost

TICK_S = 0.1
WINDOWS = 3
SHORTEST_S = 1.0
"""A cell is measured for at least so many windows of the sensor, and so many seconds."""

LONGER = 8
"""A run is at most so many times longer than the one before it, until its steps are known."""

TRIES = 8
"""Runs of growing length, until one is long enough."""

BLIND_TRIES = 3
"""Of these, so many without any step time in the output: it may print one in a hundred steps, or never."""

KILLED = frozenset({-9, -7})
"""Endings by the kernel, for lack of memory: SIGKILL, and SIGBUS for Tegra's own memory."""

NO_MEMORY = re.compile(
    r"out.of.memory|nvmap|\boom\b|memoryerror|bad_alloc|resource.?exhausted|cannot allocate memory|alloc_failed|"
    r"killed by signal: (killed|bus)",
    re.IGNORECASE,
)
"""What programs say, in whatever language, where memory did not suffice."""


class Above(Exception):
    """A reading was above the cap."""

    def __init__(self, power_w: float):
        super().__init__(power_w)
        self.power_w = power_w


class Run(NamedTuple):
    """One run, in seconds since its meter began."""

    begun_s: float
    ended_s: float
    readings: tuple[tuple[float, float], ...]
    times: StepTimes
    strain: dict[str, Any]
    last: str


class ProgramProber:
    """Measures cells of a program on a device that it runs on.

    ``pattern`` and ``file`` as in ``StepTimes``; without both, the time of a step comes from two runs of different
    length. ``limit_s``: a run that takes longer has failed. ``say`` is told of each run.
    """

    def __init__(
        self,
        device: Device,
        template: Template,
        *,
        pattern: re.Pattern[str] | None,
        file: Path | None,
        steps: int,
        cap_w: float | None,
        limit_s: float,
        say: Callable[[int, float | None, int], None],
    ):
        self._device = device
        self._template = template
        self._pattern, self._file = pattern, file
        self._steps = steps
        self._cap_w = cap_w
        self._limit_s = limit_s
        self._say = say
        window_s = max(device.sensor.window_s, device.sensor.period_s)
        self._needed_s = device.sensor.settle_s + max(SHORTEST_S, WINDOWS * window_s)
        self._known: dict[int, int] = {}  # batch size -> steps that were enough
        self._is_warm = False
        self._unfit: int | None = None

    def probe(self, shape: Shape, setting: float | None) -> tuple[ProfileCell | AbortedProbe, ProfileCost]:
        """Run the program until its steps and its power are known, or a reading is above the cap.

        A cell that was taken while the board was throttled or had an over-current event is measured again after a rest.

        Raises: WorkloadError where the program fails, hangs, or says nothing of its steps; DeviceError, InputError.
        """
        batch_size = shape[0]
        place: dict[str, Any] = {"batch_size": batch_size}
        if setting is not None and self._device.actuator is not None:
            place[self._device.actuator] = setting
        spent: list[MeterFigures] = []
        found: ProfileCell | AbortedProbe = ProfileCell(**place, out_of_memory=True)
        if self._unfit is None or batch_size < self._unfit:
            try:
                found = self._undisturbed(batch_size, setting, place, spent)
            except OutOfDeviceMemory:
                self._unfit = batch_size
        cost = ProfileCost(
            time_s=sum(figures.time_s for figures in spent),
            energy_j=sum(figures.energy_j for figures in spent),
            above_cap_s=sum(figures.above_cap_s for figures in spent),
            probes=1,
            cap_w=self._cap_w,
        )
        return found, cost

    def _undisturbed(
        self, batch_size: int, setting: float | None, place: dict[str, Any], spent: list[MeterFigures]
    ) -> ProfileCell | AbortedProbe:
        for repeats_left in range(REPEATS, -1, -1):
            try:
                with self._device.at(setting) as actuator:
                    found = self._measure(batch_size, actuator, place, spent)
            except Above as above:
                assert self._cap_w is not None
                return AbortedProbe(**place, cap_w=self._cap_w, power_w=above.power_w)
            if not found.disturbed or not repeats_left:
                break
            with Meter(self._device, cap_w=self._cap_w) as meter:
                rest(self._device)
            spent.append(meter.figures())
        return found

    def _measure(
        self, batch_size: int, actuator: Setting, place: dict[str, Any], spent: list[MeterFigures]
    ) -> ProfileCell:
        runs: list[Run] = []

        def run(steps: int) -> Run:
            self._say(batch_size, actuator.value, steps)
            runs.append(self._run(batch_size, steps, actuator, spent))
            return runs[-1]

        by_times = self._pattern is not None or self._file is not None
        stretch, steps = self._by_times(batch_size, run) if by_times else self._by_lengths(batch_size, run)
        sensor, last = self._device.sensor, runs[-1]
        powers = readings_between(last.readings, stretch.begin_s + sensor.settle_s, stretch.end_s + sensor.lag_s)
        # The cap holds from the first second to the last, whatever a program does before it trains.
        peaks = [readings_between(r.readings, r.begun_s + sensor.settle_s, r.ended_s + sensor.settle_s) for r in runs]
        return ProfileCell(
            **place,
            step_s=mean(stretch.times_s),
            step_std_s=stdev(stretch.times_s) if len(stretch.times_s) > 1 else None,
            power_mean_w=mean(powers),
            power_std_w=stdev(powers) if len(powers) > 1 else 0.0,
            power_peak_w=max(max(peak) for peak in peaks),
            steps=steps,
            **last.strain,
        )

    # ------------------------------------------------------------------------------------------------- lengths of runs

    def _by_times(self, batch_size: int, run: Callable[[int], Run]) -> tuple[Stretch, int]:
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
            if not self._template.has_steps or (stretch is None and tries == BLIND_TRIES):
                break
            missing = LONGER / 2.0
            if stretch is not None:
                missing = 1.3 * max(
                    wanted / (len(stretch.times_s) + SKIPPED), self._needed_s / max(stretch.seconds, 1e-3)
                )
            steps = math.ceil(steps * min(max(missing, 1.3), LONGER))
        where = "the output" if self._file is None else str(self._file)
        if stretch is None:
            raise WorkloadError(
                f"too few step times in {where}, with the first {SKIPPED} left out; the last line of the program",
                value=last.last,
                hint="see the pattern, or give more --steps where it prints seldom",
            )
        raise WorkloadError(
            f"the program trains for {stretch.seconds:.2g} s and {len(stretch.times_s)} step times, too short to be "
            "measured",
            allowed=f"{self._needed_s:.2g} s and {self._steps} step times",
            hint="put {steps} into the command, or let it train for longer",
        )

    def _by_lengths(self, batch_size: int, run: Callable[[int], Run]) -> tuple[Stretch, int]:
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

    def _is_enough(self, stretch: Stretch | None) -> bool:
        return stretch is not None and len(stretch.times_s) >= self._steps and stretch.seconds >= self._needed_s

    # --------------------------------------------------------------------------------------------------------- one run

    def _run(self, batch_size: int, steps: int, actuator: Setting, spent: list[MeterFigures]) -> Run:
        while True:  # again where both stood still for a while
            device, sensor, news = self._device, self._device.sensor, threading.Event()
            readings: list[tuple[float, float]] = []
            above: list[float] = []
            strain, times = Strain(device), StepTimes(self._pattern, self._file)

            def look(time_s: float, power_w: float) -> None:
                readings.append((time_s, power_w))  # noqa: B023 - not called after this run
                # Until the sensor has settled, a reading holds something of what was before.
                if self._cap_w is not None and power_w > self._cap_w and time_s >= sensor.settle_s:  # noqa: B023
                    above.append(power_w)  # noqa: B023
                    news.set()  # noqa: B023

            meter = Meter(device, cap_w=self._cap_w, on_reading=look)
            words = self._template.words(batch_size, steps)
            stopped = False
            try:
                with meter, Process(words, now_s=lambda: meter.elapsed_s, on_line=times.hear, news=news) as program:  # noqa: B023
                    while not (program.is_over or above or stopped):
                        news.wait(TICK_S)
                        news.clear()
                        strain.look()
                        if meter.lost is not None:
                            raise meter.lost
                        if meter.elapsed_s - program.begun_s > self._limit_s and not program.was_paused:
                            raise self._too_long(batch_size, program)
                        if not self._template.has_steps:  # else it knows itself when to end
                            times.look(meter.elapsed_s)
                            stopped = self._is_enough(times.stretch(program.begun_s))
                    ended_s = program.ended_s if program.is_over else meter.elapsed_s
                    if above and not program.is_over:
                        program.tell_to_end()
                        if actuator.value is not None:
                            actuator.change(device.settings[0])
            finally:
                if readings:
                    spent.append(meter.figures())
            if above:
                raise Above(above[0])
            if program.was_paused:
                continue
            if not stopped:
                self._check(batch_size, actuator, program)
            times.look(ended_s)
            return Run(program.begun_s, ended_s, tuple(readings), times, strain.fields(), _said(program.lines))

    def _check(self, batch_size: int, actuator: Setting, program: Process) -> None:
        """How it ended. Raises: OutOfDeviceMemory, WorkloadError."""
        if program.code == 0:
            return
        if program.code in KILLED or any(NO_MEMORY.search(line) for line in program.lines):
            raise OutOfDeviceMemory(f"batch size {batch_size} does not fit in memory")
        ending = f"with exit code {program.code}" if program.code > 0 else f"by signal {-program.code}"
        raise WorkloadError(
            f"the program ended {ending} at batch size {batch_size}{self._at(actuator)}; its last line",
            value=_said(program.lines),
        )

    def _too_long(self, batch_size: int, program: Process) -> WorkloadError:
        return WorkloadError(
            f"the program did not end within {self._limit_s:g} s at batch size {batch_size}; its last line",
            value=_said(program.lines),
            hint="give more time by --run-limit",
        )

    def _at(self, actuator: Setting) -> str:
        if actuator.value is None:
            return ""
        return f" and {actuator.value:g} {'W' if self._device.actuator == 'power_limit_w' else 'MHz'}"


def _said(lines: Sequence[str]) -> str:
    return lines[-1].strip() if lines else "none"
