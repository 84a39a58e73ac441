"""Speed-up from choosing batch size and clock together, over a range of caps, including those without a gain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from wattune.records import CapGain, Plan
from wattune.reporting import phrases
from wattune.reporting.charts import axis, batch_colour, dots, line, rule, spec
from wattune.reporting.page import Figure, Table, plain


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
        axis("speed-up (1 = no gain)", domain=[0.2, 1]),
        yaxis2=axis("", domain=[0, 0.12], type="category", showgrid=False),
        showlegend=True,
        shapes=shapes,
        annotations=annotations,
        margin={"l": 56, "r": 16, "t": 64, "b": 44},
        hovermode="x",
    )
    figure["layout"]["legend"]["y"] = 1.07
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
    head = ("cap", "batch size", "setting", "over largest batch, fixed clock", "over best batch, fixed clock", "")
    numeric = (True, True, True, True, True, False)
    note = "Marked: the chosen point."
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
