"""Planning: from a profile and an efficiency curve to a plan; pure arithmetic, without torch or a device."""

from __future__ import annotations

from wattune.planning.algorithms import plan_algorithms as plan_algorithms
from wattune.planning.baselines import BASELINES as BASELINES
from wattune.planning.baselines import RULES as RULES
from wattune.planning.baselines import pick as pick
from wattune.planning.confidence import log_step_times as log_step_times
from wattune.planning.evaluations import with_evaluations as with_evaluations
from wattune.planning.over_time import check_intensity as check_intensity
from wattune.planning.plan import check_profile as check_profile
from wattune.planning.plan import plan as plan
from wattune.planning.table import learns_as as learns_as
from wattune.planning.table import worst_case as worst_case
