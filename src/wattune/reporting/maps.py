"""Step time and peak power over batch size and clock, with the line that the cap draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattune.records import AbortedProbe, Plan, ProfileCell, ProfileTable
from wattune.reporting import words
from wattune.reporting.charts import axis, dots, line, number, rule, spec
from wattune.reporting.page import Figure, Spec, plain

Row = tuple[int, int]
"""Batch size and micro-batch size."""


@dataclass(frozen=True)
class Grid:
    """A profile arranged as a matrix: rows by batch size, columns by clock (or power limit), both ascending.

    ``columns`` is ``(None,)`` on a device without an actuator. A place that was not measured is in no dict.
    """

    rows: tuple[Row, ...]
    columns: tuple[float | None, ...]
    cells: dict[tuple[int, int], ProfileCell]
    full: frozenset[tuple[int, int]]
    aborted: dict[tuple[int, int], AbortedProbe]
    unit: str

    @property
    def title(self) -> str:
        """What the columns are."""
        return "power limit (W)" if self.unit == "W" else "GPU clock (MHz)"

    def label(self, row: int) -> str:
        """The batch size of a row, with the micro-batch size where it differs."""
        batch_size, micro = self.rows[row]
        return f"{batch_size}" if micro == batch_size else f"{batch_size} / {micro}"


def arrange(profile: ProfileTable) -> Grid:
    """The profile as a matrix."""
    entries: list[ProfileCell | AbortedProbe] = [*profile.cells, *profile.aborted]
    rows = tuple(sorted({_row(entry) for entry in entries}))
    # What does not fit does so at any setting, so a profile may probe it at one only.
    tried: list[ProfileCell | AbortedProbe] = [*profile.measured, *profile.aborted]
    settings = sorted({s for entry in tried or entries if (s := _setting(entry)) is not None})
    columns: tuple[float | None, ...] = tuple(settings) or (None,)
    cells = {(rows.index(_row(cell)), columns.index(_setting(cell))): cell for cell in profile.measured}
    aborted = {(rows.index(_row(probe)), columns.index(_setting(probe))): probe for probe in profile.aborted}
    out = {rows.index(_row(cell)) for cell in profile.cells if cell.out_of_memory}
    full = {(row, column) for row in out for column in range(len(columns))} - cells.keys() - aborted.keys()
    unit = "W" if any(entry.power_limit_w is not None for entry in entries) else "MHz"
    return Grid(rows, columns, cells, frozenset(full), aborted, unit)


def time_map(profile: ProfileTable, plan: Plan | None) -> Figure:
    """Milliseconds per sample over batch size and clock."""
    return _figure(
        "step-time",
        "Time per sample",
        "ms per sample",
        lambda cell: (cell.step_s or 0.0) / cell.batch_size * 1000,
        "time",
        profile,
        plan,
    )


def power_map(profile: ProfileTable, plan: Plan | None) -> Figure:
    """Peak power in watts over batch size and clock."""
    figure = _figure("peak-power", "Peak power", "W", lambda cell: cell.power_peak_w or 0.0, "power", profile, plan)
    window_s = profile.sensor_window_s
    averaged = f", each averaged over {words.seconds(window_s)}" if window_s else ""
    return replace(figure, note=f"The largest reading of the sensor{averaged}. {figure.note}".strip())


def _figure(
    key: str,
    title: str,
    unit: str,
    value: Callable[[ProfileCell], float],
    colours: str,
    profile: ProfileTable,
    plan: Plan | None,
) -> Figure:
    grid = arrange(profile)
    origin = words.origin(profile=profile.provenance.kind)
    if len(grid.columns) == 1:
        return Figure(key, title, origin, _bars(grid, value, unit, colours, plan), height=320)
    z = [
        [value(grid.cells[row, column]) if (row, column) in grid.cells else None for column in range(len(grid.columns))]
        for row in range(len(grid.rows))
    ]
    heat: Spec = {
        "type": "heatmap",
        "x": list(range(len(grid.columns))),
        "y": list(range(len(grid.rows))),
        "z": z,
        "text": [["" if v is None else number(v) for v in line] for line in z],
        "texttemplate": "%{text}",
        "hovertext": [
            [_hover(grid, row, column) for column in range(len(grid.columns))] for row in range(len(grid.rows))
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "hoverongaps": False,
        "colorscale": _scale([v for line in z for v in line if v is not None], colours),
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 10, "outlinewidth": 0, "len": 1},
        "xgap": 2,
        "ygap": 2,
    }
    marks, legend = _marks(grid, plan)
    figure = spec(
        [heat, *marks],
        axis(grid.title, tickvals=heat["x"], ticktext=[f"{s:g}" for s in grid.columns], showgrid=False),
        axis(
            _row_title(grid),
            tickvals=heat["y"],
            ticktext=[grid.label(r) for r in range(len(grid.rows))],
            showgrid=False,
        ),
        margin={"l": 48, "r": 8, "t": 8, "b": 44},
        plot_bgcolor="var(--blank)",
    )
    figure["layout"]["xaxis"].update(
        range=[-0.54, len(grid.columns) - 0.46], tickangle=-45 if len(grid.columns) > 8 else 0
    )
    figure["layout"]["yaxis"]["range"] = [-0.5, len(grid.rows) - 0.5]
    return Figure(
        key,
        title,
        origin,
        figure,
        note=legend,
        height=90 + 46 * max(5, len(grid.rows)),
        narrowest=130 + 30 * len(grid.columns),
    )


def _scale(values: Sequence[float], colours: str) -> list[list[object]]:
    # The middle colour at the geometric mean: step times span two orders of magnitude, and the lowest clocks, which
    # nobody chooses, would otherwise take all shades.
    low, high = min(values), max(values)
    middle = (math.sqrt(low * high) - low) / (high - low) if high > low else 0.5
    return [[0, f"var(--{colours}-0)"], [middle, f"var(--{colours}-1)"], [1, f"var(--{colours}-2)"]]


def _marks(grid: Grid, plan: Plan | None) -> tuple[list[Spec], str]:
    """The traces over a heat map, and a sentence on what they mean."""
    marks, legend = [], []
    if plan is not None and plan.cap_w is not None:
        marks.append(_frontier(grid, plan.cap_w, plan.margin_w))
        legend.append(f"Line: the highest setting of each batch size that keeps {words.cap(plan.cap_w)}.")
    if plan is not None and (place := _chosen(grid, plan)) is not None:
        row, column = place
        # Just inside the cell, so that the line of the cap stays visible beside it.
        left, right, low, high = column - 0.43, column + 0.43, row - 0.43, row + 0.43
        frame = ([left, right, right, left, left], [low, low, high, high, low])
        marks.append(line(*frame, "chosen", "var(--accent)", line={"width": 3.5}, hoverinfo="skip"))
        legend.append("Green frame: the chosen point.")
    blank = len(grid.rows) * len(grid.columns) - len(grid.cells) - len(grid.full) - len(grid.aborted)
    for places, name, symbol in (
        (sorted(grid.full), "out of memory", "x-thin"),
        (sorted(grid.aborted), "stopped above the cap", "triangle-up"),
        (held := sorted(p for p, cell in grid.cells.items() if words.strain(cell)), "held back", "circle-open"),
    ):
        if places:
            marks.append(
                dots(
                    [column for _, column in places],
                    [row for row, _ in places],
                    name,
                    "var(--muted)",
                    marker={"symbol": symbol, "size": 8, "line": {"color": "var(--muted)", "width": 1.5}},
                    text=[_hover(grid, row, column) for row, column in places],
                    hovertemplate="%{text}<extra></extra>",
                )
            )
    if grid.full:
        legend.append("Cross: does not fit in memory.")
    if grid.aborted:
        legend.append("Triangle: probe stopped at its first reading above the cap.")
    if held:
        legend.append("Ring: measured while the board held itself back or swapped.")
    if blank:
        legend.append(f"Blank: not measured ({blank} of {len(grid.rows) * len(grid.columns)}).")
    return marks, " ".join(legend)


def _frontier(grid: Grid, cap_w: float, margin_w: float) -> Spec:
    """A staircase right of the highest setting that keeps the cap, row by row; no line where a row does not fit."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row in range(len(grid.rows)):
        kept = [
            column
            for (r, column), cell in grid.cells.items()
            if r == row and (cell.power_peak_w or 0.0) + margin_w <= cap_w
        ]
        known = kept or any(r == row for r, _ in (*grid.cells, *grid.aborted))
        edge = max(kept, default=-1) + 0.5
        x += [edge, edge] if known else [None, None]
        y += [row - 0.5, row + 0.5] if known else [None, None]
    return line(x, y, f"keeps {words.cap(cap_w)}", "var(--cap)", line={"width": 3}, cliponaxis=False, hoverinfo="skip")


