"""Charts and tables of every rule's pick, at one cap and over a range of caps, including those without a gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from wattune.records import CapGain, Comparison, ComparisonRow, FrontPoint, Plan
from wattune.reporting import phrases
from wattune.reporting.charts import Axis, Bars, Chart, Dots, Line, Panel, Rule, Values, batch_colour
from wattune.reporting.page import Figure, Table
from wattune.reporting.text import algorithms, compared, predicted, spread


def bars(comparison: Comparison) -> Figure | None:
    """Mean time and energy of every rule with the standard deviation over seeds. None if no rule has a time."""
    rows = [row for row in reversed(comparison.rows) if row.time_s is not None]
    if not rows:
        return None
    times = _bars(rows, [row.time_s for row in rows], [row.time_std_s for row in rows], phrases.seconds)
    energies = _bars(rows, [row.energy_j for row in rows], [row.energy_std_j for row in rows], phrases.joules)
    rules = Axis(categories=[row.rule for row in rows])
    panels = [
        Panel([times], Axis("time to target (s)", from_zero=True), rules, span=(0, 0.47)),
        Panel([energies], Axis("energy (J)", from_zero=True), span=(0.53, 1)),
    ]
    return Figure(
        "comparison",
        "Time and energy to target",
        phrases.origin(comparison=comparison.provenance.kind),
        Chart(panels),
        note=f"Mean and standard deviation over {_seeds(comparison)}. {comparison.method}",
        height=80 + 44 * len(rows),
        wide=True,
    )


def comparison_rows(comparison: Comparison) -> Table:
    """The comparison as a table, including rules without a result."""
    rows = compared(comparison)
    head = ("rule", "batch size", "setting", "time", "energy", "peak power", "time vs. wattune", "above fastest", "")
    numeric = (False, True, True, True, True, True, True, True, False)
    marked = frozenset(i for i, row in enumerate(comparison.rows) if row.rule == phrases.OWN_RULE)
    note = "Time vs. wattune: the time of the rule divided by that of wattune's pick, so above 1 wattune is faster."
    origin = phrases.origin(comparison=comparison.provenance.kind)
    return Table("All rules", origin, head, numeric, rows, marked, shown=20, note=note)


def baseline_rows(plan: Plan, origin: str) -> Table:
    """The picks of the other rules, with the plan's predictions."""
    plan_row = (
        phrases.OWN_RULE,
        phrases.batch(plan.point),
        phrases.setting(plan.point),
        phrases.seconds(plan.predicted_s),
        phrases.joules(plan.predicted_j),
        phrases.watts(plan.predicted_peak_w),
        phrases.times(1.0),
        "chosen",
    )
    rows = [
        plan_row,
        *predicted(plan),
    ]
    head = ("rule", "batch size", "setting", "time", "energy", "peak power", "time vs. wattune", "")
    numeric = (False, True, True, True, True, True, True, False)
    return Table("Other rules under the same cap", origin, head, numeric, rows, frozenset({0}), shown=20)


def algorithm_rows(plan: Plan, origin: str) -> Table:
    """Each training algorithm's best point under the cap and the memory limit, or why it has none."""
    head = ("algorithm", "batch size", "setting", "memory", "samples", "time", "energy", "time vs. chosen", "")
    numeric = (False, True, True, True, True, True, True, True, False)
    rows = algorithms(plan)
    marked = frozenset(i for i, row in enumerate(plan.algorithms) if row.algorithm == plan.algorithm)
    limit = (
        "" if plan.memory_limit_bytes is None else f" The memory limit is {phrases.memory(plan.memory_limit_bytes)}."
    )
    note = f"Samples are relative to backprop at its reference batch size.{limit}"
    return Table("Training algorithms under the same limits", origin, head, numeric, rows, marked, shown=20, note=note)


SPAN = 0.05
"""Share of time or energy that a front has to span to be worth a figure."""


