"""The rule by which training uses a battery with a reserve: how fast to train now, or wait, and why.

Before training takes anything, the night budget is set aside: what the board takes while it waits until the sun carries
it. Of what is above, the rule takes as much as finishes soonest:

1. the fastest point that can finish without a pause;
2. otherwise the fastest one while the sun carries it, or while the battery is full and charge would be lost;
3. otherwise the one with the most progress per joule.

A floor that only stops training is crossed every night, since the waiting board keeps drawing power. Planning by a
forecast of the sun every two hours did not end sooner than this rule does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from wattune.budgets.battery import ReserveMode
from wattune.errors import InputError

CHARGING: Final = 0.95
"""Share of the surplus of the sun that charges the battery; what the board takes at once is not lost."""

DAY_S: Final = 24 * 3600.0


class Counted(NamedTuple):
    """Sun that a mode counts on: shares of a clear sky in the next 24 hours and after them, for ``ahead_s`` seconds,
    which is the time for which the board must be able to wait. ``dark_s``: time without any sun for which it must be
    able to wait at least: a low sun gives less than a clear sky is computed to have."""

    first_day: float
    later: float
    ahead_s: float
    dark_s: float


COUNTED: Final[dict[ReserveMode, Counted]] = {
    "strict": Counted(0.05, 0.25, 2 * DAY_S, DAY_S / 2),
    "soon": Counted(0.15, 0.15, DAY_S, 0.0),
}
"""An overcast sky has a quarter of a clear one in the mean of all clouds, and 0.16 under rain clouds: "soon" counts on
those for a day; "strict" on a third of that for a day, and then on the mean.