def _chosen(grid: Grid, plan: Plan) -> tuple[int, int] | None:
    row = (plan.batch_size, plan.micro_batch_size or plan.batch_size)
    if row not in grid.rows or plan.point.setting not in grid.columns:
        return None
    return grid.rows.index(row), grid.columns.index(plan.point.setting)


def _bars(grid: Grid, value: Callable[[ProfileCell], float], unit: str, colours: str, plan: Plan | None) -> Spec:
    # One column is no map: without an actuator, or at one setting, the batch sizes stand side by side.
    cells = {row: grid.cells[row, 0] for row in range(len(grid.rows)) if (row, 0) in grid.cells}
    chosen = _chosen(grid, plan) if plan is not None else None
    bars: Spec = {
        "type": "bar",
        "x": [grid.label(row) for row in cells],
        "y": [value(cell) for cell in cells.values()],
        "marker": {"color": ["var(--accent)" if chosen == (row, 0) else f"var(--{colours}-1)" for row in cells]},
        "text": [number(value(cell)) for cell in cells.values()],
        "insidetextanchor": "start",
        "hovertext": [_hover(grid, row, 0) for row in cells],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
    figure = spec([bars], axis(_row_title(grid), type="category", showgrid=False), axis(unit, rangemode="tozero"))
    if colours == "power" and plan is not None and plan.cap_w is not None:
        shape, label = rule(plan.cap_w, f"cap {words.cap(plan.cap_w)}")
        figure["layout"].update(shapes=[shape], annotations=[{**label, "bgcolor": "var(--card)"}])
    return figure


def _hover(grid: Grid, row: int, column: int) -> str:
    setting = grid.columns[column]
    where = f"batch size {grid.label(row)}" + ("" if setting is None else f" at {setting:g} {grid.unit}")
    if (row, column) in grid.full:
        return f"{where}<br>does not fit in memory"
    if (row, column) in grid.aborted:
        probe = grid.aborted[row, column]
        return f"{where}<br>stopped at {words.watts(probe.power_w)}, above {words.cap(probe.cap_w)}"
    cell = grid.cells.get((row, column))
    if cell is None or cell.step_s is None:
        return f"{where}<br>not measured"
    strain = f"\n{strain}" if (strain := words.strain(cell)) else ""
    spread = "" if cell.step_std_s is None else f" ± {cell.step_std_s * 1000:.2g}"
    sample = number(cell.step_s / cell.batch_size * 1000)
    return plain(
        f"{where}\n{number(cell.step_s * 1000)}{spread} ms a step, {sample} ms a sample"
        f"\npeak {words.watts(cell.power_peak_w)}, mean {words.watts(cell.power_mean_w)}{strain}"
    ).replace("\n", "<br>")


def _row_title(grid: Grid) -> str:
    return "batch size" if all(b == m for b, m in grid.rows) else "batch size / micro-batch size"


def _row(entry: ProfileCell | AbortedProbe) -> Row:
    return entry.batch_size, entry.micro_batch_size or entry.batch_size


def _setting(entry: ProfileCell | AbortedProbe) -> float | None:
    return entry.clock_mhz if entry.clock_mhz is not None else entry.power_limit_w
