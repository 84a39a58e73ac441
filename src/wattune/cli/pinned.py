"""A device without a controller of its own, as ``wattune_agent.guarded`` wants the board that it guards."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from wattune.devices import Device, Setting
from wattune.errors import BoardUnusable, DeviceError, InputError, SensorError
from wattune_agent.errors import BadRequest, FileFailed, NoReading, NotThere


class Pinned:
    """A device's ``at`` as separate calls."""

    def __init__(self, device: Device):
        self._device = device
        self._inside = ExitStack()
        self._setting: Setting | None = None

    def describe(self) -> dict[str, Any]:
        """What is needed to guard it: its settings and their unit, its sensor and how late that is."""
        sensor = self._device.sensor
        return {
            "name": self._device.name,
            "rail": sensor.rail,
            "settings_mhz": list(self._device.settings),
            "setting_unit": "W" if self._device.actuator == "power_limit_w" else "MHz",
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
        """See that it can be changed: at its highest setting, and back. Raises: as ``pin`` and ``restore``."""
        with _mapped(), self._device.at(self._device.settings[-1]):
            pass

    def pin(self, setting: float) -> None:
        """Go to this setting, and stay. Raises: BadRequest, NotThere, FileFailed."""
        with _mapped():
            if self._setting is None:
                self._setting = self._inside.enter_context(self._device.at(setting))
            else:
                self._setting.change(setting)

    def check(self) -> list[dict[str, Any]]:
        """What happened since the last call, at seconds of the machine's monotonic clock."""
        began_s = time.monotonic() - self._device.now_s()
        return [
            {"time_s": began_s + event.time_s, "kind": event.kind, "text": event.text}
            for event in self._device.events()
            if event.kind != "stuck sensor"  # the guard looks itself, and knows when the program began
        ]

    def restore(self) -> None:
        """As it was found; nothing where nothing was changed. Raises: FileFailed and its kind."""
        self._setting = None
        with _mapped():
            self._inside.close()


@contextmanager
def _mapped() -> Iterator[None]:
    """Our errors as the agent's: the other way round than in the backends."""
    try:
        yield
    except SensorError as error:
        raise NoReading(str(error)) from error
    except InputError as error:
        raise BadRequest(str(error)) from error
    except BoardUnusable as error:
        raise NotThere(str(error)) from error
    except DeviceError as error:
        raise FileFailed(str(error)) from error
