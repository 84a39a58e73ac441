"""Exploration: measures operating points by training at them, and decides which point comes next."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from wattune.devices import Device
from wattune.loop.measurement_window import MeasurementWindow, cell, ratio
from wattune.loop.setting_ladder import SettingLadder
from wattune.point import BatchShape, OperatingPoint
from wattune.power.limiter import PowerLimiter
from wattune.records import AbortedProbe, ProfileCell
from wattune.search.observation import Stretch
from wattune.search.search import Search
from wattune.search.staged import StagedSearch

AnySearch = Search | StagedSearch | SettingLadder

STEPS = 3
"""Least number of steps that a point is measured for, after a first one that does not count."""

WINDOWS = 3
"""Least number of the sensor's windows that a point is measured for."""

SHORTEST_WINDOW_S = 0.1

PAUSE = 0.1
"""Share of the sensor's window above which a pause between two steps shows in its readings."""

RESTARTS = 3
"""Number of consecutive pauses and evaluations too close for a measurement in between, after which they are measured
too."""

UPDATE_AFTER_S = 30.0
"""Seconds of training at a chosen point after which the search takes in what was measured there."""

PUSHES = 3
"""Readings above the cap after which a chosen point is excluded."""


class Explorer:
    """A session's way through the operating points, one after the other, by ordinary training steps.

    ``wanted`` is the point that training should be at; it becomes ``current`` when the first step of its row begins.
    ``search`` makes the search, over the rows for which it is given True; ``fits`` checks whether training can use a
    row; ``changed`` is called with each new point and the reason for it. ``window`` takes the readings of the run
    that ``limiter`` belongs to.
    """

    def __init__(
        self,
        device: Device,
        limiter: PowerLimiter,
        search: Callable[[Callable[[BatchShape], bool]], AnySearch],
        start: BatchShape,
        *,
        fits: Callable[[BatchShape], bool],
        changed: Callable[[OperatingPoint, str], None],
    ):
        self._new_search = search
        self._excluded: set[BatchShape] = set()
        self.search = search(self._may_use)
        self.cells: dict[OperatingPoint, ProfileCell] = {}
        self.aborted: list[AbortedProbe] = []
        self.wanted = self.current = OperatingPoint(start, device.safest)
        self.probing = False
        """True if the wanted point is to be measured."""
        self._device = device
        self._limiter = limiter
        self._start = start
        self._fits = fits
        self._changed = changed
        self._is_reached = False  # the wanted point is the current one
        self._has_begun = False
        self._has_evaluated = False  # since the last step began
        self._before: OperatingPoint | None = None
        self.window = MeasurementWindow(device.now_s())
        self._restarts, self._paused_s = 0, -math.inf
        sensor = device.sensor
        self._settle_s = sensor.settle_s
        self.window_s = max(sensor.window_s, sensor.period_s, SHORTEST_WINDOW_S)
        limiter.ratio = lambda low, high: ratio(self.cells, low, high)

    # ------------------------------------------------------------------------------------------------------- choosing

    def choose(self) -> None:
        """Choose the next point to measure, or the best measured point if no probe is worth its time."""
        while (point := self.search.next()) is not None:
            # The user's own row is never excluded: the user's own loop trains with it anyway.
            if point.shape in self._excluded or self._fits(point.shape):
                self._want(point, probing=True)
                return
            self._exclude(point.shape)
        best = self.search.best()
        self._want(best if best is not None else OperatingPoint(self._start, self._device.safest), probing=False)

    def choose_again(self) -> None:
        """Choose again if no probe is under way, since another one may have become worth its time."""
        if not self.probing:
            before = self.wanted
            self.choose()
            if not self.probing and self.wanted == before:
                self._is_reached = before == self.current and self._limiter.knobs == before.knobs

    def leave_out(self, row: BatchShape) -> None:
        """Exclude a row that turned out not to fit, and choose another one."""
        self._exclude(row)
        self.choose()

    def leave_out_unfit(self) -> None:
        """Exclude the measured rows that training cannot use any more, and choose again."""
        for row in {point.shape for point in self.cells} - {self._start}:
            if not self._fits(row):
                self._exclude(row)
        self.choose()

    def _want(self, point: OperatingPoint, *, probing: bool) -> None:
        self.wanted, self.probing, self._is_reached = point, probing, False

    def _exclude(self, row: BatchShape) -> None:
        # One row only: if a model fails at one size, smaller and larger ones may still work.
        self._excluded.add(row)
        self._search_again()

    def _search_again(self) -> None:
        state = self.search.state_dict()
        self.search = self._new_search(self._may_use)
        self.search.load_state_dict(state)

    def _may_use(self, row: BatchShape) -> bool:
        return row not in self._excluded

    @property
    def is_measuring(self) -> bool:
        """True while steps are timed for a probe."""
        return self.probing and self._is_reached and self.window.since_s is not None

    @property
    def mixes_pauses(self) -> bool:
        """True if pauses or evaluations are so frequent that the sensor never shows training alone."""
        return self._restarts == RESTARTS

    # ---------------------------------------------------------------------------------------------------------- steps

    def to_safest(self) -> None:
        """Bring the device to its safest setting, for work whose power is not known. Raises: DeviceError."""
        if self._limiter.knobs != self._device.safest:
            self._is_reached = False
            self._limiter.move(self._device.safest)

    def begin_evaluation(self) -> None:
        """Begin an evaluation, which is a pause of training."""
        self._has_evaluated = True

    def begin(self, row: BatchShape, idle_s: float) -> None:
        """Begin a step of this row, ``idle_s`` after the end of the one before. Raises: DeviceError."""
        if self._has_evaluated or idle_s > PAUSE * self.window_s:
            now_s = self._device.now_s()
            is_close = now_s - self._paused_s < self._settle_s + self.window_s
            self._restarts, self._paused_s = min(self._restarts + 1, RESTARTS) if is_close else 0, now_s
            if not self.mixes_pauses:
                self.window.interrupt(now_s)
        self._has_evaluated = False
        if not self._is_reached and row == self.wanted.shape:
            is_same = self.wanted == self.current and self._limiter.knobs == self.wanted.knobs
            self._before, self.current = self.current, self.wanted
            self._limiter.move(self.wanted.knobs, probe=self.probing)
            self.measure_again()
            if is_same and self._has_begun and idle_s <= PAUSE * self.window_s:
                self.window.begun_s = -math.inf  # the sensor has settled at this point before
            self._is_reached = self._has_begun = True
            self._changed(self.wanted, self._reason())
        elif row != self.current.shape and any(a > b for a, b in zip(row, self.current.shape, strict=True)):
            self.to_safest()  # fetched for a point that was abandoned: its power is unknown

    def end(self, row: BatchShape, seconds: float | None, now_s: float) -> None:
        """End a step of this row; ``seconds`` is None if its time is not representative. Raises: DeviceError."""
        if not self._is_reached or row != self.current.shape:
            return
        limiter, window = self._limiter, self.window
        if self.probing and limiter.crossed_w is not None:
            self._abort(limiter.crossed_w)
            return
        if not self.probing and limiter.pushed >= PUSHES and limiter.power_w is not None:
            self.search.above(self.current, limiter.power_w)
            self.choose()
            return
        if self._has_evaluated:
            return  # in the middle of the step
        window.step(now_s, seconds, self._settle_s)
        enough_s = WINDOWS * self.window_s if self.probing else UPDATE_AFTER_S
        if len(window.times_s) >= STEPS and window.elapsed_s >= enough_s and (readings_w := window.readings_w):
            self._measured(cell(self.current, window.times_s, readings_w, limiter.limit), window.elapsed_s)

    def measure_again(self) -> None:
        """Discard what was measured of the present point, whose setting means another power and time from now on."""
        self.window = MeasurementWindow(self._device.now_s())

    def _measured(self, measured: ProfileCell, seconds: float) -> None:
        point = self.current
        if self.probing:
            self.cells[point] = measured
            self._tell(measured, seconds)
            self.choose()
            return
        self.measure_again()
        if self._limiter.knobs == point.knobs and point in self.cells:
            self._tell(measured, seconds)
            self.choose_again()

    def _tell(self, measured: ProfileCell, seconds: float) -> None:
        assert measured.step_s is not None
        assert measured.power_mean_w is not None
        assert measured.highest_w is not None
        stretch = Stretch(measured.step_s, measured.power_mean_w, measured.highest_w, seconds)
        self.search.tell(measured.point, stretch)

    def _abort(self, power_w: float) -> None:
        limiter, at = self._limiter, self.current
        blamed = self._before if limiter.was_early and self._before in self.cells else at
        assert blamed is not None
        self.search.above(blamed, power_w)
        if blamed == at and limiter.limit.limit_w is not None:
            self.aborted.append(AbortedProbe(**at.fields(), cap_w=limiter.limit.limit_w, power_w=power_w))
        self.current = OperatingPoint(at.shape, limiter.knobs)
        self._changed(self.current, f"{power_w:.4g} W, above the cap")
        self.choose()

    # -------------------------------------------------------------------------------------------------------- records

    def _reason(self) -> str:
        if self.probing:
            return "probe"
        is_known = self.wanted in self.cells or self.search.best() == self.wanted
        return self.search.reason or "chosen" if is_known else "no measured point stays under the cap"

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values; a probe under way is repeated."""
        return {
            "search": self.search.state_dict(),
            "cells": [[list(p.shape), dict(p.knobs), cell.model_dump(mode="json")] for p, cell in self.cells.items()],
            "aborted": [probe.model_dump(mode="json") for probe in self.aborted],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
        self.search.load_state_dict(state["search"])
        knobs_from = self._device.knobs_from
        self.cells = {
            OperatingPoint(BatchShape(*row), knobs_from(at)): ProfileCell(**cell) for row, at, cell in state["cells"]
        }
        self.aborted = [AbortedProbe(**probe) for probe in state["aborted"]]
