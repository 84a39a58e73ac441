"""Wording of figures and origins in reports: one way of writing each quantity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from wattune.goal import Goal
from wattune.point import Knobs, OperatingPoint
from wattune.records import (
    Baseline,
    CapGain,
    ComparisonRow,
    FrontPoint,
    Plan,
    ProfileCell,
    ProfileCost,
    TrainingRecord,
)

FIXED_CLOCK_RULE = "largest batch, fixed clock"
"""The baseline of the method's paper, which headlines compare with, as planning and comparison name it."""

OWN_CLOCK_RULE = "best batch, then clock"
"""The strongest rule that needs no joint choice, which headlines compare with as well."""

OWN_RULE = "wattune"
"""The name of wattune's own pick in a comparison."""

FIXED_CLOCK = "the largest batch at the fixed clock"
OWN_CLOCK = "the best batch at its own clock"
"""The same rules in a sentence."""

UNKNOWN = "origin unknown"


def seconds(value: float | None) -> str:
    """Write a duration in ms, s, min or h; "-" for None."""
    if value is None:
        return "-"
    if 0 < value < 0.0995:
        return f"{1000 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
    if value < 7200:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(value / 60), 60)
    return f"{hours} h {rest:02d} min"


def joules(value: float | None) -> str:
    """Write an energy in J, kJ or MJ; "-" for None."""
    if value is None:
        return "-"
    for factor, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if value >= factor:
            return f"{_digits(value / factor)} {unit}"
    return f"{_digits(value)} J"


def watts(value: float | None) -> str:
    """Write a power in W, finer than a sensor's usual resolution; "-" for None."""
    return "-" if value is None else f"{value:.2f} W" if value < 100 else f"{value:.1f} W"


def memory(value_bytes: float | None) -> str:
    """Write an amount of memory in KB, MB or GB; "-" for None."""
    if value_bytes is None:
        return "-"
    factor, unit = (1e9, "GB") if value_bytes >= 999.5e6 else (1e6, "MB") if value_bytes >= 999.5e3 else (1e3, "KB")
    return f"{_digits(value_bytes / factor)} {unit}"


def times(value: float | None) -> str:
    """Write a ratio such as a speed-up; "-" for None."""
    return "-" if value is None else f"{value:.2f}x"


def count(value: float | None) -> str:
    """Write a number of samples; "-" for None."""
    return "-" if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """Write a fraction as per cent; "-" for None."""
    if share is None:
        return "-"
    return f"{share * 100:.0f} %" if abs(share) >= 0.0995 or share == 0 else f"{share * 100:.2g} %"


def multiple(share: float) -> str:
    """Write a share before "the time of": "12 % of" or, from 2 on, "14.6 times"."""
    return f"{percent(share)} of" if share < 2 else f"{share:.1f} times"


def cap(value: float | None) -> str:
    """Write a power cap as it was set."""
    return "no cap" if value is None else f"{value:g} W"


def under(cap_w: float | None, supply_cap_w: float | None = None) -> str:
    """Write a power cap in a sentence; ``supply_cap_w``: the cap if it was set at the supply."""
    if supply_cap_w is not None:
        return f"under a cap of {cap(supply_cap_w)} at the supply"
    return "without a power cap" if cap_w is None else f"under a cap of {cap(cap_w)}"


def under_cap_of(plan: Plan) -> str:
    """Write the cap of a plan in a sentence, also one that changes."""
    if not plan.caps:
        return under(plan.cap_w, plan.supply_cap_w)
    side = " at the supply" if plan.supply_cap_w is not None else ""
    low_w, high_w = plan.caps[0].asked_w, plan.caps[-1].asked_w
    return f"under a cap that changes, {low_w:g} to {high_w:g} W{side}"


