"""Planning: from a profile and an efficiency curve to a plan; pure arithmetic, without torch or a device."""

from __future__ import annotations

from wattune.planning.algorithms import plan_algorithms, with_algorithm
from wattune.planning.baselines import BASELINES, RULES, pick
from wattune.planning.confidence import log_step_times, robustness
from wattune.planning.evaluations import with_evaluations
from wattune.planning.moving_cap import plan_over_caps
from wattune.planning.objective import front_of
from wattune.planning.plan import check_profile, plan
from wattune.planning.schedule import check_intensity, plan_by_intensity
from wattune.planning.table import learns_as

__all__ = [
    "BASELINES",
    "RULES",
    "check_intensity",
    "check_profile",
    "front_of",
    "learns_as",
    "log_step_times",
    "pick",
    "plan",
    "plan_algorithms",
    "plan_by_intensity",
    "plan_over_caps",
    "robustness",
    "with_algorithm",
    "with_evaluations",
]
