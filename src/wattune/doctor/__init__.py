"""Checks of a device before it is relied on: everything that wattune needs, and what would fix what is missing.

Nothing on the board is changed. ``calibrate`` compares the board's sensor with an external meter.
"""

from __future__ import annotations

from wattune.doctor.board_checks import Finding
from wattune.doctor.calibration import Calibration, Pair, calibrate, fit, save_calibration
from wattune.doctor.examination import Examination, board_tree, default_device, examine

__all__ = [
    "Calibration",
    "Examination",
    "Finding",
    "Pair",
    "board_tree",
    "calibrate",
    "default_device",
    "examine",
    "fit",
    "save_calibration",
]