def moving_cap(plan: Plan, training: TrainingRecord | None = None) -> str:
    """The settings under the lowest and the highest feasible cap, what one batch size costs, and the pauses.

    Empty for a constant cap.
    """
    if not plan.caps:
        return ""
    feasible = [one for one in plan.caps if one.feasible]
    paused = sum(one.share for one in plan.caps if not one.feasible)
    ends = " and ".join(
        dict.fromkeys(
            f"{setting(one.point)} under {one.asked_w:g} W" for one in (feasible[0], feasible[-1]) if one.point
        )
    )
    parts = [f"The batch size stays, the setting follows the cap: {ends}"]
    if paused:
        parts.append(f"nothing can run in {percent(paused)} of the time of the caps")
    if plan.of_clairvoyant is not None and plan.over_constant is not None:
        parts.append(
            f"this is {percent(plan.of_clairvoyant)} of the progress of the fastest point under each cap, and "
            f"{plan.over_constant:.2f} times that of the best single point"
        )
    if training is not None and training.paused_s:
        parts.append(f"training paused for {seconds(training.paused_s)} of {seconds(training.time_s)}")
    if training is not None and training.of_foresight is not None:
        parts.append(f"it made {percent(training.of_foresight)} of the progress that perfect foresight would have made")
    return "; ".join(parts) + "."


INTENSITIES = {"gco2_per_kwh": ("carbon intensity", "g/kWh"), "price_per_kwh": ("price", "per kWh")}
"""Name and unit of what a schedule was chosen by."""


def schedule(plan: Plan, training: TrainingRecord | None = None) -> str:
    """The times of a plan's schedule, what they save, and what the run took; empty without one."""
    times = plan.schedule
    if times is None:
        return ""
    is_carbon = times.unit == "gco2_per_kwh"
    paused_s = times.finish_s - (plan.predicted_s or 0.0)
    stretches = f"{len(times.times)} times" if len(times.times) > 1 else "one time"
    text = f"trains at {stretches} of low {INTENSITIES[times.unit][0]}, and ends after {seconds(times.finish_s)}"
    if paused_s > 1:
        text += f", {seconds(paused_s)} of it waiting"
    amount = carbon if is_carbon else "{:.3g} in the currency of the tariff".format
    text += f"; predicted {amount(times.predicted)} while it trains"
    against = [
        f"{percent(1 - times.predicted / before)} less than {name}"
        for before, name in ((times.at_once, "without waiting"), (times.fastest_at_once, "the fastest point at once"))
        if before > 0 and times.predicted <= before
    ]
    text += f", {' and '.join(against)}" if against else ""
    if times.predicted_waiting:
        text += f"; the board's rest while it waits takes {amount(times.predicted_waiting)} more"
    if training is None:
        return text
    emissions, cost = training.emissions, training.energy_cost
    if emissions is not None:
        cost = 1000 * emissions.emissions
    if cost is not None:
        text += f"; the run took {amount(cost)} with its pauses, by the same forecast"
    last, deadline_s = training.cap_intervals[-1:], plan.goal.deadline_s
    if training.reached and last and deadline_s is not None:
        end_s = (last[0].cap_time_s or 0.0) + training.time_s - last[0].time_s
        side = "before" if end_s <= deadline_s else "AFTER"
        text += f", and ended {seconds(abs(deadline_s - end_s))} {side} the deadline"
    return text


def carbon(grams: float) -> str:
    """Write an amount of CO2."""
    for factor, unit in ((1e3, "kg"), (1.0, "g")):
        if grams >= factor:
            return f"{_digits(grams / factor)} {unit} of CO2"
    return f"{_digits(grams * 1000)} mg of CO2"


def beside(plan: Plan, training: TrainingRecord | None = None) -> str:
    """The micro-batch's time beside an inference service, and how long training waited; empty without a service."""
    parts = []
    if plan.latency is not None and plan.micro_batch_s is not None:
        parts.append(
            f"a micro-batch takes {1e3 * plan.micro_batch_s:.3g} ms at most, for requests within "
            f"{1e3 * plan.latency.within_s:.4g} ms"
        )
    if training is not None and training.yields is not None:
        cut = f", {training.yields_cut_short} times not for all of them" if training.yields_cut_short else ""
        parts.append(f"training waited {training.yields} times for requests, {seconds(training.yielded_s)} in all{cut}")
    return f"Beside an inference service: {'; '.join(parts)}." if parts else ""


