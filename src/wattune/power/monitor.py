"""Board conditions during a run: temperature, throttling, over-current events, and what the board itself reports."""

from __future__ import annotations

import math
from typing import Any

from wattune.devices import Device
from wattune.records import BoardEvent
from wattune_agent.kept import Kept

LOOK_EVERY_S = 1.0
"""Seconds of the device's time between two checks of the board's conditions."""


class BoardMonitor:
    """Collects the events of a device; ``look`` is called regularly with the time of the run in seconds."""

    def __init__(self, device: Device):
        self.temperature_c: float | None = None
        """At the last look; None if the board does not report it."""
        self.temperature_max_c: float | None = None
        self._device = device
        self._events = Kept()
        self._throttled: tuple[str, ...] = ()
        self._noticed: set[str] = set()
        self._over_current: int | None = None
        self._due_s = -math.inf

    @property
    def events(self) -> tuple[BoardEvent, ...]:
        """Events so far, in the time of the run: of very many, the first and the newest ones."""
        return self.since(0)

    @property
    def count(self) -> int:
        """Number of events so far."""
        return self._events.count

    @property
    def events_left_out(self) -> int:
        """Number of events that are not in ``events`` any more."""
        return self._events.left_out

    def since(self, count: int) -> tuple[BoardEvent, ...]:
        """The events that are kept of those after the first ``count``."""
        return tuple(BoardEvent(**event) for event in self._events.since(count))

    def note(self, time_s: float, kind: str, text: str) -> None:
        """Record an event of the board."""
        self._events.append({"time_s": max(0.0, time_s), "kind": kind, "text": text})

    def look(self, time_s: float) -> None:
        """Ask the device for new events, ``time_s`` seconds into the run."""
        begin_s = self._device.now_s() - time_s
        for event in self._device.events():
            self.note(event.time_s - begin_s, event.kind, event.text)
        if time_s < self._due_s:
            return
        self._due_s = time_s + LOOK_EVERY_S
        now = self._device.conditions()
        self.temperature_c = now.temperature_c
        if now.temperature_c is not None:
            self.temperature_max_c = max(now.temperature_c, self.temperature_max_c or -math.inf)
        if now.throttled != self._throttled:
            text = f"held down by {', '.join(now.throttled)}" if now.throttled else "runs freely again"
            self.note(time_s, "throttled", text)
            self._throttled = now.throttled
        for notice in sorted({*now.notices} - self._noticed):
            self._noticed.add(notice)
            self.note(time_s, "notice", f"the clock is held below its setting by {notice}, its ordinary state")
        if now.over_current is not None:
            new = now.over_current - (now.over_current if self._over_current is None else self._over_current)
            if new > 0:
                self.note(time_s, "over-current", f"{new} new over-current event{'s' * (new > 1)}")
            self._over_current = now.over_current

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return {
            "events": self._events.all,
            "events_left_out": self._events.left_out,
            "temperature_max_c": self.temperature_max_c,
            "throttled": list(self._throttled),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``. Over-current events are counted from now on."""
        self._events.load(state["events"], state.get("events_left_out", 0))
        self.temperature_max_c = state["temperature_max_c"]
        self._throttled = tuple(state["throttled"])
