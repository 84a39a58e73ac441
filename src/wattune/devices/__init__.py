"""Devices that train: one interface (``base``), real, simulated and recorded boards behind it, and the meter."""

from __future__ import annotations

from wattune.devices.base import Conditions, Device, ExactStep, GroundTruth, Knob, Sensor, Setting
from wattune.devices.meter import Meter, MeterFigures
from wattune.devices.real_time import RealDevice
from wattune.devices.registry import OPENERS, KnownDevice, known_devices, open_device
from wattune.devices.replay import Noise, ReplayDevice
from wattune.devices.simulator.board_file import Fault, SimulatedBoard, builtin_board, load_board
from wattune.devices.simulator.simulated import SimulatedDevice

__all__ = [
    "OPENERS",
    "Conditions",
    "Device",
    "ExactStep",
    "Fault",
    "GroundTruth",
    "Knob",
    "KnownDevice",
    "Meter",
    "MeterFigures",
    "Noise",
    "RealDevice",
    "ReplayDevice",
    "Sensor",
    "Setting",
    "SimulatedBoard",
    "SimulatedDevice",
    "builtin_board",
    "known_devices",
    "load_board",
    "open_device",
]