def battery(training: TrainingRecord) -> str:
    """The charge over the run, the time under the reserve, and the pauses; empty without a battery."""
    figures = training.battery
    if figures is None or not figures.charge:
        return ""
    first, last = figures.charge[0].share, figures.charge[-1].share
    kind = "simulated battery" if figures.source == "simulated" else "battery"
    text = (
        f"The {kind} of {figures.capacity_j / 3600:.4g} Wh went from {percent(first)} to {percent(last)}, never below "
        f"{percent(figures.least)}; {seconds(figures.under_reserve_s)} under the reserve of {percent(figures.reserve)}"
    )
    if training.paused_s:
        text += f"; training paused for {seconds(training.paused_s)} of {seconds(training.time_s)}"
    if training.asleep_s:
        text += f", with the board suspended for {seconds(training.asleep_s)}"
        text += "" if training.provenance.kind == "simulated" else ", which the energy leaves out"
    return text + "."


def capped_power(window_s: float | None) -> str:
    """Name of the power that a cap with this window is compared with."""
    return "peak power" if window_s is None else f"mean power over {seconds(window_s)}"


def cap_meaning(plan: Plan) -> str:
    """The place where the cap applies, its window, the averaging time of readings, the margin; empty without one."""
    if plan.cap_w is None:
        return ""
    rail = f" ({plan.sensor_rail})" if plan.sensor_rail else ""
    of = "every reading" if plan.cap_window_s is None else f"the mean over {seconds(plan.cap_window_s)} of the readings"
    if (plan.device or "").startswith("external:"):
        text = f"The cap of {cap(plan.cap_w)} applies at your meter, to {of.replace('the readings', 'its readings')}."
    elif plan.supply_cap_w is None:
        text = f"The cap of {cap(plan.cap_w)} applies at the module, to {of} of its power sensor{rail}."
    else:
        supply = plan.supply
        law = "" if supply is None else f": supply power is (module + {supply.other_w:g} W) / {supply.efficiency:g}"
        text = (
            f"The cap of {cap(plan.supply_cap_w)} applies at the supply. That is {watts(plan.cap_w)} at the module, "
            f"for {of} of its power sensor{rail}{law}."
        )
    margin = f"a margin of {plan.margin_w:g} W is kept below the cap" if plan.margin_w else "no margin is kept"
    if plan.cap_window_s is not None:
        return f"{text} Shorter peaks may exceed it; {margin}."
    window_s = plan.sensor_window_s
    if window_s is None:
        return f"{text} The averaging time of a reading is unknown; {margin} for peaks."
    if window_s == 0:
        return f"{text} Readings are instantaneous; {margin}."
    return (
        f"{text} Each reading is an average over {seconds(window_s)}, so shorter peaks can exceed the cap unseen; "
        f"{margin} for them."
    )


def confidence(plan: Plan) -> str:
    """Confidence that the choice is best, what it costs on average if not, and the chance that it exceeds the cap on
    this board, if the records have them."""
    parts = []
    if plan.p_best is not None and plan.expected_loss is not None:
        best = "fastest" if plan.goal.aim == "time" else "best"
        text = f"confidence: {_probability(plan.p_best)} that {plan.batch_size} is the {best} batch size"
        if plan.p_best <= SURE:
            text += f"; on average over what is unknown, it costs {percent(plan.expected_loss)} more than the {best}"
        if plan.expected_loss > MATTERS:
            text += " (more proxy runs would tell: --seeds)"
        parts.append(text)
    if plan.p_over_cap is not None:
        parts.append(f"on this board, the chance of exceeding the cap is {_probability(plan.p_over_cap)}")
    return "; ".join(parts)


SURE = 0.99
"""Probability from which on the cost of a wrong choice is not worth a word."""

MATTERS = 0.05
"""Expected loss from which on more proxy runs are advised."""


LEAST = {
    "time": "time",
    "energy": "energy",
    "energy-above-rest": "energy above rest",
    "edp": "energy times time",
    "cost": "price",
}
"""Name of the quantity that is least at the point that is chosen for a goal."""

