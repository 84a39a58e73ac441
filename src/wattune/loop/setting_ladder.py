"""The settings of one batch size under a cap that changes: which are known, and which one is measured next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.search.observation import Stretch

ERROR: Final = 0.01
"""Share of a power by which one that was measured over a few windows of the sensor may be too low."""

FIRST_STEP: Final = 0.1
"""Share of the power at the lowest setting that the one above it may draw more, before anything else is known."""

AGAIN_ABOVE: Final = 1.05
"""A setting that exceeded a cap before it was measured is tried again under one that is higher by this factor."""


class KnownSetting(NamedTuple):
    """Seconds of a step at a setting, and the power that a cap is compared with, in watts."""

    step_s: float
    power_w: float


class SettingLadder:
    """In place of a search, for a session whose batch size stays and whose cap changes.

    The best setting under a cap is the fastest known one that stays under it. The next higher one is measured if its
    power is expected to stay under the cap as well: power grows with the clock at most by its third power, since the
    voltage grows no faster than the clock. So settings are measured from the lowest up, as far as caps allow.

    ``known``: figures from an earlier profile. ``limit`` is the one that ``next`` and ``best`` choose for, None if
    nothing may run. The device has one knob.
    """

    def __init__(self, shape: BatchShape, device: Device, known: Mapping[Knobs, KnownSetting]):
        self.shape = shape
        self.limit: SensorLimit | None = SensorLimit()
        self.reason = "the fastest known setting under the cap"
        self._settings = device.climbs()[0]
        self._rises = all(knob.power_rises for knob in device.knobs)
        self._knobs_from = device.knobs_from
        self._known = dict(known)
        self._above: dict[Knobs, float] = {}  # setting that was never measured -> the reading that ended its probe

    def setting(self, limit: SensorLimit | None) -> Knobs | None:
        """The setting for this limit, measured or to be measured; None if none is known to stay under it."""
        if limit is None:
            return None
        return self._unknown(limit) or self._fastest(limit)

    def step_s(self, knobs: Knobs) -> float | None:
        """Seconds of a step at this setting; None if they are unknown."""
        known = self._known.get(knobs)
        return None if known is None else known.step_s

    def _fastest(self, limit: SensorLimit) -> Knobs | None:
        allowed = [knobs for knobs, known in self._known.items() if limit.allows(known.power_w)]
        return min(allowed, key=lambda knobs: (self._known[knobs].step_s, knobs), default=None)

    def _unknown(self, limit: SensorLimit) -> Knobs | None:
        """The lowest unknown setting above all that are known to stay under the limit, if it surely does as well."""
        allowed = [k for k in self._settings if k in self._known and limit.allows(self._known[k].power_w)]
        rungs = self._settings[self._settings.index(allowed[-1]) + 1 :] if allowed else self._settings
        if not rungs or rungs[0] in self._known:
            return None
        first = rungs[0]
        return first if limit.allows(self._most_w(first)) else None

    def _most_w(self, knobs: Knobs) -> float:
        """Most power at a setting: a line in the third power of the clock, as steep as it was anywhere below."""
        if knobs in self._above:
            return AGAIN_ABOVE * self._above[knobs]
        below = [(self._cube(k), self._known[k].power_w) for k in self._known if self._cube(k) < self._cube(knobs)]
        if not below:
            return 0.0  # the lowest has to be tried
        top, top_w = max(below)
        slopes = [(top_w - power_w) / (top - cube) for cube, power_w in below if cube < top]
        if not slopes:
            return (1 + FIRST_STEP) * top_w
        return top_w + max(0.0, *slopes) * (self._cube(knobs) - top)

    def _cube(self, knobs: Knobs) -> float:
        value = knobs.first or 1.0
        return value**3 if self._rises else value**-3

    # ------------------------------------------------------------------------------------------- as the explorer asks

    @property
    def rows(self) -> tuple[BatchShape, ...]:
        """The one row."""
        return (self.shape,)

    def next(self) -> OperatingPoint | None:
        """The point to measure next; None if there is none."""
        unknown = None if self.limit is None else self._unknown(self.limit)
        return None if unknown is None else OperatingPoint(self.shape, unknown)

    def best(self) -> OperatingPoint | None:
        """The fastest known point under the limit; None if there is none."""
        best = None if self.limit is None else self._fastest(self.limit)
        return None if best is None else OperatingPoint(self.shape, best)

    def tell(self, point: OperatingPoint, stretch: Stretch) -> None:
        """Take in a stretch of training at a point."""
        self._known[point.knobs] = KnownSetting(stretch.step_s, stretch.power_peak_w + ERROR * stretch.power_mean_w)
        self._above.pop(point.knobs, None)

    def above(self, point: OperatingPoint, power_w: float) -> None:
        """Note that a point exceeded the cap with this power."""
        known = self._known.get(point.knobs)
        if known is None:
            self._above[point.knobs] = power_w
        else:
            self._known[point.knobs] = known._replace(power_w=max(known.power_w, power_w))

    def relative(self, known: dict[int, tuple[float, float]]) -> None:
        """Take in relative samples, which matter to the choice of a batch size alone."""

    def own_recipe(self) -> None:
        """None: under a cap that changes no one setting is the user's own."""

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return {
            "shape": list(self.shape),
            "known": [[dict(knobs), *figures] for knobs, figures in self._known.items()],
            "above": [[dict(knobs), power_w] for knobs, power_w in self._above.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
        self._known.update({self._knobs_from(at): KnownSetting(*figures) for at, *figures in state["known"]})
        self._above.update({self._knobs_from(at): power_w for at, power_w in state["above"]})
