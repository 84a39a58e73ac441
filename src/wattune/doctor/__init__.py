"""Checks of a device before it is relied on: everything that wattune needs, and what would fix what is missing.

``examine`` changes nothing on the board. ``try_settings`` pins three settings and restores the board.
"""

from __future__ import annotations

from wattune.doctor.board_checks import Finding
from wattune.doctor.examination import Examination, board_tree, default_device, device_tree, examine
from wattune.doctor.tried_settings import TRY_S, TriedSetting, settings_to_try, try_settings, try_switch

__all__ = [
    "TRY_S",
    "Examination",
    "Finding",
    "TriedSetting",
    "board_tree",
    "default_device",
    "device_tree",
    "examine",
    "settings_to_try",
    "try_settings",
    "try_switch",
]
