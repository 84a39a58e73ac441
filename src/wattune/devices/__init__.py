"""Devices that train: one interface (``base``), real, simulated and recorded boards behind it, and the meter."""

from __future__ import annotations

from wattune.devices.base import Conditions as Conditions
from wattune.devices.base import Device as Device
from wattune.devices.base import ExactStep as ExactStep
from wattune.devices.base import GroundTruth as GroundTruth
from wattune.devices.base import Knob as Knob
from wattune.devices.base import Sensor as Sensor
from wattune.devices.base import Setting as Setting
from wattune.devices.meter import Meter as Meter
from wattune.devices.meter import MeterFigures as MeterFigures
from wattune.devices.real_time import RealDevice as RealDevice
from wattune.devices.registry import OPENERS as OPENERS
from wattune.devices.registry import KnownDevice as KnownDevice
from wattune.devices.registry import known_devices as known_devices
from wattune.devices.registry import open_device as open_device
from wattune.devices.replay import ReplayDevice as ReplayDevice
from wattune.devices.replay import replayed as replayed
from wattune.devices.simulator.board_file import Fault as Fault
from wattune.devices.simulator.board_file import SimulatedBoard as SimulatedBoard
from wattune.devices.simulator.board_file import builtin_board as builtin_board
from wattune.devices.simulator.board_file import load_board as load_board
from wattune.devices.simulator.simulated import SimulatedDevice as SimulatedDevice
