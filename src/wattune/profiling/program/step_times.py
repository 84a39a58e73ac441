"""Sources of a program's step times: lines that it prints, or the length of its runs."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from wattune import units
from wattune.errors import WorkloadError
from wattune.program.learning import UNSEEN
from wattune.program.printed import printed_s
from wattune.program.rounds import Interval, StepPage, ordinary
from wattune.program.workload import ProgramWorkload, one_group

Source = Literal["printed", "run lengths", "steps seen"]

SKIPPED = 3
"""Step times at the beginning that are left out: memory is reserved there, and kernels are compiled and chosen."""

UNSEEN_S = 300.0
"""Seconds of a run without any step, after which its steps count as unseen. Torch and CUDA alone take more than a
minute to start on a Jetson Nano, and data may be read first."""

FACTOR = 5.0
"""Step times that add up to more than this multiple of the run are wrong, or not in seconds. (Each of four GPUs may
print one.)"""


class StepStretch(NamedTuple):
    """Part of a run in which nothing but training went on, and the times of its steps."""

    begin_s: float
    end_s: float
    times_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end_s - self.begin_s


class PrintedStepTimes:
    """The step times that one run of a program prints.

    ``pattern``: a regular expression with one group, which is the time of a step in seconds, or in milliseconds if the
    group is named ``ms``; None: nothing is looked for.
    """

    where = "the output"
    hint = "see the pattern, or give more --steps where it prints seldom"

    def __init__(self, pattern: re.Pattern[str] | None):
        self._pattern = pattern
        self._found: list[tuple[float, float]] = []  # when a step time was printed, and the step time

    def hear(self, time_s: float, line: str) -> None:
        """Take in a line of the output."""
        found = None if self._pattern is None else self._pattern.search(line)
        if found is not None and (step_s := printed_s(found)):
            self._found.append((time_s, step_s))

    def look(self, now_s: float) -> None:
        """Take in nothing: lines are heard when they are printed."""

    def stretch(self, begun_s: float) -> StepStretch | None:
        """The part of the run behind the first few steps; None if there are no more. ``begun_s``: when it began."""
        found = list(self._found)
        if len(found) <= SKIPPED:
            return None
        times_s = tuple(step_s for _, step_s in found[SKIPPED:])
        begin_s, end_s = found[SKIPPED - 1][0], found[-1][0]
        if end_s - begin_s < sum(times_s) / 2:  # lines that were held back, and then came all at once
            begin_s = max(begun_s, end_s - sum(times_s))
        return StepStretch(begin_s, end_s, times_s)

    def is_unseen(self, run_s: float) -> bool:
        """False: a program may print all its step times at the end."""
        return False

    def check(self, run_s: float) -> None:
        """Check that these can be times of steps. Raises: WorkloadError."""
        total_s = sum(step_s for _, step_s in self._found)
        if total_s > FACTOR * run_s:
            raise WorkloadError(
                f"the step times add up to {total_s:.4g} s in a run of {run_s:.4g} s",
                allowed="seconds, or milliseconds where the group of the pattern is named ms: (?P<ms>...)",
            )


class SeenSteps:
    """The step times of one run whose steps are seen: by the hook in torch, or by the samples that it prints.

    ``program``: one that trains to a target, whose output tells its metric and, without torch, its samples.
    """

    where = "what is seen of the program"

    def __init__(self, page: StepPage, batch_size: int, program: ProgramWorkload | None):
        self._page, self._batch_size = page, batch_size
        self._metric = None if program is None else re.compile(program.metric)
        self._samples = None if program is None or program.samples is None else re.compile(program.samples)
        way = "--step-time PATTERN, or put {steps} into the command" if program is None else "--samples REGEX"
        self.hint = f"give {way}, if it trains without torch"
        self._metrics = 0
        self._stamps: list[tuple[int, float]] = []

    def is_unseen(self, run_s: float) -> bool:
        """True if a program that trains to a target has printed metrics, or has run for long, without any step."""
        if self._metric is None or self._page.most_rounds:
            return False
        return self._metrics >= UNSEEN or run_s > UNSEEN_S

    def hear(self, time_s: float, line: str) -> None:
        """Take in a line of the output."""
        found = self._samples.search(line) if self._samples is not None else None
        if found and found[1] and (samples := units.read(found[1], "s")):
            self._page.stamp(round(samples / self._batch_size), time.monotonic())
        if self._metric is not None and self._metric.search(line):
            self._metrics += 1

    def look(self, now_s: float) -> None:
        """Take in the steps until now."""
        stamp = self._page.read()
        if stamp is not None and (not self._stamps or stamp.rounds > self._stamps[-1][0]):
            self._stamps.append((stamp.rounds, now_s - (time.monotonic() - stamp.time_s)))

    def stretch(self, begun_s: float) -> StepStretch | None:
        """The part of the run behind the first few steps; None if there are no more."""
        stamps = [stamp for stamp in self._stamps if stamp[0] > SKIPPED]
        steps = ordinary([Interval(a_s, b_s, b - a) for (a, a_s), (b, b_s) in pairwise(stamps)])
        times_s = tuple(one.step_s for one in steps for _ in range(one.rounds))
        return StepStretch(stamps[0][1], stamps[-1][1], times_s) if times_s else None

    def check(self, run_s: float) -> None:
        """Check nothing: these are times by a clock."""


StepTimes: TypeAlias = PrintedStepTimes | SeenSteps


def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, if it can find a time. Raises: InputError."""
    return one_group(pattern, "the pattern of the step time", "step time: ([0-9.]+) s")


def by_lengths(short: tuple[int, float], long: tuple[int, float], begun_s: float) -> StepStretch | None:
    """From the steps and the seconds of two runs; None if the longer one did not take longer.

    What does not grow with the steps is spent before or after them, nobody knows how much of it: as much is left out at
    both ends. ``begun_s``: when the longer one began.
    """
    (few, few_s), (many, many_s) = short, long
    step_s = (many_s - few_s) / (many - few)
    if step_s <= 0:
        return None
    other_s = max(0.0, many_s - many * step_s)
    return StepStretch(begun_s + other_s, begun_s + many_s - other_s, (step_s,))


def readings_between(readings: Sequence[tuple[float, float]], begin_s: float, end_s: float) -> list[float]:
    """The readings of that time; where there is none, the one nearest to it."""
    inside = [power_w for time_s, power_w in readings if begin_s <= time_s <= end_s]
    return inside or [min(readings, key=lambda reading: abs(reading[0] - end_s))[1]]