def front(plan: Plan, origin: str) -> Figure | None:
    """Time and energy of the points of which no other is both faster and takes less energy.

    None if they hardly differ, see ``SPAN``.
    """
    points = plan.front
    if not points or max(points[-1].slower, points[-1].saves) <= SPAN:
        return None

    def dots(points: Sequence[FrontPoint], name: str, colour: str, diameter: float) -> Dots:
        hovers = [
            f"{one.point}\n{phrases.percent(one.slower)} slower, saves {phrases.percent(one.saves)}" for one in points
        ]
        return Dots(*_percentages(points), colour, name, diameter, hovers=hovers)

    slower, energy = _percentages(points)
    panel = Panel(
        [
            Line(slower, energy, "var(--second)"),
            dots([one for one in points if one.point != plan.point], "other points", "var(--second)", 9),
            dots([one for one in points if one.point == plan.point], "chosen", "var(--accent)", 13),
        ],
        Axis("slower than the fastest point (%)", range=(-0.04 * slower[-1], 1.04 * slower[-1])),
        Axis("energy (% of the fastest point's)"),
    )
    note = "Energy of the whole board, from the profile's mean power. Green: chosen."
    return Figure("front", "Time against energy", origin, Chart([panel]), note=note)


def _percentages(points: Sequence[FrontPoint]) -> tuple[list[float], list[float]]:
    """By how much each point is slower than the fastest, and its energy relative to that of the fastest."""
    return [100 * one.slower for one in points], [100 * (1 - one.saves) for one in points]


def candidate_rows(plan: Plan, origin: str) -> Table:
    """Every candidate, the fastest first, and why it was not chosen."""
    candidates = sorted(plan.candidates, key=lambda c: (not c.feasible, c.relative_time or float("inf"), c.batch_size))
    marked = frozenset(i for i, candidate in enumerate(candidates) if candidate.point == plan.point)
    rows = [
        (
            phrases.batch(candidate.point),
            phrases.setting(candidate.point),
            phrases.seconds(candidate.predicted_s),
            phrases.joules(candidate.predicted_j),
            phrases.watts(candidate.predicted_peak_w),
            "yes" if candidate.feasible else "no",
            candidate.why_not or "chosen",
        )
        for candidate in candidates
    ]
    head = ("batch size", "setting", "time", "energy", "peak power", "feasible", "remark")
    numeric = (True, True, True, True, True, False, False)
    return Table("All candidates", origin, head, numeric, rows, marked, shown=10)


def _bars(
    rows: Sequence[ComparisonRow], means: Values, deviations: Values, unit: Callable[[float | None], str]
) -> Bars:
    return Bars(
        means,
        colours=["var(--accent)" if row.rule == phrases.OWN_RULE else "var(--quiet)" for row in rows],
        hovers=[
            f"{row.rule}\n{spread(unit, mean, deviation)}"
            for row, mean, deviation in zip(rows, means, deviations, strict=True)
        ],
        errors=deviations,
        horizontal=True,
    )


def _seeds(comparison: Comparison) -> str:
    return "one seed" if len(comparison.seeds) == 1 else f"{len(comparison.seeds)} seeds"


