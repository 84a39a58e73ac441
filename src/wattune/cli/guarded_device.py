"""A device without a controller of its own, with the interface that ``wattune_agent.guarded`` needs."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from wattune.devices import Device, Setting
from wattune.devices.real_time import unmapped
from wattune.point import Knobs


def described_as(device: Device) -> dict[str, Any]:
    """A device for the guard: the settings of its first knob and their unit, the sensor and its delay."""
    sensor, knob = device.sensor, device.knobs[0] if device.knobs else None
    return {
        "name": device.name,
        "rail": sensor.rail,
        "settings_mhz": [] if knob is None else list(knob.values),
        "setting_unit": "W" if knob is not None and knob.name == "power_limit_w" else "MHz",
        "window_s": sensor.window_s,
        "lag_s": sensor.lag_s,
        "period_s": sensor.period_s,
    }


class Pinned:
    """``Device.at`` as separate calls. Raises: InputError if the device has several knobs."""

    def __init__(self, device: Device):
        self._device = device
        self._knob = device.only_knob("wattune guard", hint="profile with --strategy full, then train at the plan")
        self._inside = ExitStack()
        self._setting: Setting | None = None

    def describe(self) -> dict[str, Any]:
        """Board description for the guard."""
        return described_as(self._device)

    def read(self) -> dict[str, Any]:
        """A reading. Raises: NoReading."""
        with unmapped():
            power_w, now = self._device.power_w(), self._device.conditions()
        return {"power_w": power_w, "temperature_c": now.temperature_c}

    def claim(self) -> None:
        """Check that the setting can be changed: to the highest, and back. Raises: as ``pin`` and ``restore``."""
        with unmapped(), self._device.at(self._device.combinations()[-1]):
            pass

    def pin(self, setting: float) -> None:
        """Pin this setting. Raises: BadRequest, NotThere, FileFailed."""
        with unmapped():
            assert self._knob is not None
            knobs = Knobs({self._knob.name: setting})
            if self._setting is None:
                self._setting = self._inside.enter_context(self._device.at(knobs))
            else:
                self._setting.change(knobs)

    def check(self) -> list[dict[str, Any]]:
        """Events since the last call, in seconds of the machine's monotonic clock."""
        began_s = time.monotonic() - self._device.now_s()
        return [
            {"time_s": began_s + event.time_s, "kind": event.kind, "text": event.text}
            for event in self._device.events()
            if event.kind != "stuck sensor"  # the guard detects it itself, and knows when the program began
        ]

    def restore(self) -> None:
        """Restore the setting that was found, if it was changed. Raises: FileFailed and its kinds."""
        self._setting = None
        with unmapped():
            self._inside.close()
