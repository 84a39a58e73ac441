"""How the reports write figures and origins: one way of putting each quantity into words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from wattune.records import (
    AlgorithmChoice,
    Baseline,
    CapGain,
    ComparisonRow,
    OperatingPoint,
    Plan,
    ProfileCell,
    ProfileCost,
    TrainingRecord,
)

FIXED_CLOCK_RULE = "largest batch, fixed clock"
"""The rule that speed-ups in headlines are against; its name as planning and comparison write it."""

OWN_RULE = "wattune"
"""The name of wattune's own pick in a comparison."""

FIXED_CLOCK = "the largest batch at the fixed clock"
"""The same rule inside a sentence."""

UNKNOWN = "origin unknown"


def seconds(value: float | None) -> str:
    """A duration in s, min or h; "-" where there is none."""
    if value is None:
        return "-"
    if value < 120:
        return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
    if value < 7200:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(value / 60), 60)
    return f"{hours} h {rest:02d} min"


def joules(value: float | None) -> str:
    """An energy in J, kJ or MJ; "-" where there is none."""
    if value is None:
        return "-"
    for factor, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if value >= factor:
            return f"{_digits(value / factor)} {unit}"
    return f"{_digits(value)} J"


def watts(value: float | None) -> str:
    """A power in W, finer than a sensor's usual step; "-" where there is none."""
    return "-" if value is None else f"{value:.2f} W" if value < 100 else f"{value:.1f} W"


def memory(value_bytes: float | None) -> str:
    """An amount of memory in KB, MB or GB; "-" where it is not known."""
    if value_bytes is None:
        return "-"
    factor, unit = (1e9, "GB") if value_bytes >= 999.5e6 else (1e6, "MB") if value_bytes >= 999.5e3 else (1e3, "KB")
    return f"{_digits(value_bytes / factor)} {unit}"


def times(value: float | None) -> str:
    """A ratio such as a speed-up; "-" where there is none."""
    return "-" if value is None else f"{value:.2f}x"


def count(value: float | None) -> str:
    """A number of samples; "-" where there is none."""
    return "-" if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """A share of one as per cent; "-" where there is none."""
    if share is None:
        return "-"
    return f"{share * 100:.0f} %" if abs(share) >= 0.0995 or share == 0 else f"{share * 100:.2g} %"


def multiple(share: float) -> str:
    """A share before "the time of": "12 % of" or, where it is many times as much, "14.6 times"."""
    return f"{percent(share)} of" if share < 2 else f"{share:.1f} times"


def cap(value: float | None) -> str:
    """A power cap as it is set."""
    return "no cap" if value is None else f"{value:g} W"


def under(cap_w: float | None, supply_cap_w: float | None = None) -> str:
    """A power cap inside a sentence; ``supply_cap_w`` where it was given for the terminals of the supply."""
    if supply_cap_w is not None:
        return f"under a cap of {cap(supply_cap_w)} at the supply"
    return "without a power cap" if cap_w is None else f"under a cap of {cap(cap_w)}"


def side(plan: Plan) -> str:
    """Where the cap holds, what a reading averages over, and which margin is taken for that; empty without a cap."""
    if plan.cap_w is None:
        return ""
    rail = f" ({plan.sensor_rail})" if plan.sensor_rail else ""
    if plan.supply_cap_w is None:
        text = f"The cap of {cap(plan.cap_w)} holds at the module: for the readings of its power sensor{rail}"
    else:
        supply = plan.supply
        how = "" if supply is None else f", by (module + {supply.other_w:g} W) / {supply.efficiency:g}"
        text = (
            f"The cap of {cap(plan.supply_cap_w)} holds at the supply's terminals. That is {watts(plan.cap_w)} for the "
            f"readings of the module's power sensor{rail}{how}"
        )
    margin = f"{plan.margin_w:g} W below the cap are" if plan.margin_w else "no margin below the cap is"
    window_s = plan.sensor_window_s
    if window_s is None:
        return f"{text}. What time a reading averages over is not known; {margin} kept for peaks."
    if window_s == 0:
        return f"{text}, which are instantaneous; {margin} kept."
    return (
        f"{text}. Each reading averages over {seconds(window_s)}, so shorter peaks may be higher without being seen; "
        f"{margin} kept for them."
    )


