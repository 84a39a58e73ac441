"""A battery with a reserve as a cap that changes: what its rule grants, by its charge and what the board has drawn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from wattune.budgets.battery import Battery
from wattune.budgets.battery_rule import BatteryRule, PowerPoint, SunMeter
from wattune.budgets.charge import ChargeSource, ChargeUnread, SimulatedBattery, charge_source
from wattune.cap import SupplyLosses
from wattune.cap_trace import PAUSE_W, UNLIMITED_W, MovingCap
from wattune.devices.base import SUSPENDED, Device
from wattune.errors import InputError
from wattune.power.cap_follower import AWAKE_S, SUSPEND_S
from wattune.records import BatteryFigures, ChargeSample

LOOK_EVERY_S: Final = 60.0
"""Seconds between two looks at the charge."""

DEAD_SHARE: Final = 0.05
"""Share of the capacity that the board must have drawn, beyond all that the sun can have given, for an unchanged charge
to count as that of a gauge that has stopped."""

SAMPLES: Final = 500
"""Most entries of the charge over time; beyond that every second one is left out."""


class BatteryCourse:
    """The charge of a battery over a run, and what its rule grants; ``watts`` may be called from any thread.

    ``levels``: points that the rule may grant -> the power, in watts, that chooses their setting. ``drawn_j``: all that
    the board has drawn since the run began; ``samples_left``: to the target, as far as known. Both, and ``rest_w``, are
    at the sensor; ``supply`` is what lies between it and the battery, None if that is not known. ``begin``: the moment
    at which the run began; ``note`` is called with time, kind and text of an event.

    A source that fails, or has stopped, costs one event; from then on the charge is the last one less what the board
    has drawn since, as if there were no sun, until the source shows another one.

    Raises: InputError if the battery cannot hold its reserve, or training could never begin.
    """

    def __init__(
        self,
        battery: Battery,
        source: ChargeSource,
        levels: Mapping[PowerPoint, float],
        *,
        supply: SupplyLosses | None,
        rest_w: float,
        begin: datetime,
        drawn_j: Callable[[], float],
        samples_left: Callable[[], float],
        note: Callable[[float, str, str], None],
    ):
        self.battery, self.source, self.rest_w = battery, source, rest_w
        self._supply, self._begin = supply, begin
        self._sensor_j, self._samples_left, self._note = drawn_j, samples_left, note
        self._levels = {point._replace(power_w=self._taken_w(point.power_w)): watts for point, watts in levels.items()}
        self.rule = BatteryRule(
            tuple(self._levels),
            waiting_w=self._taken_w(suspended_w(rest_w) if battery.suspend else rest_w),
            capacity_j=battery.capacity_j,
            reserve_j=battery.reserve_j,
            sky_w=self._sky_w,
            mode=battery.mode,
        )
        self._sun = SunMeter()
        self._lock = threading.RLock()
        self._watts, self._why = PAUSE_W, "the charge is not known yet"
        self._look_s = -LOOK_EVERY_S  # of the last look
        self._share = 0.0  # at the last look
        self._read: list[float] = []  # newest value of the source; time and joules drawn when it last changed
        self._is_dead = False
        self._trace: list[tuple[float, float]] = []
        self._stride, self._skipped = 1, 0
        self._under_s, self._least = 0.0, 1.0

    def _taken_w(self, sensor_w: float) -> float:
        """Watts that the battery gives while the sensor reads ``sensor_w``."""
        return sensor_w if self._supply is None else self._supply.at_supply(sensor_w)

    def _drawn_j(self, time_s: float) -> float:
        """Joules that the battery has given since the run began."""
        return self._taken_w(self._sensor_j() / time_s) * time_s if time_s > 0 else 0.0

    def _sky_w(self, time_s: float) -> float:
        return self.battery.sky_w(self._begin + timedelta(seconds=time_s))

    def stay_awake(self) -> None:
        """Set aside the night budget of a board that rests in pauses: it cannot be suspended after all."""
        with self._lock:
            self.rule.wait_at(self._taken_w(self.rest_w))

    def check(self, time_s: float) -> None:
        """Check that the reserve can be held. Raises: InputError."""
        with self._lock:
            self.rule.check(time_s, self._charge(time_s) * self.battery.capacity_j)

    def watts(self, time_s: float) -> float:
        """The power that chooses the setting now: 0 for a pause, infinite for the fastest point."""
        with self._lock:
            if time_s >= self._look_s + LOOK_EVERY_S or time_s < self._look_s:
                self._look(time_s)
            return self._watts

    @property
    def why_paused(self) -> str | None:
        """Why nothing may run at present."""
        with self._lock:
            return None if self._watts else self._why

    def _look(self, time_s: float) -> None:
        self._note_charge(time_s)
        charge_j = self._share * self.battery.capacity_j
        if not self._is_dead:
            self._sun.add(time_s, charge_j, self._drawn_j(time_s))
        sun_w = 0.0 if self._is_dead else self._sun.watts
        grant = self.rule.decide(time_s, charge_j, sun_w=sun_w, samples_left=self._samples_left())
        self._why = grant.why
        self._watts = PAUSE_W if grant.point is None else self._levels[grant.point]
        if grant.point == self.rule.fastest:
            self._watts = UNLIMITED_W

    def _note_charge(self, time_s: float) -> None:
        share = self._charge(time_s)
        seconds = max(0.0, time_s - max(0.0, self._look_s))
        if self._trace and self._share < self.battery.reserve - 1e-9:
            self._under_s += seconds
        self._look_s, self._share, self._least = time_s, share, min(self._least, share)
        self._add_to_trace(time_s, share)

    def finish(self, time_s: float) -> None:
        """Take in the charge at the end of the run."""
        with self._lock:
            self._note_charge(time_s)

    def _charge(self, time_s: float) -> float:
        """The charge as a share: what the source shows, or what is left of its last value if it is dead."""
        drawn_j, problem = self._drawn_j(time_s), None
        try:
            share = self.source.share(time_s, drawn_j)
        except ChargeUnread as error:
            if not self._read:
                raise InputError("the charge of the battery", value=str(error)) from error
            problem = str(error)
        else:
            if not self._read or share != self._read[0]:
                self._read, self._is_dead = [share, time_s, drawn_j], False
                return share
            if self.source.is_steady or not self._has_stopped(time_s, drawn_j):
                return share if not self._is_dead else self._reckoned(drawn_j)
            problem = f"{self.source} has not changed while the board drew {drawn_j - self._read[2]:.0f} J"
        if not self._is_dead:
            self._is_dead = True
            self._note(
                time_s,
                "charge unread",
                f"{problem}; it counts as falling from the last charge of {100 * self._read[0]:.0f} %",
            )
        return self._reckoned(drawn_j)

    def _reckoned(self, drawn_j: float) -> float:
        return max(0.0, self._read[0] - (drawn_j - self._read[2]) / self.battery.capacity_j)

    def _has_stopped(self, time_s: float, drawn_j: float) -> bool:
        """True if even a clear sky cannot explain that the charge stayed as it was."""
        since_s = self._read[1]
        slots = max(1, int((time_s - since_s) / 300))
        width_s = (time_s - since_s) / slots
        sun_j = sum(self._sky_w(since_s + (index + 0.5) * width_s) for index in range(slots)) * width_s
        return drawn_j - self._read[2] - sun_j > DEAD_SHARE * self.battery.capacity_j

    def _add_to_trace(self, time_s: float, share: float) -> None:
        self._skipped += 1
        if self._trace and self._skipped < self._stride:
            return
        self._skipped = 0
        self._trace.append((time_s, share))
        if len(self._trace) >= SAMPLES:
            self._trace, self._stride = self._trace[::2], 2 * self._stride

    def figures(self) -> BatteryFigures:
        """The charge over the run so far, and the time under the reserve."""
        with self._lock:
            trace = list(self._trace)
            if trace and trace[-1][0] != self._look_s:
                trace.append((self._look_s, self._share))
            return BatteryFigures(
                capacity_j=self.battery.capacity_j,
                reserve=self.battery.reserve,
                mode=self.battery.mode,
                source=str(self.source),
                rest_w=self.rest_w,
                least=self._least,
                under_reserve_s=self._under_s,
                charge=tuple(ChargeSample(time_s=time_s, share=share) for time_s, share in trace),
            )

    def state_dict(self) -> dict[str, Any]:
        """State from which a later course continues, as JSON values."""
        with self._lock:
            return {
                "source": self.source.state_dict(),
                "rule": self.rule.state_dict(),
                "sun": self._sun.state_dict(),
                "rest_w": self.rest_w,
                "watts": None if self._watts == UNLIMITED_W else self._watts,
                **{name: getattr(self, f"_{name}") for name in _STATE},
            }

    def load_state_dict(self, state: Mapping[str, Any], *, is_later: bool = False) -> None:
        """Continue from ``state_dict``; ``is_later``: time has passed meanwhile, in which the charge changed."""
        with self._lock:
            self.source.load_state_dict(state["source"])
            self.rule.load_state_dict(state["rule"])
            if not is_later:
                self._sun.load_state_dict(state["sun"])
            self._watts = UNLIMITED_W if state["watts"] is None else state["watts"]
            for name in _STATE:
                setattr(self, f"_{name}", state[name])
            self._trace = [(time_s, share) for time_s, share in self._trace]


def suspended_w(rest_w: float) -> float:
    """Mean watts in a pause in which the board is suspended, and awake for each look at the charge."""
    return rest_w * (SUSPENDED + (1 - SUSPENDED) * AWAKE_S / (SUSPEND_S + AWAKE_S))


def check_suspend(battery: Battery, device: Device) -> None:
    """Check that the device can be suspended in pauses, if it is to be. Raises: InputError."""
    if battery.suspend and not device.can_suspend:
        raise InputError(
            f"--suspend: {device.name} cannot be suspended",
            allowed="a simulated board, or one whose kernel offers mem or freeze in /sys/power/state and wakes by "
            "/sys/class/rtc/rtc0/wakealarm",
            hint="both need root: an agent run by root, and --device agent",
        )


def open_charge(battery: Battery, device: Device, *, begin: datetime) -> ChargeSource:
    """The source of the battery's charge; beside a simulated board it is simulated, unless one was named.

    Raises: InputError if there is none, or if it has no charge now.
    """
    if battery.charge is not None:
        return charge_source(battery.charge, battery.capacity_j)
    if device.kind != "simulated":
        raise InputError(
            "--charge is missing",
            allowed="a gauge such as BAT0, or a file",
            hint="only a simulated board has a simulated battery",
        )
    return SimulatedBattery(battery.capacity_j, sun_w=lambda time_s: battery.sky_w(begin + timedelta(seconds=time_s)))


_STATE = ("why", "look_s", "share", "read", "is_dead", "trace", "stride", "skipped", "under_s", "least")


@dataclass(frozen=True)
class BatteryCap(MovingCap):
    """Grants of a battery as a cap: its watts choose the setting, and the plan's own cap limits the power."""

    course: BatteryCourse = field(kw_only=True)

    def watts(self, time_s: float) -> float:
        """The power that chooses the setting; 0 W: a pause."""
        return self.course.watts(time_s)

    @property
    def shares(self) -> dict[float, float]:
        """All of the time at the fastest point: no plan is made for a battery."""
        return {UNLIMITED_W: 1.0}

    @property
    def limits(self) -> bool:
        """False: a level names a setting."""
        return False

    def why_paused(self, time_s: float) -> str | None:
        """Charge and night budget."""
        return self.course.why_paused
