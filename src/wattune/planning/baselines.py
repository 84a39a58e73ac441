"""The rules that choose a point under a cap: wattune's and the baselines.

Source: arXiv 2502.18323, section 4 (comparison methods). "largest batch, fixed clock" is its Baseline 1, "best batch,
fixed clock" its Baseline 2, "fastest" its exhaustive search; the other two take the joint choice apart.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from wattune.cap import SensorLimit
from wattune.errors import UnknownName
from wattune.goal import TIME, Goal
from wattune.planning.candidates import CENSORED, fastest, figures, rank, why_above, why_stopped
from wattune.planning.objective import Objective
from wattune.planning.own_batch_size import pick_from
from wattune.planning.table import Option, PlanningTable
from wattune.point import OperatingPoint
from wattune.records import AbortedProbe, Candidate, ProfileTable, SampleEfficiency

RULES: dict[str, str] = {
    "wattune": "batch size and clock chosen together, by the samples that the proxy needed",
    "largest batch, fixed clock": "the largest batch that fits, at a clock that stays under the cap for any workload",
    "best batch, fixed clock": "the batch with fewest samples, at a clock that stays under the cap for any workload",
    "best batch, then clock": "the batch with fewest samples, at its own fastest clock",
    "largest batch, own clock": "the largest batch that fits, at its own fastest clock",
    "fastest": "batch size and clock chosen together, knowing the samples that the target itself needs",
}
"""Name of each rule and what it chooses."""

BASELINES = tuple(rule for rule in RULES if rule not in ("wattune", "fastest"))
"""The rules that a plan lists beside its pick; "fastest" needs the target trained at every batch size."""


NOT_MEASURED = "the profile did not measure this point; `wattune compare` does"


class RulePick(NamedTuple):
    """The choice of a rule: a measured option, a stopped probe, or a point that was not measured; and why it was not
    chosen (None: nothing)."""

    option: Option | AbortedProbe | OperatingPoint
    feasible: bool
    why_not: str | None


def pick(
    rule: str, profile: ProfileTable, efficiency: SampleEfficiency, limit: SensorLimit, goal: Goal = TIME
) -> Candidate | None:
    """The point that this rule chooses under the cap. "fastest" is given the target's own curve as ``efficiency``.
    Only "wattune" knows a ``goal``; all other rules choose for the time.

    None if nothing stays under the cap, or the profile does not say what the rule would choose: no reference powers, a
    device without a clock, a batch size that was not measured. If the rule's only choice exceeds the cap, or was not
    measured, it is returned with ``feasible`` False and why. With several micro-batch sizes, a fixed clock goes with
    the largest one that fits.

    Raises: UnknownName; RecordError if the records do not fit together.
    """
    if rule not in RULES:
        raise UnknownName("rule", rule, RULES)
    table = PlanningTable(profile, efficiency, limit.window_s)
    choice = choose(rule, table, limit, goal)
    if choice is None:
        return None
    return Candidate(**fields(choice, table), feasible=choice.feasible, why_not=choice.why_not)


def fields(choice: RulePick, table: PlanningTable) -> dict[str, object]:
    """The point of a choice and what it takes, as fields of a Candidate."""
    option = choice.option
    if isinstance(option, Option):
        return figures(option, table.reference_samples)
    return (option if isinstance(option, OperatingPoint) else option.point).fields()


def choose(rule: str, table: PlanningTable, limit: SensorLimit, goal: Goal = TIME) -> RulePick | None:
    """The pick of this rule from a table that is already arranged."""
    if rule == "wattune":
        pick = pick_from(Objective(goal, table, limit))
        return None if pick is None else RulePick(pick.option, True, None)
    if rule == "fastest":
        option = fastest(table.at.values(), limit)
        return None if option is None else RulePick(option, True, None)
    batch_size = batch_size_of(rule, table)
    if batch_size is None or batch_size not in table.largest_shape:
        return None
    return (_at_fixed_setting if rule.endswith("fixed clock") else _at_own_setting)(table, batch_size, limit)


def batch_size_of(rule: str, table: PlanningTable) -> int | None:
    """The batch size that a baseline chooses, before any clock: of all that the profile was to choose from, whether or
    not a guided one measured them. None if no size reached the target."""
    sizes = set(table.largest_shape)
    if table.profile.strategy == "guided":
        unfit = {cell.batch_size for cell in table.profile.cells if cell.out_of_memory} - sizes
        sizes |= {p.batch_size for p in table.efficiency.points if p.batch_size < min(unfit, default=math.inf)}
    if rule.startswith("largest batch"):
        return max(sizes)
    relative_samples = {b: relative for b in sizes if (relative := table.curve.get(b)) is not None}
    # Of two batch sizes that need equally many samples, the larger takes fewer steps.
    return min(relative_samples, key=lambda b: (relative_samples[b], -b), default=None)


def _at_own_setting(table: PlanningTable, batch_size: int, limit: SensorLimit) -> RulePick | None:
    options = [option for option in table.at.values() if option.cell.batch_size == batch_size]
    allowed = [option for option in options if limit.allows(option.capped_w)]
    if allowed:
        return _judged(min(allowed, key=rank), limit)
    if options:
        return _judged(min(options, key=lambda option: (option.capped_w, rank(option))), limit)
    probes = [probe for probe in table.profile.aborted if probe.batch_size == batch_size]
    return _stopped(min(probes, key=lambda probe: probe.power_w), limit)


def _at_fixed_setting(table: PlanningTable, batch_size: int, limit: SensorLimit) -> RulePick | None:
    if not table.combinations or (limit.limit_w is not None and table.profile.reference is None):
        return None
    keeping = table.fixed_setting(limit)
    point = OperatingPoint(table.largest_shape[batch_size], keeping or table.combinations[0])
    if (probe := table.aborted.get(point)) is not None:
        return _stopped(probe, limit)
    if (option := table.at.get(point) or table.own_reference(point)) is None:
        return RulePick(point, False, NOT_MEASURED)
    if not keeping:
        return RulePick(option, False, "no setting is known at which every reference workload stays under the cap")
    return _judged(option, limit)


def _judged(option: Option, limit: SensorLimit) -> RulePick:
    if not limit.allows(option.capped_w):
        return RulePick(option, False, why_above(option.capped_w, limit))
    return RulePick(option, True, CENSORED if option.relative_time is None else None)


def _stopped(probe: AbortedProbe, limit: SensorLimit) -> RulePick:
    return RulePick(probe, False, why_stopped(probe, limit))