Source: F. Kasten, G. Czeplak, "Solar and terrestrial radiation dependent on the amount and type of cloud", Solar Energy
24 (1980).
"""

SLOT_S: Final = 300.0
"""Grid on which the sky is looked up."""

LONGEST_S: Final = 4 * DAY_S
"""Longest time ahead for which the rule looks if training could finish without a pause."""

FULL: Final = 0.95
"""Share of the capacity from which on a battery counts as full: most chargers slow down there."""

DWELL_S: Final = 300.0
"""Least time between two changes of the point; a pause does not wait for it."""

LOOK_S: Final = 300.0
"""Longest time between two decisions, in which training takes charge unasked."""

RESUME_S: Final = 900.0
"""Seconds of training that must be in the battery above the night budget before training resumes after a pause."""


class PowerPoint(NamedTuple):
    """Samples to the target per second, and the mean power of the whole board in watts."""

    rate: float
    power_w: float


class Grant(NamedTuple):
    """Decision of the rule: a point, or None for a pause, and the reason."""

    point: PowerPoint | None
    why: str


def no_sun(time_s: float) -> float:
    """The sky of a battery without a panel: 0 W."""
    return 0.0


class BatteryRule:
    """The rule for one battery, board and training run; time is in seconds, charge in joules.

    ``points``: of the plan's batch size; those that are both slower and less efficient than another one are not used.
    ``waiting_w``: power of the board while training pauses, at rest or suspended. ``sky_w``: watts of the panel under a
    clear sky after a time. ``point``: the present one, None in a pause.

    Raises: InputError for no points, and a reserve that is not below the capacity.
    """

    def __init__(
        self,
        points: Sequence[PowerPoint],
        *,
        waiting_w: float,
        capacity_j: float,
        reserve_j: float,
        sky_w: Callable[[float], float] = no_sun,
        mode: ReserveMode = "strict",
    ):
        if not points:
            raise InputError("the plan has no point whose power is known", hint="plan again with a profile")
        if not 0 <= reserve_j < capacity_j < math.inf:
            raise InputError("the reserve", value=f"{reserve_j:g} J", allowed=f"below the capacity, {capacity_j:g} J")
        self.points = _useful(points)
        self.waiting_w, self.capacity_j, self.reserve_j, self.mode = waiting_w, capacity_j, reserve_j, mode
        self.point: PowerPoint | None = None
        self._sky = _Sky(sky_w)
        self._changed_s = -math.inf
        self._floors_j: dict[int, float] = {}

    def wait_at(self, waiting_w: float) -> None:
        """Set aside another power of the waiting board from now on."""
        self.waiting_w = waiting_w
        self._floors_j.clear()

    @property
    def fastest(self) -> PowerPoint:
        """The fastest point."""
        return self.points[-1]

    @property
    def efficient(self) -> PowerPoint:
        """The point with the most progress per joule."""
        return self.points[0]

    def floor_j(self, time_s: float) -> float:
        """The charge below which training pauses: the reserve, and what the board takes while it waits for the sun."""
        slot = int(time_s // SLOT_S)
        if slot not in self._floors_j:
            counted = COUNTED[self.mode]
            count = int(counted.ahead_s / SLOT_S)
            if not self._sky.watts(slot, count).any():  # no panel: whatever charges the battery is not known
                count = int(DAY_S / SLOT_S)
            taken_j = -np.cumsum(self._charging_w(slot, count, self.waiting_w)) * SLOT_S
            self._floors_j[slot] = self.reserve_j + max(counted.dark_s * self.waiting_w, float(taken_j.max()), 0.0)
        return self._floors_j[slot]

    def _charging_w(self, slot: int, count: int, power_w: float) -> Any:
        """Change of the charge in watts that is counted on, ``(count,)``, while the board draws ``power_w``."""
        counted, today = COUNTED[self.mode], int(DAY_S / SLOT_S)
        net_w = self._sky.watts(slot, count)
        net_w[:today] *= counted.first_day
        net_w[today:] *= counted.later
        net_w -= power_w
        return np.where(net_w > 0, CHARGING * net_w, net_w)

    def check(self, time_s: float, charge_j: float) -> None:
        """Check that the reserve can be held, and that training can begin. Raises: InputError."""
        slot, day = int(time_s // SLOT_S), int(DAY_S / SLOT_S)
        net_w = self._sky.watts(slot, day) - self.waiting_w
        carried = int(np.argmax(net_w >= 0)) if bool(np.any(net_w >= 0)) else day
        left_j = charge_j + float(net_w[:carried].sum()) * SLOT_S
        if left_j < self.reserve_j and self._sky.watts(slot, day).any():
            hours = carried * SLOT_S / 3600
            raise InputError(
                f"rest alone crosses the reserve: {self.waiting_w:.3g} W for {hours:.1f} h until the sun carries it",
                value=f"{self._percent(charge_j)} charge",
                allowed=f"{self._percent(charge_j + self.reserve_j - left_j)} or more, or a smaller reserve",
            )
        least_j = min(self.floor_j((slot + index) * SLOT_S) for index in range(0, day, 6))
        if least_j + RESUME_S * self.efficient.power_w > FULL * self.capacity_j:
            raise InputError(
                "the battery is too small to train from",
                value=f"reserve and night budget take {self._percent(least_j)} of it",
                hint="a smaller reserve, a larger battery or panel, or --reserve-mode soon",
            )

    def _percent(self, charge_j: float) -> str:
        return f"{100 * charge_j / self.capacity_j:.0f} %"

    def decide(self, time_s: float, charge_j: float, *, sun_w: float, samples_left: float) -> Grant:
        """The point for now. ``sun_w``: watts that the panel gives at present, as far as known."""
        floor_j = self.floor_j(time_s)
        if self.point is None and charge_j < min(floor_j + RESUME_S * self.efficient.power_w, FULL * self.capacity_j):
            return Grant(None, self._why_paused(charge_j, floor_j))
        if charge_j < floor_j + LOOK_S * self.fastest.power_w:
            self.point, self._changed_s = None, time_s
            return Grant(None, self._why_paused(charge_j, floor_j))
        grant = self._granted(time_s, charge_j, sun_w, samples_left)
        if self.point is not None and grant.point != self.point and time_s < self._changed_s + DWELL_S:
            return Grant(self.point, "the point changed a moment ago")
        if grant.point != self.point:
            self.point, self._changed_s = grant.point, time_s
        return grant

    def _granted(self, time_s: float, charge_j: float, sun_w: float, samples_left: float) -> Grant:
        for point in reversed(self.points):
            if self._can_finish(time_s, charge_j, point, samples_left):
                return Grant(point, "can finish without a pause")
        if sun_w >= self.fastest.power_w:
            return Grant(self.fastest, "the sun carries it")
        if charge_j >= FULL * self.capacity_j:
            return Grant(self.fastest, "the battery is full")
        return Grant(self.efficient, "most progress per joule")

    def _can_finish(self, time_s: float, charge_j: float, point: PowerPoint, samples_left: float) -> bool:
        left_s = samples_left / point.rate
        if left_s > LONGEST_S:
            return False
        slot, count = int(time_s // SLOT_S), math.ceil(left_s / SLOT_S)
        charges_j = charge_j + np.cumsum(self._charging_w(slot, count, point.power_w)) * SLOT_S
        # What does not fit into the battery is lost, at every later time as well.
        lost_j = np.maximum.accumulate(np.maximum(charges_j - self.capacity_j, 0.0))
        floors_j = [self.floor_j((slot + 1 + index) * SLOT_S) for index in range(count)]
        return bool(np.all(charges_j - lost_j >= floors_j))

    def _why_paused(self, charge_j: float, floor_j: float) -> str:
        need = self._percent(floor_j)
        return f"{self._percent(charge_j)} charge, of which the reserve and the time without sun need {need}"

    def state_dict(self) -> dict[str, Any]:
        """State from which a later rule continues, as JSON values."""
        changed_s = None if math.isinf(self._changed_s) else self._changed_s
        return {"point": None if self.point is None else self.points.index(self.point), "changed_s": changed_s}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        index = state["point"]
        self.point = None if index is None or index >= len(self.points) else self.points[index]
        self._changed_s = -math.inf if state["changed_s"] is None else state["changed_s"]


class SunMeter:
    """The present power of the sun, which is known only from the battery: what it gained, and what the board took.

    The mean over the last ``WINDOW_S`` seconds, or longer if a gauge that counts in steps (percent, say) has shown
    less than ``STEPS`` of them in that time.
    """

    WINDOW_S: Final = 900.0
    LONGEST_S: Final = 3600.0
    STEPS: Final = 3

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float, float]] = deque()

    def add(self, time_s: float, charge_j: float, drawn_j: float) -> None:
        """Take in a charge, and all that the board has drawn until this time."""
        self._looks.append((time_s, charge_j, drawn_j))
        while len(self._looks) > 2 and self._looks[1][0] <= time_s - self.LONGEST_S:
            self._looks.popleft()

    @property
    def watts(self) -> float:
        """The mean power of the sun; 0 before there are two looks."""
        if len(self._looks) < 2:
            return 0.0
        time_s, charge_j, drawn_j = self._looks[-1]
        first = self._looks[0]
        values = {charge_j}
        for look in reversed(self._looks):
            values.add(look[1])
            if look[0] <= time_s - self.WINDOW_S and len(values) > self.STEPS:
                first = look
                break
        seconds = time_s - first[0]
        gained_w, board_w = (charge_j - first[1]) / seconds, (drawn_j - first[2]) / seconds
        return max(0.0, board_w + (gained_w / CHARGING if gained_w > 0 else gained_w))

    def state_dict(self) -> list[list[float]]:
        """State from which a later meter continues, as JSON values."""
        return [list(look) for look in self._looks]

    def load_state_dict(self, state: Sequence[Sequence[float]]) -> None:
        """Continue from ``state_dict``."""
        self._looks = deque((look[0], look[1], look[2]) for look in state)


class _Sky:
    """Watts of the panel under a clear sky in slots of ``SLOT_S`` seconds, each computed once."""

    def __init__(self, sky_w: Callable[[float], float]):
        self._sky_w = sky_w
        self._watts: Any = np.zeros(0)

    def watts(self, slot: int, count: int) -> Any:
        """Watts of ``count`` slots from this one on, ``(count,)``."""
        known = len(self._watts)
        if slot + count > known:
            until = slot + count + int(DAY_S / SLOT_S)
            more = [self._sky_w((index + 0.5) * SLOT_S) for index in range(known, until)]
            self._watts = np.concatenate([self._watts, np.asarray(more)])
        return self._watts[slot : slot + count].copy()


def _useful(points: Sequence[PowerPoint]) -> tuple[PowerPoint, ...]:
    """The points from the most efficient to the fastest of which none is faster at less power."""
    front: list[PowerPoint] = []
    for point in sorted(points, key=lambda one: (-one.rate, one.power_w)):
        if not front or point.power_w < front[-1].power_w:
            front.append(point)
    best = max(range(len(front)), key=lambda index: front[index].rate / front[index].power_w)
    return tuple(reversed(front[: best + 1]))
