"""What a board says of itself while a cell is measured: temperature, throttling, over-current, swapping."""

from __future__ import annotations

from typing import Any

from wattune.devices import Conditions, Device

LOOK_EVERY_S = 1.0
"""Seconds of the device's time between two looks."""


REPEATS = 2
"""How often a cell is measured again that was taken while the board held itself back."""

REST_S, LONGEST_REST_S = 5.0, 60.0
"""What the board then gets to recover: at least the one, until nothing holds it down any more, at most the other."""


def rest(device: Device) -> None:
    """Let the board recover."""
    begun_s = device.now_s()
    device.wait(REST_S)
    while device.conditions().throttled and device.now_s() - begun_s < LONGEST_REST_S:
        device.wait(REST_S)


class Strain:
    """From the moment that it is made until ``fields`` is asked for."""

    def __init__(self, device: Device):
        self._device = device
        self._throttled: dict[str, None] = {}
        self._hottest_c: float | None = None
        self._before = self._look()

    def look(self) -> None:
        """See how the board is, if that is not known from a moment ago."""
        if self._device.now_s() - self._looked_s >= LOOK_EVERY_S:
            self._look()

    def fields(self) -> dict[str, Any]:
        """The fields of a ProfileCell that say how the board was."""
        before, now = self._before, self._look()
        return {
            "throttled": tuple(self._throttled),
            "over_current": _more(before.over_current, now.over_current),
            "swapped_bytes": _more(before.swapped_bytes, now.swapped_bytes),
            "temperature_c": self._hottest_c,
        }

    def _look(self) -> Conditions:
        self._looked_s = self._device.now_s()
        now = self._device.conditions()
        self._throttled.update(dict.fromkeys(now.throttled))
        known = [t for t in (self._hottest_c, now.temperature_c) if t is not None]
        self._hottest_c = max(known, default=None)
        return now


def happened(device: Device) -> tuple[str, ...]:
    """What the device noticed of itself since it was last asked, as notes of a table: each thing once."""
    return tuple(dict.fromkeys(f"{event.kind} while this was measured: {event.text}" for event in device.events()))


def _more(before: float | None, now: float | None) -> float | None:
    # Counts since the board booted, which an agent that was started anew may have begun again.
    return None if before is None or now is None else max(0, now - before)
