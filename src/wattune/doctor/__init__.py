"""Checks of a device before it is relied on: everything that wattune needs, and what would fix what is missing.

``examine`` changes nothing on the board. ``try_settings`` pins three settings and restores the board.
"""

from __future__ import annotations

from wattune.doctor.board_checks import Finding as Finding
from wattune.doctor.examination import Examination as Examination
from wattune.doctor.examination import board_tree as board_tree
from wattune.doctor.examination import default_device as default_device
from wattune.doctor.examination import device_tree as device_tree
from wattune.doctor.examination import examine as examine
from wattune.doctor.tried_settings import TRY_S as TRY_S
from wattune.doctor.tried_settings import TriedSetting as TriedSetting
from wattune.doctor.tried_settings import settings_to_try as settings_to_try
from wattune.doctor.tried_settings import try_settings as try_settings
from wattune.doctor.tried_settings import try_switch as try_switch