def sure(plan: Plan) -> str:
    """How sure the choice is, as far as the records tell."""
    said = []
    if plan.p_best is not None and plan.expected_loss is not None:
        said.append(
            f"batch size {plan.batch_size} is the best one with a probability of {_probability(plan.p_best)}, and "
            f"expected to take {percent(plan.expected_loss)} longer than the best"
        )
    if plan.p_over_cap is not None:
        said.append(f"the probability that it draws more than the cap is {_probability(plan.p_over_cap)}")
    return "; ".join(said)


def _probability(share: float) -> str:
    """A probability, which nothing here knows to more than a per cent."""
    return "under 1 %" if share < 0.01 else "over 99 %" if share > 0.99 else f"{100 * share:.0f} %"


def robust(plan: Plan) -> str:
    """On how many boards that a simulated board's file allows the pick holds; nothing where nobody asked."""
    found = plan.robustness
    if found is None:
        return ""
    loss = "" if found.mean_loss is None else f"; with it they are {percent(found.mean_loss)} slower than they could be"
    return (
        f"of {found.draws} boards that the board's file allows, this point is the best on {found.best} and above the "
        f"cap on {found.over_cap}; its batch size is the best on {found.best_batch_size}{loss}"
    )


def strain(cell: ProfileCell) -> str:
    """What speaks against a measured cell; empty where nothing does."""
    parts = []
    if cell.throttled:
        parts.append(f"throttled by {', '.join(cell.throttled)}")
    if cell.over_current:
        parts.append(f"{cell.over_current} over-current {'events' if cell.over_current > 1 else 'event'}")
    if cell.swapped_bytes:
        parts.append(f"{cell.swapped_bytes / 2**20:.1f} MiB swapped")
    return ", ".join(parts)


def remark(row: ComparisonRow | Baseline) -> str:
    """Why a rule has no speed-up; nothing where it has one, which says it all."""
    if row.speed_up is not None:
        return ""
    if row.why_not is None and isinstance(row, ComparisonRow) and row.censored:
        return f"{row.censored} of {row.runs} runs did not reach the target"
    return row.why_not or ""


def batch(point: OperatingPoint) -> str:
    """The batch size, and the micro-batch size where it differs: "32" or "32 in 8s"."""
    micro = point.micro_batch_size
    return f"{point.batch_size}" if micro in (None, point.batch_size) else f"{point.batch_size} in {micro}s"


def setting(point: OperatingPoint) -> str:
    """The clock or the power limit; "-" on a device without either."""
    if point.clock_mhz is not None:
        return f"{point.clock_mhz:g} MHz"
    return "-" if point.power_limit_w is None else f"limit {point.power_limit_w:g} W"


def point(where: OperatingPoint) -> str:
    """An operating point inside a sentence: "batch size 32 at 768 MHz"."""
    text = f"batch size {where.batch_size}"
    if where.micro_batch_size not in (None, where.batch_size):
        text += f" (micro-batches of {where.micro_batch_size})"
    if where.clock_mhz is not None:
        return f"{text} at {where.clock_mhz:g} MHz"
    return text if where.power_limit_w is None else f"{text} at a power limit of {where.power_limit_w:g} W"


def chosen(plan: Plan) -> str:
    """The chosen point, with the training algorithm where that is not plain backprop, and the memory that it needs."""
    how = "" if plan.algorithm == "backprop" and not plan.algorithms else f"{plan.algorithm}, "
    limit = plan.memory_limit_bytes
    needs = "" if limit is None else f", {memory(plan.predicted_memory_bytes)} of the {memory(limit)} allowed"
    return f"{how}{point(plan.point)}{needs}"


def place(entry: ComparisonRow | CapGain | AlgorithmChoice) -> OperatingPoint | None:
    """The operating point of an entry that may have none."""
    if entry.batch_size is None:
        return None
    return OperatingPoint(
        batch_size=entry.batch_size,
        micro_batch_size=entry.micro_batch_size,
        clock_mhz=entry.clock_mhz,
        power_limit_w=entry.power_limit_w,
    )


