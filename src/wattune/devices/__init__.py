"""Devices that train: one interface (``base``), real, simulated and recorded boards behind it, and the meter."""

from __future__ import annotations

from wattune.devices.base import Actuator, Conditions, Device, Sensor, Setting, Truth
from wattune.devices.board import Board, Fault, builtin_board, load_board
from wattune.devices.meter import Meter, MeterFigures
from wattune.devices.real import RealDevice
from wattune.devices.recorded import RecordedDevice
from wattune.devices.registry import OPENERS, KnownDevice, known_devices, open_device
from wattune.devices.simulated import SimulatedDevice

__all__ = [
    "OPENERS",
    "Actuator",
    "Board",
    "Conditions",
    "Device",
    "Fault",
    "KnownDevice",
    "Meter",
    "MeterFigures",
    "RealDevice",
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
