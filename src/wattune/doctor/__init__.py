"""Checks of a device before it is relied on: everything that wattune needs, and what would fix what is missing.

``examine`` changes nothing on the board. ``try_settings`` pins three settings and restores the board. ``calibrate``
compares the board's sensor with an external meter.
"""

from __future__ import annotations

from wattune.doctor.board_checks import Finding
from wattune.doctor.calibration import Calibration, Pair, calibrate, fit, save_calibration
from wattune.doctor.examination import Examination, board_tree, default_device, device_tree, examine
from wattune.doctor.tried_settings import TRY_S, TriedSetting, settings_to_try, try_settings, try_switch

__all__ = [
    "TRY_S",
    "Calibration",
    "Examination",
    "Finding",
    "Pair",
    "TriedSetting",
    "board_tree",
    "calibrate",
    "default_device",
    "device_tree",
    "examine",
    "fit",
    "save_calibration",
    "settings_to_try",
    "try_settings",
    "try_switch",
]
