"""Devices that another process of the same job opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from wattune.devices.base import Conditions, Device, Knob, Sensor, Setting
from wattune.devices.real_time import RealDevice, UncontrolledDevice
from wattune.errors import DeviceError, SensorError
from wattune.point import Knobs
from wattune.records import Supply

Call = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Send a message to the process that opened the device, and return its answer. Raises: DeviceError."""


def remote_device(description: Mapping[str, Any], call: Call, is_connected: Callable[[], bool]) -> Device:
    """A device that another process serves (``DeviceService``) and has described (``describe``).

    A process that is no longer connected has restored the device, and is not asked to.
    """
    return _RemoteDevice(description, call, is_connected)


def describe(device: Device) -> dict[str, Any]:
    """The description that a ``remote_device`` is made from, as JSON values."""
    return {
        "name": device.name,
        "mode": device.mode,
        "knobs": [asdict(knob) for knob in device.knobs],
        "current": None if (knobs := device.current()) is None else dict(knobs),
        "sensor": asdict(device.sensor),
        "memory_bytes": device.memory_bytes,
        "data_types": sorted(device.data_types),
        "shares_memory": device.shares_memory,
        "supply": None if device.supply is None else device.supply.model_dump(),
    }


def device_out_of_reach(name: str) -> Device:
    """A process's own device, which another process sets and reads."""
    return _DeviceOutOfReach(name)


class DeviceService:
    """Answers the messages of a ``remote_device`` for a device of this process. Values are those of JSON."""

    def __init__(self, device: Device):
        self._device = device
        self._stack = ExitStack()
        self._setting: Setting | None = None

    def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Read, set or restore the device, as the message says. Raises: InputError, DeviceError."""
        if message["what"] == "read":
            conditions = self._device.conditions()
            return {
                "power_w": float(self._device.power_w()),
                "temperature_c": conditions.temperature_c,
                "throttled": list(conditions.throttled),
                "clock_mhz": self._device.clock_mhz(),
            }
        if message["what"] == "restore":
            self.restore()
            return {}
        knobs = Knobs(message["knobs"])
        if self._setting is None:
            self._setting = self._stack.enter_context(self._device.at(knobs))
        else:
            self._setting.change(knobs)
        return {}

    def restore(self) -> None:
        """Restore the device if it was set. Raises: DeviceError."""
        self._setting = None
        self._stack.close()


class _RemoteDevice(RealDevice):
    kind = "measured"

    def __init__(self, description: Mapping[str, Any], call: Call, is_connected: Callable[[], bool]):
        self.name = description["name"]
        self.mode = description["mode"]
        self.knobs = tuple(
            Knob(knob["name"], tuple(knob["values"]), knob["power_rises"], tuple(knob["volts"]))
            for knob in description["knobs"]
        )
        self.sensor = Sensor(**description["sensor"])
        self.memory_bytes = description["memory_bytes"]
        self.data_types = frozenset(description["data_types"])
        self.shares_memory = description["shares_memory"]
        self.supply = None if description["supply"] is None else Supply(**description["supply"])
        self._present = None if description["current"] is None else Knobs(description["current"])
        self._call, self._is_connected = call, is_connected
        self._conditions = Conditions()
        self._clock_now_mhz: float | None = None
        super().__init__()

    def current(self) -> Knobs | None:
        """The setting as it was last known."""
        return self._present

    def conditions(self) -> Conditions:
        """Temperature and throttling at the last reading."""
        return self._conditions

    def clock_mhz(self) -> float | None:
        """The clock at the last reading."""
        return self._clock_now_mhz

    def _read_w(self) -> float:
        try:
            answer = self._call({"what": "read"})
        except DeviceError as error:
            raise SensorError(str(error)) from None
        self._conditions = Conditions(answer["temperature_c"], tuple(answer["throttled"]))
        self._clock_now_mhz = answer["clock_mhz"]
        return float(answer["power_w"])

    def _apply(self, knobs: Knobs) -> None:
        self._call({"what": "apply", "knobs": dict(knobs)})
        self._present = knobs

    def _snapshot(self) -> object:
        return self._present

    def _restore(self, snapshot: object) -> None:
        if self._is_connected():
            self._call({"what": "restore"})
        assert snapshot is None or isinstance(snapshot, Knobs)
        self._present = snapshot


class _DeviceOutOfReach(UncontrolledDevice):
    kind = "measured"
    mode = "controlled by another process"
    sensor = Sensor(rail="read by another process")
    memory_bytes = None
    data_types = frozenset({"fp32", "tf32", "fp16", "bf16"})

    def __init__(self, name: str):
        self.name = name
        super().__init__()

    def _read_w(self) -> float:
        raise SensorError(f"{self.name} is read by another process")
