"""Sentences about a training run, and about the time and the power that it had."""

from __future__ import annotations

import math

from wattune.records import Plan, ProfileCost, TrainingRecord
from wattune.reporting.phrases import (
    FIXED_CLOCK,
    carbon,
    count,
    joules,
    multiple,
    percent,
    seconds,
    setting,
)
from wattune.reporting.plan_text import baseline


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
    parts = [f"the batch size stays, the setting follows the cap: {ends}"]
    if paused:
        parts.append(f"nothing can run in {percent(paused)} of the time of the caps")
    if plan.of_clairvoyant is not None and plan.over_constant is not None:
        parts.append(
            f"this is {percent(plan.of_clairvoyant)} of the progress of the fastest point under each cap, and "
            f"{plan.over_constant:.2f} times that of the best single point"
        )
    if training is not None and training.paused_s:
        parts.append(f"training paused for {seconds(training.paused_s)} of {seconds(training.time_s)}")
    return "; ".join(parts)


def schedule(plan: Plan, training: TrainingRecord | None = None) -> str:
    """The times of a plan's schedule, what they save, and what the run took; empty without one."""
    times = plan.schedule
    if times is None:
        return ""
    is_carbon = times.unit == "gco2_per_kwh"
    paused_s = times.finish_s - (plan.predicted_s or 0.0)
    stretches = f"{len(times.times)} times" if len(times.times) > 1 else "one time"
    name = "carbon intensity" if is_carbon else "price"
    text = f"trains at {stretches} of low {name}, and ends after {seconds(times.finish_s)}"
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


def ending(training: TrainingRecord) -> str:
    """The end of a run, and the highest temperature if that had a limit."""
    target, last = training.target, training.evaluations[-1].metric if training.evaluations else None
    text = "target reached" if training.reached else "TARGET NOT REACHED"
    if target is not None:
        text += f" ({last:.4g}, target {target:.4g})" if last is not None else f" (target {target:.4g})"
    text += f" after {count(training.samples)} samples"
    if not training.reached:
        text += "".join(f"{mark} {why}" for mark, why in ((":", training.ended), (",", training.reason)) if why)
    if training.max_temp_c is not None:
        highest = "-" if training.temperature_max_c is None else f"{training.temperature_max_c:.1f}"
        text += f"; highest temperature {highest} °C, limit {training.max_temp_c:g} °C"
    return text


def too_short(training: TrainingRecord) -> str:
    """Say that a run was shorter than the sensor's window, whose readings then show the time before; empty if not."""
    window_s = training.plan.sensor_window_s or 0.0
    if training.readings is None or training.time_s >= window_s:
        return ""
    shown = f"{seconds(training.time_s)}, and each reading is the mean of {seconds(window_s)}"
    return f"energy and power are mostly of the time before: the run took {shown}"


def left_out(training: TrainingRecord) -> str:
    """The parts of the run that time and energy exclude; empty if they include everything."""
    missing = (training.provenance.model_extra or {}).get("left_out")
    return f"time and energy exclude {missing}" if missing else ""


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