NEAR = 0.04
"""Share of the least energy by which the fastest point counts as near it."""

LITTLE_SLOWER = 0.05
"""Slowdown that is offered first for the energy that it saves."""


def bound(goal: Goal) -> str:
    """Write the bound of a goal: "at most 5 % slower than the fastest point"; empty without one."""
    if goal.max_slowdown is not None:
        return f"at most {percent(goal.max_slowdown)} slower than the fastest point"
    if goal.deadline_s is not None:
        return f"within {seconds(goal.deadline_s)}"
    return "" if goal.energy_j is None else f"within {joules(goal.energy_j)}"


def goal(plan: Plan) -> str:
    """The goal that the point was chosen for, what it costs beside the fastest point, and what an energy budget is
    enough for; empty for the fastest point."""
    if plan.goal.is_time:
        return ""
    text = ", ".join(filter(None, (f"chosen for the least {LEAST[plan.goal.aim]}", bound(plan.goal))))
    if plan.predicted_cost is not None:
        text += f": {plan.predicted_cost:.3g} in the currency of the prices"
    here = next((point for point in plan.front if point.point == plan.point), None)
    if here is not None and here.slower > 0:
        text += f"; {percent(here.slower)} slower than the fastest point, with {percent(here.saves)} less energy"
    if plan.reached_share is not None:
        text += f"; that energy is enough for {percent(plan.reached_share)} of the samples to the target"
    return text


def trade_off(front: Sequence[FrontPoint], chosen: OperatingPoint) -> str:
    """The saving of a slower point, or that the fastest point is near the least energy; empty if that is unknown, and
    where the slower point is the chosen one, of which ``goal`` says it."""
    if not front:
        return ""
    least = front[-1]
    above = 1 / (1 - least.saves) - 1
    if above <= NEAR:
        fastest = "of the points measured under the cap, the fastest"
        if above == 0:
            return f"{fastest} takes the least energy"
        return f"{fastest} is within {percent(above)} of the least energy, which is {percent(least.slower)} slower"
    little = [point for point in front if point.slower <= LITTLE_SLOWER]
    offered = little[-1] if little[-1].saves > little[-1].slower else least
    if offered.point == chosen:
        return ""
    return f"{percent(offered.slower)} slower would save {percent(offered.saves)} of the energy ({offered.point})"


NO_OWN = "no batch size of yours to compare with: the workload has no `batch_size`"
"""Remark on a plan whose batch size may be slower than that of today, since that is unknown."""


def own_batch_size(plan: Plan) -> str:
    """The reason for the user's own batch size or another one, and when the runs behind it are paid back."""
    own, rival = plan.own_batch_size, plan.rival_batch_size
    if own is None:
        is_choice = len({candidate.batch_size for candidate in plan.candidates}) > 1
        return NO_OWN if is_choice else ""
    if rival is None:
        return ""  # a note says why
    better = "faster" if plan.goal.aim == "time" else "better"
    if plan.p_faster is None or plan.expected_gain is None:
        return f"batch size {own} is yours; no other one is expected to be {better}"
    faster = f"{better} than yours, {own}, with a probability of {_probability(plan.p_faster)}"
    if plan.batch_size != rival:
        return f"your batch size is kept: {rival} is {faster}, and 90 % are required"
    least = LEAST[plan.goal.aim]
    text = f"batch size {rival} is {faster}; it is expected to save {percent(plan.expected_gain)} of the {least}"
    if plan.pays_after_runs is None:
        return text
    return f"{text}, which pays for the proxy runs after {_training_runs(plan.pays_after_runs)}"


def _training_runs(number: float) -> str:
    whole = math.ceil(number)
    return "1 training run" if whole == 1 else f"{whole:,} training runs"


def _probability(share: float) -> str:
    """Write a probability, none of which is known to better than 1 %."""
    return "under 1 %" if share < 0.01 else "over 99 %" if share > 0.99 else f"{100 * share:.0f} %"


