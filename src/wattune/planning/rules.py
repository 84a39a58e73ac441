"""The rules that choose a point under a cap: wattune's, and those that it is compared with.

Source: arXiv 2502.18323, section 4 (comparison methods). "largest batch, fixed clock" is its Baseline 1, "best batch,
fixed clock" its Baseline 2, "fastest" its exhaustive search; the other two take the joint choice apart.
"""

from __future__ import annotations

from typing import NamedTuple

from wattune.errors import UnknownName
from wattune.planning.candidates import CENSORED, figures, position, why_above, why_stopped
from wattune.planning.selection import Limit, fastest, rank
from wattune.planning.table import Option, Table
from wattune.records import AbortedProbe, Candidate, EfficiencyCurve, ProfileTable

RULES: dict[str, str] = {
    "wattune": "batch size and clock chosen together, by the samples that the proxy needed",
    "largest batch, fixed clock": "the largest batch that fits, at a clock that keeps the cap for any workload",
    "best batch, fixed clock": "the batch that needs least samples, at a clock that keeps the cap for any workload",
    "best batch, then clock": "the batch that needs least samples, at its own fastest clock",
    "largest batch, own clock": "the largest batch that fits, at its own fastest clock",
    "fastest": "batch size and clock chosen together, knowing the samples that the target itself needs",
}
"""Name of each rule and what it chooses."""

BASELINES = tuple(rule for rule in RULES if rule not in ("wattune", "fastest"))
"""The rules that a plan lists beside its pick; "fastest" needs the target trained at every batch size."""


class Choice(NamedTuple):
    """What a rule chooses: a measured option or a stopped probe, and what speaks against it (None: nothing)."""

    option: Option | AbortedProbe
    feasible: bool
    why_not: str | None


def pick(
    rule: str, profile: ProfileTable, efficiency: EfficiencyCurve, *, cap_w: float | None, margin_w: float = 0.0
) -> Candidate | None:
    """What this rule chooses under the cap. "fastest" is given the target's own curve as ``efficiency``.

    None where nothing keeps the cap, or the profile does not say what the rule would choose: no reference powers, a
    device without a clock, a cell that was not measured. A rule whose only choice breaks the cap gives that point with
    ``feasible`` False and why. With several micro-batch sizes, a fixed clock goes with the largest one that fits.

    Raises: UnknownName; InputError for a cap that is not positive; RecordError where the records do not fit together.
    """
    if rule not in RULES:
        raise UnknownName("rule", rule, RULES)
    limit, table = Limit(cap_w, margin_w), Table(profile, efficiency)
    choice = choose(rule, table, limit)
    if choice is None:
        return None
    return Candidate(**fields(choice, table), feasible=choice.feasible, why_not=choice.why_not)


def fields(choice: Choice, table: Table) -> dict[str, object]:
    """Where a choice is and what it takes, as fields of a Candidate."""
    option = choice.option
    return position(option) if isinstance(option, AbortedProbe) else figures(option, table.reference_samples)


def choose(rule: str, table: Table, limit: Limit) -> Choice | None:
    """As ``pick``, on a table that is arranged already."""
    if rule in ("wattune", "fastest"):
        option = fastest(table.rows, limit)
        return None if option is None else Choice(option, True, None)
    batch_size = max(table.largest_micro_batch) if rule.startswith("largest batch") else _best_batch(table)
    if batch_size is None:
        return None
    return (_at_fixed_setting if rule.endswith("fixed clock") else _at_own_setting)(table, batch_size, limit)


def _best_batch(table: Table) -> int | None:
    known = {b: relative for b, relative in table.relative_samples.items() if relative is not None}
    # Of two that need equally many samples, the larger takes fewer steps.
    return min(known, key=lambda b: (known[b], -b), default=None)


def _at_own_setting(table: Table, batch_size: int, limit: Limit) -> Choice | None:
    options = [option for option in table.at.values() if option.cell.batch_size == batch_size]
    kept = [option for option in options if limit.keeps(option.peak_w)]
    if kept:
        return _judged(min(kept, key=rank), limit)
    if options:
        return _judged(min(options, key=lambda option: (option.peak_w, rank(option))), limit)
    probes = [probe for probe in table.profile.aborted if probe.batch_size == batch_size]
    return _stopped(min(probes, key=lambda probe: probe.power_w), limit)


def _at_fixed_setting(table: Table, batch_size: int, limit: Limit) -> Choice | None:
    if not table.settings or (limit.cap_w is not None and table.profile.reference is None):
        return None
    # Without a cap every setting keeps it, and no reference power has to be known.
    keeping = table.settings if limit.cap_w is None else [s for s, w in table.worst_case_w.items() if limit.keeps(w)]
    setting = max(keeping, default=min(table.settings))
    place = (batch_size, table.largest_micro_batch[batch_size])
    for actuators in ((setting, 0.0), (0.0, setting)):
        probe, option = table.aborted.get(place + actuators), table.at.get(place + actuators)
        if probe is not None:
            return _stopped(probe, limit)
        if option is not None and not keeping:
            return Choice(option, False, "no setting is known at which every reference workload keeps the cap")
        if option is not None:
            return _judged(option, limit)
    return None


def _judged(option: Option, limit: Limit) -> Choice:
    if not limit.keeps(option.peak_w):
        return Choice(option, False, why_above(option.peak_w, limit))
    return Choice(option, True, CENSORED if option.relative_time is None else None)


def _stopped(probe: AbortedProbe, limit: Limit) -> Choice:
    return Choice(probe, False, why_stopped(probe, limit))
