"""Readings of each member of a group, and by how much the power of all of them varies within a step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from wattune.devices.base import Sensor

NEWEST: Final = 1024
"""Readings that are kept."""

UNSTEADY: Final = 0.01
"""Share by which the time of the steps in a window may differ from that of the steps that were measured."""


class MemberReadings:
    """Readings of each member at its present setting, from the time on when the sensor has settled.

    ``rest_w``: the reading of each member before the first step, the least that it draws while it waits.
    """

    def __init__(self, sensor: Sensor):
        self.rest_w: tuple[float, ...] = ()
        self._settle_s = sensor.settle_s
        self._changed_s = -math.inf
        self._each: deque[tuple[float, ...]] = deque(maxlen=NEWEST)

    def restart(self, now_s: float) -> None:
        """Begin again, since settings have just changed."""
        self._changed_s = now_s
        self._each.clear()

    def add(self, now_s: float, watts: Sequence[float], *, is_at_rest: bool) -> None:
        """Add readings of all members; ``is_at_rest``: before the first step."""
        if is_at_rest:
            self.rest_w = self.rest_w or tuple(watts)
        elif now_s >= self._changed_s + self._settle_s:
            self._each.append(tuple(watts))

    def means_w(self) -> list[float]:
        """Mean power of each member; empty without a reading."""
        return [fmean(own) for own in zip(*self._each, strict=True)]

    def ripples_w(self, compute_s: Sequence[float], step_s: float, window_s: float) -> list[float]:
        """For each member the most by which its mean power over a window may exceed that over many steps.

        In each step of ``step_s`` seconds it computes for ``compute_s``, and then waits at rest or above. It draws
        (mean - rest) / busy more while it computes, ``busy`` being the share of the step.
        """
        ripples_w = []
        for mean_w, rest_w, own_s in zip(self.means_w(), self.rest_w, compute_s, strict=False):
            busy = min(1.0, own_s / step_s)
            ripples_w.append(max(0.0, mean_w - rest_w) / busy * surplus(busy, window_s / step_s) * step_s / window_s)
        return ripples_w


def surplus(busy: float, steps: float) -> float:
    """Most computing in a window of ``steps`` steps above the mean of all, in steps; ``busy``: its share of each step.

    A window of n + f steps holds n times ``busy``, and at most the lesser of f and ``busy`` more.
    """
    least, most = (1 - UNSTEADY) * steps, (1 + UNSTEADY) * steps
    if math.floor(most - busy) > math.floor(least - busy):
        return busy * (1 - busy)
    return max(min(rest, busy) - rest * busy for rest in (least % 1, most % 1))
