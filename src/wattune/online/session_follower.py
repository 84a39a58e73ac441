"""A session's steps under a cap that changes: which setting each begins at, and when it may begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from wattune.cap import SensorLimit
from wattune.cap_trace import MovingCap
from wattune.online.explorer import Explorer
from wattune.online.measurement_window import SensorReadings
from wattune.online.setting_ladder import SettingLadder
from wattune.point import BatchShape, Knobs
from wattune.power.cap_follower import CapFollower, UnderCap
from wattune.power.capped_run import CappedRun


class SessionFollower(CapFollower):
    """A follower whose settings are those of a session's ``SettingLadder``; set ``explorer`` before ``begin_after``.

    The cap lowers the setting at any time; the explorer raises it at the beginning of a step, to measure another one.
    ``limit``: that of the highest cap. ``readings`` are collected at one setting only.
    """

    explorer: Explorer

    def __init__(self, capped: CappedRun, cap: MovingCap, limit: SensorLimit, readings: SensorReadings):
        super().__init__(capped, cap, self._setting_under, on_move=self._moved)
        self.was_moved = False
        """True if the cap has moved the setting since the last step began, so that the step does not count."""
        self.step_s = 0.0
        """Seconds that the last step took."""
        self._device, self._trace, self._highest, self._readings = capped.device, cap, limit, readings
        self._limits: dict[float, SensorLimit | None] = {}  # watts of a cap -> its limit
        self._evaluates_under_w: float | None = None
        self._evaluation_s = 0.0  # that the last one took

    def begin_after(self, state: dict[str, Any] | None) -> None:
        """Begin, or continue from the state of a ``SessionRun``. Raises: InputError, DeviceError."""
        self.begin(*((None, 0.0) if state is None else (state["cap"], state["meter"]["elapsed_s"])))

    def hold_step(self, on_pause: Callable[[], None]) -> None:
        """Return when a step may begin. Raises: as ``hold``."""
        known_s = self._ladder.step_s(self.explorer.wanted.knobs)
        self.hold(max(self.step_s, known_s or 0.0), on_pause=on_pause)

    def begin_step(self, row: BatchShape, idle_s: float) -> None:
        """Begin a step at the setting for the present cap; see ``Explorer.begin``. Raises: DeviceError."""
        with self.settled() as watts:
            ladder = self._ladder
            ladder.limit = self._limit_under(watts)
            if self.was_moved or ladder.setting(ladder.limit) != self.explorer.wanted.knobs:
                self.was_moved = False
                self.explorer.choose()
            self.explorer.begin(row, idle_s)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Context of an evaluation, which begins when the cap lets it. Raises: as ``hold``."""
        self.hold(self._evaluation_s)
        with self.settled() as watts:
            self._evaluates_under_w = watts
        begun_s = self._device.now_s()
        try:
            yield
        finally:
            self._evaluates_under_w, self._evaluation_s = None, self._device.now_s() - begun_s

    @property
    def _ladder(self) -> SettingLadder:
        ladder = self.explorer.search
        assert isinstance(ladder, SettingLadder)
        return ladder

    def _setting_under(self, watts: float) -> UnderCap:
        limit = self._limit_under(watts)
        knobs = self._ladder.setting(limit)
        if knobs is not None and self._evaluates_under_w not in (None, watts):
            knobs = self._device.safest  # the power of evaluations is not known
        return UnderCap(limit or replace(self._highest, limit_w=None), knobs)

    def _limit_under(self, watts: float) -> SensorLimit | None:
        if watts not in self._limits:
            self._limits[watts] = self._trace.at_sensor(watts, self._device.supply, self._device.sensor.window_s)
        return self._limits[watts]

    def _moved(self, knobs: Knobs) -> None:
        self.was_moved = True
        self._readings.clear()
