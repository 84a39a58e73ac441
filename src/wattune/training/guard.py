"""The cap guard: watches every reading of the power sensor while training and answers those above the cap."""

from __future__ import annotations

import math
from typing import Any

from wattune.devices.base import Device, Setting
from wattune.devices.meter import GONE_AFTER_S
from wattune.errors import InputError
from wattune.records import GuardEvent
from wattune_agent.cap_guard import PATIENCE_S, UP_AFTER_S, UP_BELOW, CapGuard

__all__ = ["PATIENCE_S", "UP_AFTER_S", "UP_BELOW", "Guard", "check_limit"]


def check_limit(device: Device, max_temp_c: float | None) -> None:
    """Whether the device can be held below a temperature.

    Raises: InputError for what is no temperature, and for a device that does not tell its own.
    """
    if max_temp_c is None:
        return
    if isinstance(max_temp_c, (bool, str)) or not math.isfinite(max_temp_c):
        raise InputError("max_temp_c", value=max_temp_c, allowed="degrees Celsius, or none")
    if device.conditions().temperature_c is None:
        raise InputError(f"{device.name} does not tell its temperature", value=max_temp_c, allowed="no limit on it")


class Guard:
    """The rule of ``wattune_agent.cap_guard``, on a device that is at the planned setting.

    Call it with each reading: ``guard(time_s, power_w)``; from a sampling thread, too. A temperature above
    ``max_temp_c`` counts as a reading above the cap; a temperature that is gone for over ``GONE_AFTER_S`` under that
    limit ends training at the lowest setting. Without either limit (None) it does nothing.
    """

    def __init__(self, device: Device, setting: Setting, cap_w: float | None, max_temp_c: float | None = None):
        self.cap_w = cap_w
        self.max_temp_c = max_temp_c
        self._device = device
        self._setting = setting
        self._felt_s: float | None = None  # when there last was a temperature
        self._blind = False
        self.power_w: float | None = None
        """The newest reading."""
        self.top: float | None
        """The setting that was planned: the highest one."""
        self._before: list[GuardEvent] = []
        self._rule = self._made()

    @property
    def events(self) -> tuple[GuardEvent, ...]:
        """What the guard did so far."""
        return (*self._before, *(GuardEvent(**event) for event in self._rule.events))

    @property
    def failure(self) -> Exception | None:
        """What the device raised when its setting was to be changed."""
        return self._rule.failure

    @property
    def has_read(self) -> bool:
        """Whether there was a reading."""
        return self._rule.has_read

    @property
    def stopped(self) -> bool:
        """Whether the limits cannot be kept at the lowest setting, or the temperature is not known any more, so that
        training has to end."""
        return self._blind or self._rule.stopped

    @property
    def reason(self) -> str:
        """Why it stopped, in a sentence."""
        if self._blind:
            return f"no temperature for over {GONE_AFTER_S:g} s under a limit of {self.max_temp_c:g} °C"
        last = self._rule.events[-1]
        if self.cap_w is not None and last["power_w"] > self.cap_w:
            return f"{last['power_w']:.4g} W at the lowest setting, above the cap of {self.cap_w:.4g} W"
        return f"{last['temperature_c']:.4g} °C at the lowest setting, above the limit of {self.max_temp_c:g} °C"

    def __call__(self, time_s: float, power_w: float) -> None:
        """Answer one reading: ``power_w`` watts at ``time_s`` seconds of training. Raises: DeviceError."""
        self.power_w = power_w
        temperature_c = None if self.max_temp_c is None else self._device.conditions().temperature_c
        if self._felt_s is None or self.max_temp_c is None or temperature_c is not None:
            self._felt_s = time_s
        elif time_s - self._felt_s > GONE_AFTER_S:
            self._go_blind()
        if not self._blind:
            self._rule(time_s, power_w, temperature_c)

    def move(self, value: float) -> None:
        """Go on from another setting, as the one that was planned. Raises: DeviceError."""
        before = list(self.events)
        self._setting.change(value)
        self._before, self._rule = before, self._made()

    def _made(self) -> CapGuard:
        self.top = self._setting.value
        settle_s = self._device.sensor.settle_s
        return CapGuard(
            self._device.settings, self.top, self._setting.change, self.cap_w, settle_s, max_temp_c=self.max_temp_c
        )

    def _go_blind(self) -> None:
        # As with a power sensor that is gone: the lowest setting at once, and the end at the next step.
        if not self._blind:
            self._blind = True
            if self._setting.value is not None:
                self._setting.change(self._device.settings[0])

    def state_dict(self) -> dict[str, Any]:
        """What a later guard needs to go on from here, as JSON values."""
        before = [event.model_dump() for event in self._before]
        return {**self._rule.state_dict(), "before": before, "top": self.top}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``; brings the device to the setting of then. Raises: InputError, DeviceError."""
        if state["top"] != self.top:
            self.move(state["top"])
        self._before = [GuardEvent(**event) for event in state["before"]]
        self._rule.load_state_dict(state)
