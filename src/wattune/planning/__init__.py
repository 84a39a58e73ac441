"""From a profile and an efficiency curve to a plan: pure arithmetic, without torch and without a device."""

from __future__ import annotations

from wattune.planning.algorithms import plan_algorithms, with_algorithm
from wattune.planning.gradients import learns_as
from wattune.planning.plan import check_profile, plan
from wattune.planning.robustness import robustness
from wattune.planning.rules import BASELINES, RULES, pick
from wattune.planning.sides import SIDES, module_cap
from wattune.planning.times import log_step_times

__all__ = [
    "BASELINES",
    "RULES",
    "SIDES",
    "check_profile",
    "learns_as",
    "log_step_times",
    "module_cap",
    "pick",
    "plan",
    "plan_algorithms",
    "robustness",
    "with_algorithm",
]
