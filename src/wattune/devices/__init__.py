"""Devices that train: one interface (``base``), simulated and recorded boards behind it, and the meter."""

from __future__ import annotations

from wattune.devices.base import Actuator, Device, Sensor, Setting, Truth
from wattune.devices.board import Board, Fault, builtin_board, load_board
from wattune.devices.meter import Meter, MeterFigures
from wattune.devices.recorded import RecordedDevice
from wattune.devices.registry import OPENERS, KnownDevice, known_devices, open_device
from wattune.devices.simulated import SimulatedDevice

__all__ = [
    "OPENERS",
    "Actuator",
    "Board",
    "Device",
    "Fault",
    "KnownDevice",
    "Meter",
    "MeterFigures",
    "RecordedDevice",
    "Sensor",
    "Setting",
    "SimulatedDevice",
    "Truth",
    "builtin_board",
    "known_devices",
    "load_board",
    "open_device",
]