def gain_over_caps(plan: Plan, origin: str, *, one_cap: bool) -> Figure:
    """Speed-up over the largest and the best batch at the fixed clock, cap by cap, with the pick under each cap.

    ``one_cap``: the profile was made for one cap, so it has few of the points that matter under other caps.
    """
    gains = sorted(plan.gain_over_caps, key=lambda gain: gain.cap_w)
    caps = [gain.cap_w for gain in gains]
    picked = {gain.batch_size for gain in gains if gain.batch_size is not None}
    # The ramp runs over all batch sizes, so that each has the colour of its learning curves.
    sizes = sorted(picked | {candidate.batch_size for candidate in plan.candidates if candidate.relative_time})
    marks: list[Line | Dots] = []
    for name, colour, values in (
        ("over best batch, fixed clock", "var(--second)", [gain.over_best_batch for gain in gains]),
        ("over largest batch, fixed clock", "var(--accent)", [gain.over_largest_batch for gain in gains]),
    ):
        hovers = ["" if value is None else f"{value:.2f}x" for value in values]
        if any(hovers):
            marks += [Line(caps, values, colour, name), Dots(caps, values, colour, size=6, hovers=hovers)]
    rules = [Rule(1.0, quiet=True)]
    if plan.cap_w is not None:
        rules.append(Rule(plan.cap_w, f"cap {phrases.cap(plan.cap_w)}", vertical=True))
    caps_axis, speed_up = Axis("power cap (W)", grid=False), Axis("times as fast (1 = no gain)")
    picks = [_picks(gains, size, batch_colour(sizes, size)) for size in sorted(picked)]
    panels = [
        Panel(marks, caps_axis, speed_up, rules, span=(0.2, 1)),
        Panel(picks, y=Axis(categories=["pick"]), span=(0, 0.12)),
    ]
    return Figure(
        "gain-over-caps",
        "Speed-up over a range of caps",
        origin,
        Chart(panels, stacked=True, legend=True),
        note=_note(gains, one_cap),
        height=440,
        wide=True,
    )


def cap_rows(plan: Plan, origin: str) -> Table:
    """Table of the pick under every cap."""
    rows, marked = [], set()
    for index, gain in enumerate(sorted(plan.gain_over_caps, key=lambda gain: gain.cap_w)):
        where = gain.point
        if where is None or not gain.feasible:
            rows.append((phrases.watts(gain.cap_w), "-", "-", "-", "-", phrases.no_pick(gain)))
            continue
        over = (phrases.times(gain.over_largest_batch), phrases.times(gain.over_best_batch))
        rows.append((phrases.watts(gain.cap_w), phrases.batch(where), phrases.setting(where), *over, ""))
        if where == plan.point:
            marked.add(index)
    head = ("cap", "batch size", "setting", "times as fast as the largest batch", "times as fast as the best batch", "")
    numeric = (True, True, True, True, True, False)
    note = "Both batches at the fixed clock. Marked: the chosen point."
    return Table("The pick under every cap", origin, head, numeric, rows, frozenset(marked), shown=0, note=note)


def _picks(gains: Sequence[CapGain], batch_size: int, colour: str) -> Dots:
    """A row of squares at the caps under which this batch size was picked."""
    own = [gain for gain in gains if gain.batch_size == batch_size]
    x, y, hovers = [gain.cap_w for gain in own], [0.0 for _ in own], [str(gain.point) for gain in own]
    return Dots(x, y, colour, f"batch size {batch_size}", size=12, symbol="square", hovers=hovers)


def _note(gains: Sequence[CapGain], one_cap: bool) -> str:
    feasible = [gain for gain in gains if gain.feasible]
    notes = []
    if one_cap:
        notes.append(
            "The profile was made for one cap and omits points above it, so other caps may have better points."
        )
    if len(feasible) < len(gains):
        lowest = (
            f"the lowest cap with a feasible point is {feasible[0].cap_w:.2f} W" if feasible else "none is feasible"
        )
        notes.append(f"Not every cap is feasible: {lowest}.")
    compared = [gain for gain in feasible if gain.over_largest_batch is not None]
    if not compared:
        notes.append("The fixed clock is unknown, so there is no comparison.")
        return " ".join(notes)
    more = sum((gain.over_largest_batch or 0) >= 1.005 for gain in compared)
    where = f"all {len(compared)}" if more == len(compared) else f"{more} of {len(compared)}"
    notes.append(f"Faster than the largest batch at the fixed clock under {where} caps.")
    points = [gain.point for gain in feasible]
    changes = [where for where, _ in groupby(points)]
    notes.append(f"{len({str(where) for where in changes})} different picks; squares show their batch sizes.")
    if len(compared) < len(feasible):
        notes.append("Gaps: no clock is under that cap for every reference workload, so the rule has no pick.")
    return " ".join(notes)
