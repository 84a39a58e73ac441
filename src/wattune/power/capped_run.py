"""The capped run: a device at a setting, metered, limited, monitored and resumable. Every loop runs inside one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Final, NamedTuple

from typing_extensions import Self

from wattune.cap import SensorLimit
from wattune.devices import Device, GroundTruth, Meter, Setting
from wattune.errors import DeviceError, DeviceUnavailable, SafetyStop
from wattune.point import Knobs
from wattune.power.cap_follower import CapFollower
from wattune.power.limiter import PowerLimiter, check_limit
from wattune.power.monitor import BoardMonitor
from wattune.records import BoardEvent, CapInterval
from wattune_agent.kept import LEFT_OUT

POLL_S: Final = 0.005
"""Seconds between two questions whether other work still goes first."""


class Readings(NamedTuple):
    """The newest readings of a run; None for what was not read yet, or what the board does not report."""

    power_w: float | None
    temperature_c: float | None
    above_cap_s: float | None
    """Seconds so far in which the mean over the cap's window was above it."""


class CappedRun:
    """A context in which a device is at a setting, below a limit; afterwards it is as it was before.

    Training and sessions call ``start`` once and ``check`` between their steps; a session moves the run from setting to
    setting by its ``limiter``. Under a cap that changes, the ``CapFollower`` that ``follow`` was given sets the limit,
    and steps begin when ``hold`` returns; under a constant cap these calls do nothing. Probes measure in parts instead,
    each with its ``metered``. ``on_reading`` is called with each reading as (seconds, guarded watts), from a sampling
    thread on real time, except for readings that ended a probe or still hold power from before the present setting.

    Raises: InputError for a temperature limit that the device cannot be held below; DeviceError.
    """

    meter: Meter
    setting: Setting
    limiter: PowerLimiter
    monitor: BoardMonitor
    truth: GroundTruth | None = None
    """Exact accounting since ``start``, on a simulated board."""

    def __init__(
        self,
        device: Device,
        limit: SensorLimit,
        knobs: Knobs,
        *,
        on_reading: Callable[[float, float], None] = lambda time_s, power_w: None,
    ):
        check_limit(device, limit.max_temp_c)
        self.device, self.limit = device, limit
        self.yielded_s = 0.0
        """Seconds for which other work on the board went first."""
        self._first, self._on_reading = knobs, on_reading
        self._answered_w = limit.limit_w  # what the limiter holds, unless a lower cap is set
        self._set_w: float | None = None  # the cap that another client of the board's guard set
        self._follower: CapFollower | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        device, limit = self.device, self.limit
        with ExitStack() as stack:
            self.setting = stack.enter_context(device.at(self._first))
            if limit.limit_w is not None or limit.max_temp_c is not None:
                device.arm_guard(limit)  # a step that hangs lets nobody look at readings
            self.limiter = PowerLimiter(device, self.setting, limit)
            self.monitor = BoardMonitor(device)
            self.meter = self._new_meter()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._stack.__exit__(kind, error, trace)

    def start(self, state: dict[str, Any] | None = None, *, keep_setting: bool = False) -> None:
        """Meter the rest of the run, from now on or from the ``state_dict`` of an earlier run.

        ``keep_setting``: the run stays at its present setting instead of going back to that of the earlier run, and
        the time that was above a limit is forgotten. Raises: DeviceError.
        """
        device = self.device
        if self._follower is not None:
            self._follower.begin(state and state.get("cap"), state["meter"]["elapsed_s"] if state else 0.0)
        if state is not None and state["device"] is not None:
            device.load_state_dict(state["device"])
            if self.setting.knobs:
                self.setting.change(self.setting.knobs)
            if keep_setting:  # what the sensor holds is of the setting of then
                self.limiter.expect_old_readings()
        else:  # the sensor still holds power from before, which is neither this run's nor the limiter's business
            device.wait(device.sensor.settle_s)
        self.truth = device.ground_truth(self.limit.limit_w, self.limit.window_s)
        if state is not None:
            if keep_setting:
                self.limiter.remember(state["guard"])
            else:
                self.limiter.load_state_dict(state["guard"])
            self.meter.load_state_dict(state["meter"])
            self.monitor.load_state_dict(state["watch"])
            self.yielded_s = state.get("yielded_s", 0.0)  # not in states of before
            if self.truth is not None and state["truth"] is not None:
                self.truth.load_state_dict(state["truth"])
        self._stack.enter_context(self.meter)

    # ------------------------------------------------------------------------------------------------ caps that change

    def follow(self, follower: CapFollower) -> None:
        """Keep below a cap that changes; call it before ``start``."""
        self._follower = follower

    def following(self) -> AbstractContextManager[object]:
        """Context, after ``start``, in which the setting follows the cap."""
        return nullcontext() if self._follower is None else self._follower

    @property
    def follows(self) -> bool:
        """True if the cap changes."""
        return self._follower is not None

    def hold(self, work_s: float, *, on_pause: Callable[[], None] = lambda: None) -> None:
        """Return when work that takes ``work_s`` seconds may begin. Raises: as ``CapFollower.hold``."""
        if self._follower is not None:
            self._follower.hold(work_s, on_pause=on_pause)

    def settled(self) -> AbstractContextManager[SensorLimit | None]:
        """Context in which no cap moves the setting, with the limit that the setting is for."""
        return nullcontext(self.limit) if self._follower is None else self._follower.settled()

    @property
    def cap_intervals(self) -> tuple[CapInterval, ...]:
        """The caps so far, with setting and pauses; empty under a constant cap."""
        return () if self._follower is None else self._follower.intervals

    @property
    def board_events(self) -> tuple[BoardEvent, ...]:
        """Events of the board, and what the record of a long run leaves out."""
        intervals = 0 if self._follower is None else self._follower.joined
        time_s, counts = self.meter.elapsed_s, (self.monitor.events_left_out, self.limiter.events_left_out, intervals)
        texts = [f"{count:,} {what}" for count, what in zip(counts, LEFT_OUT, strict=True) if count]
        return self.monitor.events + tuple(BoardEvent(time_s=time_s, kind="left out", text=text) for text in texts)

    @property
    def pause(self) -> str | None:
        """Why nothing runs, None while work runs."""
        return None if self._follower is None else self._follower.pause

    @property
    def paused_s(self) -> float:
        """Seconds in which the cap allowed nothing, or other work on the board went first."""
        return self.yielded_s + (0.0 if self._follower is None else self._follower.paused_s)

    def readings(self) -> Readings:
        """The newest readings."""
        above_cap_s = self.meter.figures().above_cap_s if self.limiter.has_read else None
        return Readings(self.limiter.power_w, self.monitor.temperature_c, above_cap_s)

    @contextmanager
    def metered(self, *, is_calm: bool = True) -> Iterator[Meter]:
        """A meter of its own around a part of the run.

        ``is_calm``: what the sensor still holds from before is below the cap; else readings above it stay unanswered
        until the sensor has settled (``limiter.quiet_s``). Raises, on leaving: DeviceError if the sensor was lost.
        """
        if not is_calm and self.limit.limit_w is not None:
            self.limiter.expect_old_readings()
        self.meter = meter = self._new_meter()
        with meter:
            yield meter
        if meter.lost is not None:
            raise meter.lost

    def move_cap(self, limit: SensorLimit, *, is_answered: bool = True) -> None:
        """Count the time above this limit from now on, and keep below it.

        ``is_answered``: False if nothing could lower the power any more, since the device is at rest. Raises:
        DeviceError.
        """
        self.limit = limit
        self.meter.move_cap(limit.limit_w)
        if self.truth is not None:
            self.truth.move_cap(limit.limit_w)
        answered = limit if is_answered else replace(limit, limit_w=None)
        self._answered_w = answered.limit_w
        self._move_limiter()
        self.device.arm_guard(answered)

    def _move_limiter(self) -> None:
        own_w, set_w = self._answered_w, self._set_w
        is_lowered = own_w is not None and set_w is not None and set_w < own_w
        self.limiter.move_cap(set_w if is_lowered else own_w, is_lowered=is_lowered)

    def wait_while(self, others_first: Callable[[], bool]) -> None:
        """Wait between two steps for as long as this returns True.

        Readings and limiter go on, since what other work draws counts. Raises: like ``check``.
        """
        begun_s = self.device.now_s()
        while others_first():
            self.device.wait(POLL_S)
            self.check()
        self.yielded_s += self.device.now_s() - begun_s

    def check(self) -> None:
        """End the run if it cannot stay below its limit, or cannot know.

        Raises: SafetyStop; DeviceError if the setting could not be changed.
        """
        if self.limiter.failure is not None:
            raise self.limiter.failure  # on real time it was raised in the sampling thread, which ended there
        if (lost := self.meter.lost) is not None:
            result = "" if self.limit.limit_w is None else ", so the cap can no longer be enforced"
            raise SafetyStop(f"the power sensor stopped responding{result}: {lost}")
        if (reason := self.limiter.stopped) is not None:
            raise SafetyStop(reason)

    def state_dict(self, *, regained: bool = False) -> dict[str, Any]:
        """State from which a later run starts, as JSON values.

        ``regained``: with the time above a limit forgotten that stopped this run.
        """
        guard = self.limiter.state_dict()
        return {
            "device": self.device.state_dict(),
            "guard": {**guard, "stopped": False, "over_s": 0.0} if regained else guard,
            "meter": self.meter.state_dict(),
            "watch": self.monitor.state_dict(),
            "truth": None if self.truth is None else self.truth.state_dict(),
            "yielded_s": self.yielded_s,
            "cap": None if self._follower is None else self._follower.state_dict(),
        }

    def _new_meter(self) -> Meter:
        return Meter(self.device, limit=self.limit, on_reading=self._read, on_lost=self._lost)

    def _read(self, time_s: float, power_w: float) -> None:
        if not math.isfinite(power_w):
            rail = self.device.sensor.rail
            raise DeviceUnavailable(f"{self.device.name}: {rail} reads {power_w}, which is not a power")
        if self.device.set_cap_w != self._set_w:
            self._set_w = self.device.set_cap_w
            self._move_limiter()
        guarded_w = self.device.guarded_w(power_w)
        if self.limiter(time_s, guarded_w):
            self._on_reading(time_s, guarded_w)

    def _lost(self, error: DeviceError) -> None:
        # At once, wherever the loss was noticed: a step or an evaluation under way may take long.
        text = f"no reading of {self.device.sensor.rail}: {error}{self.limiter.lose()}"
        self.monitor.note(self.meter.elapsed_s, "sensor lost", text)
