"""Health of the board while a cell is measured: temperature, throttling, over-current, swapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wattune.cap import SensorLimit
from wattune.devices import Conditions, Device, Meter, MeterFigures
from wattune.records import AbortedProbe, ProfileCell

LOOK_EVERY_S = 1.0
"""Seconds of the device's time between two looks."""

REPEATS = 2
"""Most times that a cell is measured again because the board was throttled."""

REST_S, LONGEST_REST_S = 5.0, 60.0
"""Time for the board to recover: at least the one, until nothing throttles it any more, at most the other."""


def undisturbed(
    device: Device, limit: SensorLimit, spent: list[MeterFigures], measure: Callable[[], ProfileCell | AbortedProbe]
) -> ProfileCell | AbortedProbe:
    """The result of ``measure``: again, after a rest, as long as the board was throttled or had an over-current event.

    ``spent`` gets the figures of each rest. Raises: DeviceError, and what ``measure`` raises.
    """
    result = measure()
    for _ in range(REPEATS):
        if isinstance(result, AbortedProbe) or not result.disturbed:
            break
        with Meter(device, limit=limit) as meter:
            rest(device)
        spent.append(meter.figures())
        result = measure()
    return result


def rest(device: Device) -> None:
    """Let the board recover."""
    begun_s = device.now_s()
    device.wait(REST_S)
    while device.conditions().throttled and device.now_s() - begun_s < LONGEST_REST_S:
        device.wait(REST_S)


class BoardHealth:
    """Watches the board from its construction until ``fields`` is called."""

    def __init__(self, device: Device):
        self._device = device
        self._throttled: dict[str, None] = {}
        self._notices: dict[str, None] = {}
        self._hottest_c: float | None = None
        self._before = self._look()

    def look(self) -> None:
        """Ask how the board is, at most once in ``LOOK_EVERY_S``."""
        if self._device.now_s() - self._looked_s >= LOOK_EVERY_S:
            self._look()

    def fields(self) -> dict[str, Any]:
        """Fields of a ProfileCell on the state of the board."""
        before, now = self._before, self._look()
        return {
            "throttled": tuple(self._throttled),
            "notices": tuple(self._notices),
            "over_current": _more(before.over_current, now.over_current),
            "swapped_bytes": _more(before.swapped_bytes, now.swapped_bytes),
            "temperature_c": self._hottest_c,
        }

    def _look(self) -> Conditions:
        self._looked_s = self._device.now_s()
        now = self._device.conditions()
        self._throttled.update(dict.fromkeys(now.throttled))
        self._notices.update(dict.fromkeys(now.notices))
        known = [t for t in (self._hottest_c, now.temperature_c) if t is not None]
        self._hottest_c = max(known, default=None)
        return now


def happened(device: Device) -> tuple[str, ...]:
    """Events of the device since it was last asked, as notes of a table, each once."""
    return tuple(dict.fromkeys(f"{event.kind} while this was measured: {event.text}" for event in device.events()))


def _more(before: float | None, now: float | None) -> float | None:
    # Counts since the board booted, which a restarted agent may have begun again.
    return None if before is None or now is None else max(0, now - before)
