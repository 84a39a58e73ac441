"""Caps and a forecast over the time of a run, cut at the changes of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import numpy as np

from wattune.cap import SensorLimit
from wattune.cap_source import UNLIMITED_W, CapSource
from wattune.errors import InputError
from wattune.intensity import Intensity
from wattune.planning.grains import Accumulated
from wattune.planning.problem import Problem
from wattune.power.cap_clock import CapInRun, wall_clock

SAME_S: Final = 1e-6
"""Seconds after a change at which the cap is looked at: the time of the change itself may be rounded down."""


class UnderCap(NamedTuple):
    """One of the caps: its watts as asked for, its share of the time, and the limit at the sensor if any is left."""

    asked_w: float
    share: float
    limit: SensorLimit | None


class Timeline:
    """The caps of a problem, ascending, and the pieces of time in which neither cap nor forecast change.

    ``source``: a cap that changes; ``begin_s``, ``end_s``: beginning of the run in the time of the forecast, and end of
    the forecast in the time of the run. Caps that are not announced hold at all times with their shares.

    Raises: InputError for a forecast or caps at moments that do not have the present.
    """

    def __init__(self, problem: Problem, source: CapSource | None, intensity: Intensity | None, now: datetime | None):
        profile, limit = problem.table.profile, problem.objective.limit
        if source is None:
            shares = {UNLIMITED_W if problem.cap.limit_w is None else problem.cap.limit_w: 1.0}
        else:
            shares = source.shares
        self.caps = tuple(
            UnderCap(
                watts,
                share,
                limit if source is None else source.limit(watts, profile.supply, profile.sensor_window_s),
            )
            for watts, share in shares.items()
        )
        self.shares = np.array([one.share for one in self.caps])
        self.begin_s, self.end_s = 0.0, math.inf
        changes_s, values = np.zeros(1), np.ones(1)
        if intensity is not None:
            self.begin_s = _begin_s(intensity, now)
            self.end_s = intensity.end_s - self.begin_s
            changes_s, values = np.array(intensity.times_s) - self.begin_s, np.array(intensity.values)
        # Without a forecast nothing else is bound to the clock, so the caps are those from their first row on.
        caps_s = {} if source is None else _caps_by_time(source, None if intensity is None else now)
        edges_s = np.union1d([0.0, *caps_s], changes_s)
        self._edges_s = edges_s[edges_s >= 0]
        self._values = values[np.searchsorted(changes_s, self._edges_s, "right") - 1]
        places = {one.asked_w: place for place, one in enumerate(self.caps)}
        caps = np.array([places[watts] for watts in caps_s.values()], dtype=int)
        self._cap_at = caps[np.searchsorted(list(caps_s), self._edges_s, "right") - 1] if caps_s else None

    def mean(self, by_cap: Sequence[float]) -> float:
        """The mean over the time of a figure that each cap has."""
        return float(self.shares @ by_cap)

    def accumulated(self, by_cap: Sequence[float], *, priced: bool = False) -> Accumulated:
        """The integral over time of a figure that each cap has; ``priced``: multiplied by the forecast."""
        if self._cap_at is None:
            rates = np.full(len(self._edges_s), self.mean(by_cap))
        else:
            rates = np.asarray(by_cap, dtype=float)[self._cap_at]
        return Accumulated(self._edges_s, rates * self._values if priced else rates)


def _caps_by_time(source: CapSource, now: datetime | None) -> dict[float, float]:
    """Seconds of the run -> watts from then on, as ``shares`` has them; empty if the caps are not announced."""
    if not source.is_announced:
        return {}
    caps = CapInRun(source, is_virtual=now is None, clock=wall_clock if now is None else lambda: now)
    caps.begin(0.0)
    found, time_s = dict[float, float](), 0.0
    following_s: float | None = 0.0
    while following_s is not None:
        time_s = following_s
        found[time_s] = source.level_w(caps.watts(time_s + SAME_S))
        following_s = caps.next_change_s(time_s + SAME_S)
    return found


def _begin_s(intensity: Intensity, now: datetime | None) -> float:
    if now is None or intensity.begin is None:
        return 0.0
    begin_s = (now - intensity.begin).total_seconds()
    if not 0 <= begin_s < intensity.end_s:
        end = intensity.begin + timedelta(seconds=intensity.end_s)
        raise InputError(
            f"{intensity.name} has no value for the present",
            value=now.isoformat(timespec="minutes"),
            allowed=f"{intensity.begin.isoformat(timespec='minutes')} to {end.isoformat(timespec='minutes')}",
        )
    return begin_s