def robustness(plan: Plan) -> str:
    """The pick on boards within the tolerances of a simulated board's file; empty if it was not evaluated."""
    result = plan.robustness
    if result is None:
        return ""
    loss = "" if result.mean_loss is None else f" and costs {percent(result.mean_loss)} on average"
    unkept = f" (on {result.unkept} of these nothing stays under the cap)" if result.unkept else ""
    return (
        f"other boards of this type ({result.draws} drawn from the uncertainty in the board's file): {result.over_cap} "
        f"would exceed the cap at this setting{unkept}; batch size {plan.batch_size} stays the best on "
        f"{result.best_batch_size}{loss}. Profile your own board"
    )


def strain(cell: ProfileCell) -> str:
    """Throttling, over-current events and swapping during a measured cell; empty without any."""
    parts = []
    if cell.throttled:
        parts.append(f"throttled by {', '.join(cell.throttled)}")
    if cell.over_current:
        parts.append(f"{cell.over_current} over-current {'events' if cell.over_current > 1 else 'event'}")
    if cell.swapped_bytes:
        parts.append(f"{cell.swapped_bytes / 2**20:.1f} MiB swapped")
    return ", ".join(parts)


def remark(row: ComparisonRow | Baseline) -> str:
    """The reason for a rule without a speed-up; empty if it has one."""
    if row.speed_up is not None:
        return ""
    if row.why_not is None and isinstance(row, ComparisonRow) and row.censored:
        return f"{row.censored} of {row.runs} runs did not reach the target"
    return row.why_not or ""


def batch(point: OperatingPoint) -> str:
    """The batch size, and the micro-batch size if it is another: "32" or "32 in 8s"."""
    size, micro = point.shape
    return f"{size}" if micro == size else f"{size} in {micro}s"


def setting(point: OperatingPoint) -> str:
    """The knobs of a point, such as "768 MHz"; "-" if none is set."""
    return str(point.knobs) or "-"


KNOBS = {
    "clock_mhz": "clock (MHz)",
    "memory_clock_mhz": "memory clock (MHz)",
    "cpu_clock_mhz": "CPU clock (MHz)",
    "cpu_cores": "CPU cores",
    "power_limit_w": "power limit (W)",
}
"""Title of each knob's axis."""


def knob_titles(knobs: Knobs) -> str:
    """The title of an axis over these knobs: "clock (MHz)", "clock (MHz) / memory clock (MHz)"."""
    return " / ".join(KNOBS[name] for name in knobs)


def knob_values(knobs: Knobs) -> str:
    """Label on an axis of settings: "768", "768 / 1600"."""
    return " / ".join(f"{value:g}" for value in knobs.values())


def chosen(plan: Plan) -> str:
    """The chosen point, with the training algorithm unless it is plain backprop, and its memory if that is limited."""
    how = "" if plan.algorithm == "backprop" and not plan.algorithms else f"{plan.algorithm}, "
    limit = plan.memory_limit_bytes
    needs = "" if limit is None else f", {memory(plan.predicted_memory_bytes)} of the {memory(limit)} allowed"
    return f"{how}{plan.point}{needs}"


def origin(**kinds: str | None) -> str:
    """Write the origin of figures, so that nothing simulated passes for measured.

    One word if all parts agree ("simulated"), otherwise part by part: "step times simulated, samples measured". The
    keywords name the parts, with underscores for spaces; their values are ``Provenance.kind``.
    """
    distinct = set(kinds.values())
    if len(distinct) <= 1:
        return next(iter(distinct), None) or UNKNOWN
    return ", ".join(f"{part.replace('_', ' ')} {kind or 'of unknown origin'}" for part, kind in kinds.items())


def grouped(kinds: Mapping[str, str | None]) -> str:
    """Write the origin of records: "simulated: profile, plan; measured: efficiency", or one word if all agree."""
    groups: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        groups.setdefault(kind or UNKNOWN, []).append(name)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in groups.items())


