"""What choosing both together gains over the whole range of caps, also where it gains nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from wattune.records import CapGain, Plan
from wattune.reporting import words
from wattune.reporting.charts import axis, batch_colour, dots, line, rule, spec
from wattune.reporting.page import Figure, Table, plain


def gain_over_caps(plan: Plan, origin: str, *, one_cap: bool) -> Figure:
    """Speed-up over the largest and the best batch at the fixed clock, cap by cap, with the pick below each cap.

    ``one_cap``: the profile was made for one cap, so it holds little of what other caps would choose between.
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
            hovertext=[_said(gain) for gain in own],
            hovertemplate="%{hovertext}<extra></extra>",
            yaxis="y2",
        )
        data.append(strip)
    even, _ = rule(1.0, "", colour="var(--quiet)")
    shapes, annotations = [even], []
    if plan.cap_w is not None:
        shape, label = rule(plan.cap_w, f"cap {words.cap(plan.cap_w)}", vertical=True)
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
        "Speed-up over the range of caps",
        origin,
        figure,
        note=_note(gains, one_cap),
        height=440,
        wide=True,
    )


def cap_rows(plan: Plan, origin: str) -> Table:
    """The same as a table: the pick under every cap."""
    rows, marked = [], set()
    for index, gain in enumerate(sorted(plan.gain_over_caps, key=lambda gain: gain.cap_w)):
        where = words.place(gain)
        if where is None or not gain.feasible:
            rows.append((words.watts(gain.cap_w), "-", "-", "-", "-", words.no_pick(gain)))
            continue
        over = (words.times(gain.over_largest_batch), words.times(gain.over_best_batch))
        rows.append((words.watts(gain.cap_w), words.batch(where), words.setting(where), *over, ""))
        if where == plan.point:
            marked.add(index)
    head = ("cap", "batch size", "setting", "over largest batch, fixed clock", "over best batch, fixed clock", "")
    numeric = (True, True, True, True, True, False)
    note = "Marked: the same point as chosen here."
    return Table("The pick under every cap", origin, head, numeric, rows, frozenset(marked), shown=0, note=note)


def _said(gain: CapGain) -> str:
    where = words.place(gain)
    return plain(words.point(where)) if where else ""


def _note(gains: Sequence[CapGain], one_cap: bool) -> str:
    feasible = [gain for gain in gains if gain.feasible]
    notes = []
    if one_cap:
        notes.append(
            "The profile was made for one cap and left out what is above it, so better points may exist under others."
        )
    if len(feasible) < len(gains):
        lowest = (
            f"{feasible[0].cap_w:.2f} W is the lowest cap here that a measured point keeps" if feasible else "none does"
        )
        notes.append(f"Not every cap can be kept by a measured point: {lowest}.")
    known = [gain for gain in feasible if gain.over_largest_batch is not None]
    if not known:
        notes.append("What the fixed clock would be is not known, so there is nothing to compare with.")
        return " ".join(notes)
    more = sum((gain.over_largest_batch or 0) >= 1.005 for gain in known)
    where = f"all {len(known)}" if more == len(known) else f"{more} of {len(known)}"
    notes.append(f"There is a gain over the largest batch at the fixed clock at {where} caps.")
    points = [words.place(gain) for gain in feasible]
    changes = [where for where, _ in groupby(points)]
    notes.append(f"The pick takes {len({str(where) for where in changes})} different points; squares: its batch size.")
    if len(known) < len(feasible):
        notes.append("Gaps: no clock keeps that cap with every reference workload, so that rule has no point.")
    return " ".join(notes)
