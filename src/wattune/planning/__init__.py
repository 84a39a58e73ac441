"""From a profile and an efficiency curve to a plan: pure arithmetic, without torch and without a device."""

from __future__ import annotations

from wattune.planning.contention import contenders
from wattune.planning.plan import check_profile, plan
from wattune.planning.robustness import robustness
from wattune.planning.rules import BASELINES, RULES, pick
from wattune.planning.sides import SIDES, module_cap

__all__ = ["BASELINES", "RULES", "SIDES", "check_profile", "contenders", "module_cap", "pick", "plan", "robustness"]
