"""A look at a device before it is relied on: everything that wattune needs of it, and what would fix the rest.

It changes nothing on the board. ``calibrate`` compares the board's sensor with a meter of the user's own.
"""

from __future__ import annotations

from wattune.doctor.calibrating import Calibration, Pair, calibrate, fit, keep
from wattune.doctor.examining import Examination, default_device, examine, tree_of
from wattune.doctor.finding import Finding

__all__ = [
    "Calibration",
    "Examination",
    "Finding",
    "Pair",
    "calibrate",
    "default_device",
    "examine",
    "fit",
    "keep",
    "tree_of",
]
