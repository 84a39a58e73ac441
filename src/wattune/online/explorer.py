"""Measures points by training at them: which one is next, when it is measured, and which one is in force."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean
from typing import Any

from wattune.devices import Device
from wattune.online.keeper import Keeper
from wattune.online.measurement_window import MeasurementWindow, cell, ratio
from wattune.point import OperatingPoint
from wattune.records import AbortedProbe, ProfileCell
from wattune.search.search import Point, Row, Search

STEPS = 3
"""A point is measured over at least this many steps, after one that is none of them."""

WINDOWS = 3
"""And over at least this many windows of the sensor."""

SHORTEST_WINDOW_S = 0.1

PAUSE = 0.1
"""Share of the sensor's window from which on standing still between two steps shows in its readings."""

RESTARTS = 3
"""How often a probe begins anew because training paused; then the pauses are a part of it."""

OFTEN = 5
"""Evaluations in a row without a reading of training alone in between after which they are a part of what is probed."""

TOLD_AFTER_S = 30.0
"""Seconds of training at a point that was chosen after which what was seen there is taken in."""

PUSHES = 3
"""Readings above the cap after which a point that was chosen is not chosen any more."""


class Explorer:
    """A session's way through the points, one after the other, by ordinary steps.

    ``wanted`` is the point that training should go on at; it is in force once the first step of its batch size begins.
    ``search`` makes the search, without some rows; ``fits`` says whether a row can be trained with, before it is;
    ``changed`` hears of every point that training goes on at, and why.
    """

    def __init__(
        self,
        device: Device,
        keeper: Keeper,
        search: Callable[[set[Row]], Search],
        start: Row,
        *,
        fits: Callable[[Row], bool],
        changed: Callable[[Point, str], None],
    ):
        self.search = search(set())
        self.cells: dict[Point, ProfileCell] = {}
        self.aborted: list[AbortedProbe] = []
        self.wanted = Point(start, keeper.lowest)
        self.in_force = Point(start, keeper.lowest)
        self.probing = False
        """Whether the point that is wanted is to be measured."""
        self._device = device
        self._keeper = keeper
        self._start = start
        self._fits = fits
        self._changed = changed
        self._without = search
        self._left_out: set[Row] = set()
        self._reached = False  # whether what is wanted is in force
        self._has_begun = False
        self._before: Point | None = None
        self._stretch = MeasurementWindow(device.now_s())
        self._restarts = self._often = 0
        self._evaluated_s = -math.inf
        sensor = device.sensor
        self._settle_s = sensor.settle_s
        self.window_s = max(sensor.window_s, sensor.period_s, SHORTEST_WINDOW_S)
        keeper.ratio = lambda low, high: ratio(self.cells, low, high)

    # ------------------------------------------------------------------------------------------------------- choosing

    def choose(self) -> None:
        """Find out where to go on from here: to the next probe, or to the best point where no probe would pay."""
        while (point := self.search.next()) is not None:
            # The user's own row stays in the search whatever is said of it: it is what he trains with anyway.
            if point.row in self._left_out or self._fits(point.row):
                self._want(point, probing=True)
                return
            self._forget(point.row)
        best = self.search.best()
        self._want(best if best is not None else Point(self._start, self._keeper.lowest), probing=False)

    def _want(self, point: Point, *, probing: bool) -> None:
        self.wanted, self.probing, self._reached = Point(Row(*point.row), point.setting), probing, False

    @property
    def is_measuring(self) -> bool:
        """Whether the steps of now are being timed."""
        return self.probing and self._reached and self._stretch.since_s is not None

    def steps_left(self) -> int:
        """About how many steps the probe that is wanted takes: what to have ready before it begins."""
        step_s = self._expected_s()
        if step_s is None:
            return STEPS + 1
        seconds = self._device.sensor.settle_s + WINDOWS * self.window_s
        return 2 + max(STEPS, int(seconds / step_s))

    # ---------------------------------------------------------------------------------------------------------- steps

    def begin(self, row: Row, idle_s: float) -> None:
        """A step of this row is about to begin, so long after the one before. Raises: DeviceError."""
        if self._keeper.has_evaluated:
            self._evaluated()
        elif idle_s > PAUSE * self.window_s:
            self._pause()
        if not self._reached and row == self.wanted.row:
            is_there = self.wanted == self.in_force and self._keeper.value == self.wanted.setting
            self._before, self.in_force = self.in_force, self.wanted
            self._keeper.move(self.wanted.setting, probe=self.probing)
            self._clear()
            if (
                is_there and self._has_begun and idle_s <= PAUSE * self.window_s
            ):  # more of the same: the sensor shows it already
                self._stretch.begun_s = -math.inf
            self._reached = self._has_begun = True
            self._changed(self.wanted, self._why())
        elif (
            row != self.in_force.row
            and any(a > b for a, b in zip(row, self.in_force.row, strict=True))
            and self._keeper.value != self._keeper.lowest
        ):
            self._keeper.move(self._keeper.lowest)  # fetched for a point that was given up: its power is unknown

    def _pause(self) -> None:
        if self._restarts < RESTARTS:
            self._restarts += self.probing
            self._interrupt()

    def _evaluated(self) -> None:
        now_s, self._keeper.has_evaluated = self._device.now_s(), False
        is_often = now_s - self._evaluated_s < self._settle_s + self.window_s
        self._often, self._evaluated_s = self._often + 1 if is_often else 0, now_s
        self._keeper.mixes = self.mixes_evaluations
        if not self.mixes_evaluations:
            self._interrupt()
        elif self._stretch.since_s is not None:
            self._keeper.collect()  # which the first of these evaluations had ended

    def _interrupt(self) -> None:
        self._stretch.interrupt(self._device.now_s())
        self._keeper.forget(self._stretch.pure)

    @property
    def mixes_evaluations(self) -> bool:
        """Whether evaluations come so often that the sensor never shows training alone, but the two together."""
        return self._often >= OFTEN

    def stepped(self, row: Row, seconds: float | None, now_s: float) -> None:
        """A step of this row ended now and took so long; None where its time is not that of others.

        Raises: DeviceError.
        """
        if not self._reached or row != self.in_force.row:
            return
        if self.probing and self._keeper.crossed_w is not None:
            self._abort(self._keeper.crossed_w)
            return
        if not self.probing and self._keeper.pushed >= PUSHES:
            self.search.above(self.in_force, self._keeper.latest_w)
            self.choose()
            return
        stretch = self._stretch
        if self._keeper.has_evaluated and not self.mixes_evaluations:
            return  # in the middle of the step
        if not stretch.step(now_s, seconds, self._settle_s):
            return
        if stretch.is_new:
            self._keeper.collect()
        stretch.pure = len(self._keeper.readings)
        enough_s = WINDOWS * self.window_s if self.probing else TOLD_AFTER_S
        if len(stretch.times_s) < STEPS or stretch.elapsed_s < enough_s or not stretch.pure:
            return
        readings = self._keeper.readings[: stretch.pure]
        if self.probing:
            self._finish(readings)
        else:
            self._take_in(readings)

    def _take_in(self, readings: list[float]) -> None:
        point, stretch = self.in_force, self._stretch
        self._clear()
        self._keeper.forget()
        if self._keeper.value == point.setting and point in self.cells:
            self.search.tell(point, mean(stretch.times_s), mean(readings), max(readings), stretch.elapsed_s)
            self.again()

    def again(self) -> None:
        """Something new is known that may make another probe pay."""
        if not self.probing:
            before = self.wanted
            self.choose()
            if not self.probing and self.wanted == before:
                self._reached = before == self.in_force and self._keeper.value == before.setting

    def leave_out(self, row: Row) -> None:
        """This row does not fit after all: go on at another one."""
        self._forget(row)
        self.choose()

    def _forget(self, row: Row) -> None:
        # One by one: where a model fails at one size, others may still do, smaller or larger.
        self._left_out.add(row)
        state = self.search.state_dict()
        self.search = self._without(self._left_out)
        self.search.load_state_dict(state)

    def _finish(self, readings: list[float]) -> None:
        point, times = self.in_force, self._stretch.times_s
        self.cells[point] = cell(self.place(point), times, readings)
        self.search.tell(point, mean(times), mean(readings), max(readings), self._stretch.elapsed_s)
        self.choose()

    def _abort(self, power_w: float) -> None:
        blamed = self._before if self._keeper.was_early and self._before in self.cells else self.in_force
        assert blamed is not None
        self.search.above(blamed, power_w)
        if blamed == self.in_force:
            cap_w = self._keeper.cap_w
            self.aborted.append(AbortedProbe(**self.place(blamed).fields(), cap_w=cap_w, power_w=power_w))
        self._changed(Point(self.in_force.row, self._keeper.value), f"{power_w:.4g} W, above the cap")
        self.in_force = Point(self.in_force.row, self._keeper.value)
        self.choose()

    def _clear(self) -> None:
        self._stretch = MeasurementWindow(self._device.now_s())
        self._restarts = 0

    # ------------------------------------------------------------------------------------------------------- what is

    def place(self, point: Point) -> OperatingPoint:
        """A point as the records write it."""
        return OperatingPoint.of(*point.row, **{str(self._device.actuator): point.setting} if point.setting else {})

    def _why(self) -> str:
        if self.probing:
            return "probe"
        return self.search.reason or "chosen" if self.wanted in self.cells else "no point that keeps the cap is known"

    def _expected_s(self) -> float | None:
        # From the nearest thing that was measured: time goes with the samples, and at worst with the clock.
        row, setting = self.wanted
        for point, known in reversed(self.cells.items()):
            faster = setting / point.setting if setting and point.setting else 1.0
            return (known.step_s or 0.0) * row.batch_size / point.row.batch_size / max(1.0, faster)
        return None

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """What a later prober needs to go on from here; a probe under way begins anew."""
        return {
            "search": self.search.state_dict(),
            "cells": [[list(p.row), p.setting, cell.model_dump(mode="json")] for p, cell in self.cells.items()],
            "aborted": [probe.model_dump(mode="json") for probe in self.aborted],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.search.load_state_dict(state["search"])
        self.cells = {Point(Row(*row), at): ProfileCell(**cell) for row, at, cell in state["cells"]}
        self.aborted = [AbortedProbe(**probe) for probe in state["aborted"]]
