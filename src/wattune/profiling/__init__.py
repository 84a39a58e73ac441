"""From a device, a workload and an algorithm to a table of step times and powers."""

from __future__ import annotations

from wattune.profiling.checking import Deviation, Deviations, check
from wattune.profiling.confirming import confirm
from wattune.profiling.key import profile_key
from wattune.profiling.profile import STRATEGIES, profile

__all__ = ["STRATEGIES", "Deviation", "Deviations", "check", "confirm", "profile", "profile_key"]
