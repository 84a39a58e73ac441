"""From a profile and an efficiency curve to a plan: pure arithmetic, without torch and without a device."""

from __future__ import annotations

from wattune.planning.plan import check_profile, plan
from wattune.planning.rules import BASELINES, RULES, pick

__all__ = ["BASELINES", "RULES", "check_profile", "pick", "plan"]
