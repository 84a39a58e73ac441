"""Charts and tables of every rule's pick, at one cap and over a range of caps, including those without a gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from wattune.records import CapGain, Comparison, ComparisonRow, Plan
from wattune.reporting import phrases
from wattune.reporting.axes import Spec
from wattune.reporting.charts import axis, batch_colour, dots, line, rule, spec
from wattune.reporting.page import Figure, Table, plain
from wattune.reporting.text import algorithms, compared, predicted, spread


def bars(comparison: Comparison) -> Figure | None:
    """Mean time and energy of every rule with the standard deviation over seeds. None if no rule has a time."""
    rows = [row for row in reversed(comparison.rows) if row.time_s is not None]
    if not rows:
        return None
    names = [plain(row.rule) for row in rows]
    times = _bars(names, rows, [row.time_s for row in rows], [row.time_std_s for row in rows], phrases.seconds)
    energies = _bars(names, rows, [row.energy_j for row in rows], [row.energy_std_j for row in rows], phrases.joules)
    figure = spec(
        [times, {**energies, "xaxis": "x2"}],
        axis("time to target (s)", domain=[0, 0.47], rangemode="tozero"),
        axis("", type="category", showgrid=False),
        xaxis2=axis("energy (J)", domain=[0.53, 1], rangemode="tozero"),
        bargap=0.35,
    )
    return Figure(
        "comparison",
        "Time and energy to target",
        phrases.origin(comparison=comparison.provenance.kind),
        figure,
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
    slower, energy = [100 * point.slower for point in points], [100 * (1 - point.saves) for point in points]
    texts = [
        f"{plain(str(point.point))}<br>{phrases.percent(point.slower)} slower, saves {phrases.percent(point.saves)}"
        for point in points
    ]
    marks = [
        dots(
            [slower[place] for place in places],
            [energy[place] for place in places],
            name,
            colour,
            marker={"size": size},
            text=[texts[place] for place in places],
            hovertemplate="%{text}<extra></extra>",
        )
        for name, colour, size, places in (
            ("other points", "var(--second)", 9, [i for i, one in enumerate(points) if one.point != plan.point]),
            ("chosen", "var(--accent)", 13, [i for i, one in enumerate(points) if one.point == plan.point]),
        )
    ]
    figure = spec(
        [line(slower, energy, "", "var(--second)", hoverinfo="skip"), *marks],
        axis("slower than the fastest point (%)", range=[-0.04 * slower[-1], 1.04 * slower[-1]]),
        axis("energy (% of the fastest point's)"),
    )
    note = "Energy of the whole board, from the profile's mean power. Green: chosen."
    return Figure("front", "Time against energy", origin, figure, note=note)


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
    names: list[str],
    rows: list[ComparisonRow],
    means: list[float | None],
    deviations: list[float | None],
    unit: Callable[[float | None], str],
) -> Spec:
    return {
        "type": "bar",
        "orientation": "h",
        "x": means,
        "y": names,
        "error_x": {
            "type": "data",
            "array": deviations,
        },
        "marker": {"color": ["var(--accent)" if row.rule == phrases.OWN_RULE else "var(--quiet)" for row in rows]},
        "hovertext": [
            f"{name}<br>{spread(unit, mean, deviation)}"
            for name, mean, deviation in zip(names, means, deviations, strict=True)
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }


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
    data = [
        line(caps, [gain.over_best_batch for gain in gains], "over best batch, fixed clock", "var(--second)"),
        line(caps, [gain.over_largest_batch for gain in gains], "over largest batch, fixed clock", "var(--accent)"),
    ]
    for trace in data:
        trace.update(mode="lines+markers", marker={"size": 6}, hovertemplate="%{y:.2f}x<extra></extra>")
    for size in sorted(picked):
        own = [gain for gain in gains if gain.batch_size == size]
        strip = dots(
            [gain.cap_w for gain in own],
            ["pick" for _ in own],
            f"batch size {size}",
            batch_colour(sizes, size),
            marker={"symbol": "square", "size": 12},
            text=[str(size) for _ in own],
            hovertext=[_hover(gain) for gain in own],
            hovertemplate="%{hovertext}<extra></extra>",
            yaxis="y2",
        )
        data.append(strip)
    even, _ = rule(1.0, "", colour="var(--quiet)")
    shapes, annotations = [even], []
    if plan.cap_w is not None:
        shape, label = rule(plan.cap_w, f"cap {phrases.cap(plan.cap_w)}", vertical=True)
        shape["yref"], shape["y0"], shape["y1"] = "paper", 0, 1
        shapes.append(shape)
        annotations.append(label)
    figure = spec(
        data,
        axis("power cap (W)", showgrid=False, anchor="y2"),
        axis("times as fast (1 = no gain)", domain=[0.2, 1]),
        yaxis2=axis("", domain=[0, 0.12], type="category", showgrid=False),
        showlegend=True,
        shapes=shapes,
        annotations=annotations,
    )
    return Figure(
        "gain-over-caps",
        "Speed-up over a range of caps",
        origin,
        figure,
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


def _hover(gain: CapGain) -> str:
    where = gain.point
    return plain(str(where)) if where else ""


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