def gain(speed_up: float) -> str:
    """Write a speed-up: "1.83 times as fast as" or "as fast as"."""
    if abs(speed_up - 1) < 0.005:
        return "as fast as"
    return f"{speed_up:.2f} times as fast as"


def profiling_cost(cost: ProfileCost, plan: Plan | None, training: TrainingRecord | None) -> str:
    """The cost of profiling, its share of the training run, and when it pays for itself, in one to three sentences.

    Share and pay-back are the training record's, if there is one; otherwise they follow from the plan's predictions,
    and are called predicted.
    """
    text = f"Profiling took {seconds(cost.time_s)} and {joules(cost.energy_j)} on the device in {cost.probes} probes"
    if cost.cap_w is not None:
        text += f", {seconds(cost.above_cap_s) if cost.above_cap_s else 'none'} of it above the cap of {cost.cap_w:g} W"
    text += "."
    share = training.profiling_share if training else None
    if share is not None:
        text += f" That is {multiple(share)} the time of this training run."
    elif training is None and plan is not None and plan.run_s:
        text += f" That is {multiple(cost.time_s / plan.run_s)} the predicted time of a training run."
    return text + _payback(cost, plan, training)


def left_out(training: TrainingRecord) -> str:
    """The parts of the run that time and energy exclude; empty if they include everything."""
    missing = (training.provenance.model_extra or {}).get("left_out")
    return f"Time and energy exclude {missing}." if missing else ""


LEAST_EVALUATIONS = 9
"""Evaluations without which nothing is said of a curve's shape: its end and the place before are means of three."""


def flat_curve(training: TrainingRecord) -> str:
    """The remark that the learning curve flattened short of the target; empty if it did not, or that is not known.

    It did if going on like in the last third of the samples would take more than two thirds of them again.
    """
    metrics = [one.metric for one in training.evaluations]
    if training.reached or training.target is None or training.ended != "budget used up":
        return ""
    before = sum(one.samples <= 2 / 3 * training.samples for one in training.evaluations)
    if len(metrics) < LEAST_EVALUATIONS or before < 3:
        return ""
    end = sum(metrics[-3:]) / 3
    missing = training.target - end
    gained = (end - sum(metrics[before - 3 : before]) / 3) * (1 if missing > 0 else -1)
    if 2 * gained >= abs(missing):
        return ""
    return (
        f"the last third of the samples improved the {metric(training.metric)} by {max(gained, 0.0):.2g} of the "
        f"{abs(missing):.2g} that were missing: the curve is flat. A learning rate that decays usually reaches such a "
        "target in 10 to 40 % fewer samples"
    )


def _payback(cost: ProfileCost, plan: Plan | None, training: TrainingRecord | None) -> str:
    plan = plan or (training.plan if training else None)
    rival = baseline(plan) if plan else None
    after = training.pays_after_trainings if training else None
    verb = "pays"
    if training is not None and not training.reached:
        return " Whether it pays for itself is unknown, since the target was not reached."
    if after is None:
        if plan is None or plan.predicted_s is None or rival is None or rival.predicted_s is None:
            return ""
        if not rival.feasible:
            return ""  # nothing to compare with
        saved_s = rival.predicted_s - plan.predicted_s
        if saved_s <= 0:
            return f" It does not pay for itself: no time is predicted to be saved over {FIXED_CLOCK} under this cap."
        after, verb = cost.time_s / saved_s, "is predicted to pay"
    runs = "within one run" if after <= 1 else f"after {math.ceil(after)} runs like this"
    return f" It {verb} for itself {runs}, compared with {FIXED_CLOCK}."


def baseline(plan: Plan, rule: str = FIXED_CLOCK_RULE) -> Baseline | None:
    """The plan's row of this rule; None if the plan has none."""
    return next((row for row in plan.baselines if row.rule == rule), None)


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def metric(name: str | None) -> str:
    """Write the metric as the title of an axis; "metric" for None."""
    return "metric" if name is None else name.replace("_", " ")


def no_pick(gain: CapGain) -> str:
    """The reason why there is no pick under a cap."""
    return "no proxy run reached the target" if gain.feasible else "no measured point fits"
