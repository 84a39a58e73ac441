"""A device without a controller of its own, with the interface that ``wattune_agent.guarded`` needs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from wattune.devices import Device, Setting
from wattune.errors import DeviceError, DeviceUnavailable, InputError, SensorError
from wattune.point import Knobs
from wattune_agent.errors import BadRequest, FileFailed, NoReading, NotThere


class Pinned:
    """``Device.at`` as separate calls. Raises: InputError if the device has several knobs."""

    def __init__(self, device: Device):
        self._device = device
        self._knob = device.only_knob("wattune guard", hint="profile with --strategy full, then train at the plan")
        self._inside = ExitStack()
        self._setting: Setting | None = None

    def describe(self) -> dict[str, Any]:
        """Board description for the guard: the settings and their unit, the sensor and its delay."""
        sensor = self._device.sensor
        return {
            "name": self._device.name,
            "rail": sensor.rail,
            "settings_mhz": [] if self._knob is None else list(self._knob.values),
            "setting_unit": "W" if self._knob is not None and self._knob.name == "power_limit_w" else "MHz",
            "window_s": sensor.window_s,
            "lag_s": sensor.lag_s,
            "period_s": sensor.period_s,
        }

    def read(self) -> dict[str, Any]:
        """A reading. Raises: NoReading."""
        with _mapped():
            power_w, now = self._device.power_w(), self._device.conditions()
        return {"power_w": power_w, "temperature_c": now.temperature_c}

    def claim(self) -> None:
        """Check that the setting can be changed: to the highest, and back. Raises: as ``pin`` and ``restore``."""
        with _mapped(), self._device.at(self._device.combinations()[-1]):
            pass

    def pin(self, setting: float) -> None:
        """Pin this setting. Raises: BadRequest, NotThere, FileFailed."""
        with _mapped():
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
        with _mapped():
            self._inside.close()


@contextmanager
def _mapped() -> Iterator[None]:
    """Map our errors to the agent's: the reverse of what the backends do."""
    try:
        yield
    except SensorError as error:
        raise NoReading(str(error)) from error
    except InputError as error:
        raise BadRequest(str(error)) from error
    except DeviceUnavailable as error:
        raise NotThere(str(error)) from error
    except DeviceError as error:
        raise FileFailed(str(error)) from error
