"""Planning: from a profile and an efficiency curve to a plan; pure arithmetic, without torch or a device."""

from __future__ import annotations

from wattune.planning.algorithms import plan_algorithms, with_algorithm
from wattune.planning.baselines import BASELINES, RULES, pick
from wattune.planning.confidence import log_step_times
from wattune.planning.evaluations import with_evaluations
from wattune.planning.over_time import check_intensity
from wattune.planning.plan import check_profile, plan
from wattune.planning.table import learns_as, worst_case

__all__ = [
    "BASELINES",
    "RULES",
    "check_intensity",
    "check_profile",
    "learns_as",
    "log_step_times",
    "pick",
    "plan",
    "plan_algorithms",
    "with_algorithm",
    "with_evaluations",
    "worst_case",
]
