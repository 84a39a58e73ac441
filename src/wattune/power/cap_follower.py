"""The follower of caps that change, inside ``CappedRun``: settings follow, and work pauses while none stays below."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from typing_extensions import Self

from wattune.cap import SensorLimit, SupplyLosses
from wattune.cap_source import UNLIMITED_W, CapSource
from wattune.devices.base import Sensor
from wattune.devices.meter import RATE_HZ
from wattune.errors import InputError
from wattune.point import Knobs
from wattune.power.cap_clock import CapInRun, Clock, wall_clock
from wattune.records import CapInterval
from wattune_agent.kept import CapRecord

if TYPE_CHECKING:
    from wattune.power.capped_run import CappedRun

PERIOD_S: Final = 1 / RATE_HZ
"""Seconds between two looks at the cap."""

REST_S: Final = 0.5
"""Longest rest on real time before a paused run looks around."""


class _UnderCap(NamedTuple):
    """The limit at the sensor under a cap, None if the cap leaves nothing, and the setting for it, None if none is."""

    limit: SensorLimit | None
    knobs: Knobs | None


def lead_s(sensor: Sensor, window_s: float | None) -> float:
    """Control interval: seconds by which a setting has to come before a lower cap.

    After that time neither the cap's window nor a reading of the sensor contains power from before.
    """
    return (window_s or 0.0) + sensor.settle_s + PERIOD_S


class CapFollower:
    """A context in which the setting of a capped run follows caps that change.

    - An announced lowering: the lower setting one control interval (``lead_s``) before it. A rise: at its time.
    - A lowering that was not announced: rest for one control interval, so that the mean over the window falls below the
      cap as soon as it can.
    - No setting stays under the cap: ``hold`` returns only when work may begin again; the device rests at its safest
      setting meanwhile.

    ``setting``: the setting for a limit at the sensor, None if none stays below it; ``supply`` and ``averaging_s`` are
    those by which ``PowerCap.at_sensor`` computes limits. ``on_move`` is called after each change of the setting,
    ``on_rest`` before each rest of a pause, which it may end with an error.

    The follower looks at the caps every ``PERIOD_S`` seconds of the device's time, on real time from a thread of its
    own, and stores what goes wrong there in ``failure``, which ``hold`` raises.
    """

    def __init__(
        self,
        capped: CappedRun,
        source: CapSource,
        setting: Callable[[SensorLimit], Knobs | None],
        *,
        supply: SupplyLosses | None = None,
        averaging_s: float | None = None,
        on_move: Callable[[Knobs], None] = lambda knobs: None,
        on_rest: Callable[[], None] = lambda: None,
        clock: Clock = wall_clock,
    ):
        self.failure: Exception | None = None
        self._capped, self._setting, self._on_move, self._on_rest = capped, setting, on_move, on_rest
        self._unlimited = replace(capped.limit, limit_w=None)
        self._lead_s = lead_s(capped.device.sensor, capped.limit.window_s)
        self._lock = threading.RLock()
        self._ticking: AbstractContextManager[None] | None = None
        is_virtual = not capped.device.executes_steps
        self._caps = CapInRun(source, is_virtual=is_virtual, supply=supply, averaging_s=averaging_s, clock=clock)
        self._watts = self._set_for_w = math.inf  # the present cap, and the one that the setting was chosen for
        self._recovers_until_s = 0.0
        self._is_holding = False
        self._work_s = 0.0  # that the work takes which is held
        self._record = CapRecord(self._figures)

    # -------------------------------------------------------------------------------------------------------- context

    def begin(self, state: dict[str, Any] | None, elapsed_s: float) -> None:
        """Set the limit that the run begins with; ``state``, ``elapsed_s``: of an earlier run that continues.

        Raises: InputError, DeviceError.
        """
        self._caps.begin(elapsed_s)
        if state is None:
            self._watts = self._set_for_w = self._caps.watts(elapsed_s)
        else:
            self._watts, self._set_for_w = state["watts"], state["set_for_w"]
            self._recovers_until_s = state["recovers_until_s"]
            self._record.intervals = [dict(one) for one in state["intervals"]]
            self._record.counted = state["above_s"], state["energy_j"]
            self._record.joined, self._record.pauses_s = state.get("joined", 0), state.get("pauses_s", 0.0)
            if "pauses_s" not in state:  # of before, when every interval was kept
                pairs = pairwise(state["intervals"])
                self._record.pauses_s = sum(b["time_s"] - a["time_s"] for a, b in pairs if a["pause"] is not None)
            self._is_holding, self._work_s = state["is_holding"], state["work_s"]
        self._limit()

    def __enter__(self) -> Self:
        self._follow()
        self._ticking = self._capped.device.every(PERIOD_S, self.look)
        self._ticking.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        assert self._ticking is not None
        self._ticking.__exit__(*reason)
        with self._lock:
            self._record.close(self._now_s())

    # --------------------------------------------------------------------------------------------------------- the cap

    def look(self) -> None:
        """Look at the cap, and bring limit and setting to it."""
        with self._lock:
            if self.failure is not None:
                return
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001 - raised by `hold`; in a sampling thread nobody would see it
                self.failure = error
                self._capped.limiter.move(self._capped.device.safest if self._capped.limiter.knobs else Knobs())

    def _follow(self) -> None:
        if (problem := self._caps.look(self._now_s)) is not None:
            self._capped.monitor.note(self._now_s(), *problem)
        now_s = self._now_s()
        watts = self._caps.watts(now_s)
        least_w = min(watts, self._caps.least_w(now_s, self._lead_s))
        if watts < self._set_for_w and watts < self._watts:  # nobody said so before
            self._recovers_until_s = now_s + self._lead_s
        if self._is_holding and self._fits(self._work_s):
            self._is_holding = False  # the end of the pause; the work follows when its thread looks
        knobs = self._under(least_w).knobs
        if knobs is None or now_s < self._recovers_until_s or self._is_holding:
            knobs = self._capped.device.safest if self._capped.limiter.top else Knobs()
        is_lower = watts < self._watts
        self._set_for_w = least_w
        if is_lower:  # the setting first, and the limit first before a rise
            self._move(knobs)
        if watts != self._watts:
            self._record.close(now_s)
            self._watts = watts
            self._limit()
        self._move(knobs)
        self._note_interval(now_s, self._why_paused(least_w))

    def _under(self, watts: float) -> _UnderCap:
        limit = self._caps.limit(watts)
        return _UnderCap(limit, None if limit is None else self._setting(limit))

    def _limit(self) -> None:
        under = self._under(self._watts)
        self._capped.move_cap(under.limit or self._unlimited, is_answered=under.knobs is not None)

    def _move(self, knobs: Knobs) -> None:
        limiter = self._capped.limiter
        if knobs != limiter.top:
            limiter.move(knobs)
            self._on_move(limiter.top)

    def _now_s(self) -> float:
        return self._capped.meter.elapsed_s

    @contextmanager
    def settled(self) -> Iterator[SensorLimit | None]:
        """Let no cap move the setting meanwhile, and give the limit that the setting is for: the lowest one of now and
        of the next control interval; None if nothing may run."""
        with self._lock:
            yield self._under(self._set_for_w).limit

    # ---------------------------------------------------------------------------------------------------------- pauses

    def hold(self, work_s: float, *, on_pause: Callable[[], None] = lambda: None) -> None:
        """Return when work that takes ``work_s`` seconds may begin; until then the device rests.

        ``on_pause`` is called once, before a rest that is longer than a control interval. Raises: InputError if the
        caps leave nothing to run with for good; what ``look`` ran into; as ``CappedRun.check``.
        """
        capped = self._capped
        self._check()
        self._work_s = work_s
        if self._fits(work_s):
            self._set_holding(False)
            return
        self._set_holding(True)
        is_new = True
        while not self._fits(work_s):
            if is_new and not self._is_allowed(work_s):
                on_pause()
                is_new = False
            self._refuse_for_good()
            capped.check()
            capped.monitor.look(self._now_s())
            self._on_rest()
            capped.device.wait(self._rest_s())
            self._check()
        self._set_holding(False)

    def _set_holding(self, is_holding: bool) -> None:
        if is_holding != self._is_holding:
            with self._lock:
                self._is_holding = is_holding
                self._follow()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _fits(self, work_s: float) -> bool:
        return self._now_s() >= self._recovers_until_s and self._is_allowed(work_s)

    def _is_allowed(self, work_s: float) -> bool:
        with self._lock:
            now_s = self._now_s()
            least_w = min(self._caps.watts(now_s), self._caps.least_w(now_s, self._lead_s + work_s))
            return self._under(least_w).knobs is not None

    def _refuse_for_good(self) -> None:
        now_s = self._now_s()
        if self._under(self._caps.watts(now_s)).knobs is not None:
            return
        if self._caps.is_last(now_s):
            raise InputError(
                "the caps leave nothing to train with any more",
                value=f"{self._caps.watts(now_s):g} W from now on",
                hint="add rows to the caps, and resume",
            )

    def _rest_s(self) -> float:
        now_s = self._now_s()
        following_s = self._caps.next_change_s(now_s)
        rest_s = PERIOD_S if following_s is None else max(following_s - now_s, PERIOD_S / 10)
        if now_s < self._recovers_until_s:
            rest_s = min(rest_s, self._recovers_until_s - now_s)
        return min(rest_s, REST_S) if self._capped.device.executes_steps else rest_s

    def _why_paused(self, least_w: float) -> str | None:
        if self._under(least_w).knobs is None:
            if least_w:
                return f"no measured setting stays under {least_w:g} W"
            return self._caps.why_paused(self._now_s()) or "the cap is 0 W"
        if not self._is_holding:
            return None
        if self._now_s() < self._recovers_until_s:
            return "the cap fell without notice"
        return "the next step would not end before a pause"

    # ---------------------------------------------------------------------------------------------------------- record

    @property
    def intervals(self) -> tuple[CapInterval, ...]:
        """The caps so far, with setting and pauses."""
        with self._lock:
            return tuple(CapInterval(**one) for one in self._record.intervals)

    @property
    def joined(self) -> int:
        """Number of intervals that were joined with their neighbours."""
        return self._record.joined

    @property
    def pause(self) -> str | None:
        """Why nothing runs, and for how long if the caps say so; None while work runs."""
        with self._lock:
            why, now_s = self._record.pause, self._now_s()
            next_s = self._caps.next_change_s(now_s)
            if why is None or next_s is None:
                return why
            return f"{why}, for {timedelta(seconds=math.ceil(next_s - now_s))}"

    @property
    def paused_s(self) -> float:
        """Seconds of pauses until now."""
        with self._lock:
            return self._record.paused_s(self._now_s())

    def _note_interval(self, now_s: float, pause: str | None) -> None:
        limit = self._under(self._watts).limit
        asked_w, limit_w = None if self._watts == UNLIMITED_W else self._watts, None if limit is None else limit.limit_w
        begun = self._record.note(now_s, asked_w, limit_w, dict(self._capped.limiter.top), pause)
        if begun is not None:
            begun["cap_time_s"] = self._caps.cap_s(now_s)

    def _figures(self, _: float) -> tuple[float, float] | None:
        if not self._capped.limiter.has_read:
            return None
        figures = self._capped.meter.figures()
        return figures.above_cap_s, figures.energy_j

    def state_dict(self) -> dict[str, Any]:
        """State from which a later follower continues, as JSON values."""
        with self._lock:
            self._record.close(self._now_s())
            return {
                "watts": self._watts,
                "set_for_w": self._set_for_w,
                "recovers_until_s": self._recovers_until_s,
                "intervals": [dict(one) for one in self._record.intervals],
                "joined": self._record.joined,
                "pauses_s": self._record.pauses_s,
                "above_s": self._record.counted[0],
                "energy_j": self._record.counted[1],
                "is_holding": self._is_holding,
                "work_s": self._work_s,
            }
