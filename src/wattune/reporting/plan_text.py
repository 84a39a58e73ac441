"""Sentences about a plan, in reports and on the command line."""

from __future__ import annotations

from collections.abc import Sequence

from wattune.goal import Goal
from wattune.point import OperatingPoint
from wattune.records import Baseline, FrontPoint, Plan
from wattune.reporting.phrases import (
    FIXED_CLOCK_RULE,
    cap,
    joules,
    percent,
    seconds,
    under,
    watts,
)


def under_cap_of(plan: Plan) -> str:
    """Write the cap of a plan in a sentence, also one that changes."""
    if not plan.caps:
        return under(plan.cap_w, plan.supply_cap_w)
    side = " at the supply" if plan.supply_cap_w is not None else ""
    low_w, high_w = plan.caps[0].asked_w, plan.caps[-1].asked_w
    return f"under a cap that changes, {low_w:g} to {high_w:g} W{side}"


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
    if plan.goal.aim == "energy-above-rest" and plan.predicted_above_rest_j is not None:
        text += f": {joules(plan.predicted_above_rest_j)}"
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


NO_OWN = "no batch size of yours to compare with: the workload has no `batch_size`, or only two runs were made"
"""Remark on a plan whose batch size may be slower than that of today, since that is unknown."""


def own_batch_size(plan: Plan) -> str:
    """The reason for the user's own batch size or another one."""
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
    return f"batch size {rival} is {faster}; it is expected to save {percent(plan.expected_gain)} of the {least}"


def _probability(share: float) -> str:
    """Write a probability, none of which is known to better than 1 %."""
    return "under 1 %" if share < 0.01 else "over 99 %" if share > 0.99 else f"{100 * share:.0f} %"


def baseline(plan: Plan, rule: str = FIXED_CLOCK_RULE) -> Baseline | None:
    """The plan's row of this rule; None if the plan has none."""
    return next((row for row in plan.baselines if row.rule == rule), None)


def evaluations(plan: Plan) -> str:
    """The share of evaluations and checkpoints in the predicted time. Empty if they are not in the prediction."""
    planned, run_s = plan.evaluations, plan.run_s
    if planned is None or not run_s:
        return ""
    return f"{planned.number} evaluations and checkpoints take {percent(planned.time_s / run_s)} of the predicted time"