def origin(**kinds: str | None) -> str:
    """Where figures come from, said so that nothing simulated passes for measured.

    One word where all parts agree ("simulated"), and otherwise part by part: "step times simulated, samples measured".
    The keywords name the parts, with underscores for spaces; their values are ``Provenance.kind``.
    """
    distinct = set(kinds.values())
    if len(distinct) <= 1:
        return next(iter(distinct), None) or UNKNOWN
    return ", ".join(f"{part.replace('_', ' ')} {kind or 'of unknown origin'}" for part, kind in kinds.items())


def grouped(kinds: Mapping[str, str | None]) -> str:
    """The same for whole records: "simulated: profile, plan; measured: efficiency", or one word where all agree."""
    groups: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        groups.setdefault(kind or UNKNOWN, []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in groups.items())


def gain(speed_up: float) -> str:
    """A speed-up in words: "1.83 times as fast as" or "as fast as"."""
    if abs(speed_up - 1) < 0.005:
        return "as fast as"
    return f"{speed_up:.2f} times as fast as"


def profiling_cost(cost: ProfileCost, plan: Plan | None, training: TrainingRecord | None) -> str:
    """What profiling cost, as a share of this training, and when it has paid, in one to three plain sentences.

    The share and the pay-back are the training record's where it has them; before training they follow from the
    plan's predictions, and are called predicted.
    """
    text = f"Profiling took {seconds(cost.time_s)} and {joules(cost.energy_j)} on the device in {cost.probes} probes"
    if cost.cap_w is not None:
        text += f", {seconds(cost.above_cap_s) if cost.above_cap_s else 'none'} of it above the cap of {cost.cap_w:g} W"
    text += "."
    share = training.profiling_share if training else None
    if share is not None:
        text += f" That is {multiple(share)} the time of this training."
    elif training is None and plan is not None and plan.predicted_s:
        text += f" That is {multiple(cost.time_s / plan.predicted_s)} the predicted time of one training."
    return text + _payback(cost, plan, training)


def left_out(training: TrainingRecord) -> str:
    """What time and energy of this training do not count; empty where they count everything."""
    missing = (training.provenance.model_extra or {}).get("left_out")
    return f"Time and energy leave out {missing}." if missing else ""


def off_track(training: TrainingRecord) -> str:
    """How the first tenth of this training was otherwise than expected; empty where it was not, or nobody knows."""
    seen = training.first_tenth
    return "" if seen is None or seen.fits is not False else seen.said


def _payback(cost: ProfileCost, plan: Plan | None, training: TrainingRecord | None) -> str:
    plan = plan or (training.plan if training else None)
    rival = baseline(plan) if plan else None
    after = training.pays_after_trainings if training else None
    how = ""
    if training is not None and not training.reached:
        return " Whether it pays cannot be said, since the target was not reached."
    if after is None:
        if plan is None or plan.predicted_s is None or rival is None or rival.predicted_s is None:
            return ""
        saved_s = rival.predicted_s - plan.predicted_s
        if saved_s <= 0:
            return f" It does not pay: by the predictions nothing is saved over {FIXED_CLOCK} under this cap."
        after, how = cost.time_s / saved_s, "by the predictions "
    if after <= 1:
        return f" It has paid within one training, {how}compared with {FIXED_CLOCK}."
    return (
        f" It has not paid with one training: {how}it pays after {math.ceil(after)} trainings, against {FIXED_CLOCK}."
    )


def baseline(plan: Plan) -> Baseline | None:
    """The plan's row of the largest batch at the fixed clock; None where the plan could not know it."""
    return next((row for row in plan.baselines if row.rule == FIXED_CLOCK_RULE), None)


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def metric(name: str | None) -> str:
    """The metric as an axis calls it; just "metric" where the record does not say."""
    return "metric" if name is None else name.replace("_", " ")


def no_pick(gain: CapGain) -> str:
    """Why there is no pick under a cap."""
    return "no proxy run reached the target there" if gain.feasible else "no measured point keeps it"
