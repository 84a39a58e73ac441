"""The choice of operating points: measures them by a loop's own steps, and decides which one comes next."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from wattune.devices import Device
from wattune.loop.measurement_window import Measured, MeasurementWindow, ratio
from wattune.loop.setting_ladder import SettingLadder
from wattune.point import BatchShape, OperatingPoint
from wattune.power.limiter import PowerLimiter
from wattune.records import AbortedProbe, ProfileCell
from wattune.search.observation import Stretch
from wattune.search.search import Search
from wattune.search.staged import StagedSearch

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
"""Seconds of steps at a chosen point after which the search takes in what was measured there."""

PUSHES = 3
"""Readings above the cap after which a chosen point is excluded; as well as after ``UPDATE_AFTER_S`` below it."""

GAPS = 2
"""Crossings of the cap within gaps that exclude nothing: an evaluation is not the step."""

JUDGE_EVERY_S = 0.1
"""Time between two judgements of a point, once enough was measured at it."""

Later = Callable[[Callable[[], Any]], Callable[[], bool]]
"""Begin to run a decision. Returns: a function that says whether the decision is made."""


def at_once(call: Callable[[], Any]) -> Callable[[], bool]:
    """Decide at once."""
    call()
    return lambda: True


AnySearch = Search | StagedSearch | SettingLadder


class StepController:
    """Chooses the operating point of a loop by its own steps, while ``limiter`` keeps the board below the cap.

    ``wanted`` is the point that the loop should be at; it becomes ``current`` when the first step of its row begins.
    ``search`` makes the search, over the rows for which it is given True; ``fits`` checks whether the loop can use a
    row; ``changed`` is called with each new point and the reason for it. ``later`` runs a decision and returns a
    function that says if it is made, so that readings go on meanwhile. ``window`` takes the readings of the run that
    ``limiter`` belongs to.

    Under a cap that was set for a while (``PowerLimiter.is_lowered``) nothing is judged and no probe begins: what is
    above that cap may well be below the run's own.
    """

    def __init__(
        self,
        device: Device,
        limiter: PowerLimiter,
        search: Callable[[Callable[[BatchShape], bool]], AnySearch],
        start: BatchShape,
        *,
        fits: Callable[[BatchShape], bool] = lambda row: True,
        changed: Callable[[OperatingPoint, str], None],
        later: Later = at_once,
    ):
        self._new_search = search
        self._excluded: set[BatchShape] = set()
        self.search = search(self._may_use)
        self.cells: dict[OperatingPoint, ProfileCell] = {}
        self.aborted: list[AbortedProbe] = []
        self.wanted = self.current = OperatingPoint(start, device.safest)
        self.probing = False
        """True if the wanted point is to be measured."""
        self.is_held = False
        """True if that is done without a probe: at a setting that the limiter has come to, and may lower."""
        self._device = device
        self._limiter = limiter
        self._start = start
        self._fits = fits
        self._changed = changed
        self._later = later
        self._decided: Callable[[], bool] | None = None
        self._probe: OperatingPoint | None = None  # the decision: None if no probe is worth its time
        self._may_stay = False
        self._is_reached = False  # the wanted point is the current one
        self._has_begun = False
        self._has_evaluated = False  # since the last step began
        self._before: OperatingPoint | None = None
        self._gaps: dict[OperatingPoint, int] = {}
        self._judge_s = -math.inf
        self._held_s = device.now_s()  # when the limiter was last at the current point, later by pauses since
        self._judged_s = self._held_s  # the end of the last step without an evaluation
        self._restarts, self._paused_s = 0, -math.inf
        sensor = device.sensor
        self._settle_s = sensor.settle_s
        self.measure_again()
        self.window_s = max(sensor.window_s, sensor.period_s, SHORTEST_WINDOW_S)
        limiter.ratio = lambda low, high: ratio(self.cells, low, high)

    # ------------------------------------------------------------------------------------------------------- choosing

    def choose(self, *, may_stay: bool = False) -> None:
        """Choose the next point to measure, or the best measured point if no probe is worth its time.

        ``may_stay``: a chosen point that is the best again goes on as it is.
        """
        self._may_stay = may_stay
        self._decided = self._later(self._decide)
        self.has_decided()

    def has_decided(self) -> bool:
        """Go on by the decision, if one was made. Returns: False while one is under way, which uses the search."""
        if self._decided is not None:
            if not self._decided():
                return False
            self._decided = None
            self._go_on()
        return True

    def _decide(self) -> None:
        while (point := self.search.next()) is not None:
            # The user's own row is never excluded: the user's own loop trains with it anyway.
            if point.shape in self._excluded or self._fits(point.shape):
                break
            self._exclude(point.shape)
        self._probe = point

    def _go_on(self) -> None:
        if self._probe is not None:
            self.want(self._probe)
            return
        best, before, stays = self.search.best(), self.wanted, self._may_stay and not self.probing
        self.want(OperatingPoint(self._start, self._device.safest) if best is None else best, probing=False)
        if stays and self.wanted == before:
            self._is_reached = before == self.current and self._limiter.knobs == before.knobs

    def choose_again(self) -> None:
        """Choose again if no probe is under way, since another one may have become worth its time."""
        if not self.probing:
            self.choose(may_stay=True)

    def want(self, point: OperatingPoint, *, probing: bool = True, held: bool = False) -> None:
        """Set the point that the loop should be at, to measure it or to stay there."""
        self.wanted, self.probing, self.is_held, self._is_reached = point, probing, held, False

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
        return self.probing and self._is_reached and self.window.has_begun

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

    def begin(self, row: BatchShape, idle_s: float = 0.0) -> None:
        """Begin a step of this row, ``idle_s`` after the end of the one before. Raises: DeviceError."""
        if self._has_evaluated or idle_s > PAUSE * self.window_s:
            now_s = self._device.now_s()
            is_close = now_s - self._paused_s < self._settle_s + self.window_s
            self._restarts, self._paused_s = min(self._restarts + 1, RESTARTS) if is_close else 0, now_s
            self._held_s = min(now_s, self._held_s + now_s - self._judged_s)
            if not self.mixes_pauses:
                self.window.interrupt(now_s)
        self._has_evaluated = False
        if self._limiter.was_lowered and not self._limiter.is_lowered:
            self._is_reached = False  # back to the wanted point
        if not self._is_reached and row == self.wanted.shape:
            is_same = self.wanted == self.current and self._limiter.knobs == self.wanted.knobs
            self._before, self.current = self.current, self.wanted
            self._held_s = self._judged_s = self._device.now_s()
            is_probe = self.probing and not self.is_held and not self._limiter.is_lowered
            self._limiter.move(self.wanted.knobs, probe=is_probe)
            self.measure_again()
            if is_same and self._has_begun and idle_s <= PAUSE * self.window_s:
                self.window.begun_s = -math.inf  # the sensor has settled at this point before
            self._is_reached = self._has_begun = True
            self._changed(self.wanted, self._reason())
        elif row != self.current.shape and any(a > b for a, b in zip(row, self.current.shape, strict=True)):
            self.to_safest()  # fetched for a point that was abandoned: its power is unknown

    def end(self, row: BatchShape, seconds: float | None, now_s: float) -> None:
        """End a step of this row; ``seconds`` is None if its time is not representative. Raises: DeviceError."""
        if self._is_reached and row == self.current.shape:
            if not self._has_evaluated:  # in the middle of the step
                self.window.step(now_s, 0 if seconds is None else 1, seconds)
            self.judge()

    def judge(
        self, *, steps: int = STEPS, probe_s: float | None = None, accept: Callable[[Measured], bool] = lambda _: True
    ) -> None:
        """Choose another point if the limiter has left the current one, or what was measured there is enough.

        That is ``steps`` steps, and ``probe_s`` seconds for a probe (None: some of the sensor's windows), of which
        ``accept`` has the last word.
        """
        if not self._is_reached:
            return
        limiter, window, now_s = self._limiter, self.window, self._device.now_s()
        if limiter.was_lowered:
            self.measure_again()
            return
        if self.probing and limiter.crossed_w is not None:
            self._abort(limiter.crossed_w, is_gap=not self._has_evaluated and window.is_gap(now_s))
            return
        is_below = not self.probing and limiter.knobs != self.current.knobs
        self._held_s = self._held_s if is_below else now_s
        self._judged_s = self._judged_s if self._has_evaluated else now_s
        is_lasting = self._judged_s - self._held_s >= UPDATE_AFTER_S
        if not self.probing and (limiter.pushed >= PUSHES or is_lasting) and limiter.power_w is not None:
            self.search.above(self.current, (is_lasting and limiter.limit.limit_w) or limiter.power_w)
            self.choose()
            return
        probe_s = WINDOWS * self.window_s if probe_s is None else probe_s
        enough_s = probe_s if self.probing else UPDATE_AFTER_S
        if self._has_evaluated or is_below or now_s < self._judge_s or window.elapsed_s < enough_s:
            return  # the time below the chosen setting counts as well, once the limiter is back
        if (measured := window.measured()) is None or measured.steps < steps:
            return
        if measured.seconds < enough_s or not measured.readings_w or not accept(measured):
            self._judge_s = now_s + max(JUDGE_EVERY_S, enough_s - measured.seconds)
        elif self.probing or self.current in self.cells:
            self._take_in(measured)
        else:
            self.measure_again()

    def measure_again(self) -> None:
        """Discard what was measured of the present point, whose setting means another power and time from now on."""
        self.window, self._judge_s = MeasurementWindow(self._device.now_s(), self._settle_s), -math.inf

    def _take_in(self, measured: Measured) -> None:
        cell = measured.cell(self.current, self._limiter.limit)
        assert cell.power_mean_w is not None
        assert cell.highest_w is not None
        if self.probing:
            self.cells[self.current] = cell
        self.search.tell(self.current, Stretch(measured.step_s, cell.power_mean_w, cell.highest_w, measured.seconds))
        self.measure_again()
        self.choose(may_stay=not self.probing)

    def _abort(self, power_w: float, *, is_gap: bool) -> None:
        limiter, at = self._limiter, self.current
        if is_gap and self._gaps.setdefault(at, 0) < GAPS:
            self._gaps[at] += 1
            self.choose()
            return
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
