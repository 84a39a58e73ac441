"""Heat maps of step time and peak power over batch size and clock, with the frontier of the cap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from wattune.point import BatchShape, Knobs
from wattune.records import AbortedProbe, Plan, ProfileCell, ProfileTable
from wattune.reporting import phrases
from wattune.reporting.axes import LARGEST
from wattune.reporting.charts import Axis, Chart, Dots, HeatMap, Line, Mark, Panel, Symbol
from wattune.reporting.page import Figure
from wattune.search.observation import capped_powers

LEAST = 1e-15
"""Smaller values are left out of maps."""


@dataclass(frozen=True)
class ProfileGrid:
    """A profile arranged as a matrix: rows by batch size, columns by knobs, both ascending.

    ``columns`` is one that sets nothing on a device without knobs. A place that was not measured is in no dict.
    """

    rows: tuple[BatchShape, ...]
    columns: tuple[Knobs, ...]
    cells: dict[tuple[int, int], ProfileCell]
    full: frozenset[tuple[int, int]]
    aborted: dict[tuple[int, int], AbortedProbe]

    @property
    def title(self) -> str:
        """Title of the columns."""
        return phrases.knob_titles(self.columns[0])

    def label(self, row: int) -> str:
        """The batch size of a row, with the micro-batch size where it differs."""
        batch_size, micro = self.rows[row]
        return f"{batch_size}" if micro == batch_size else f"{batch_size} / {micro}"


def arrange(profile: ProfileTable) -> ProfileGrid:
    """Arrange the profile as a matrix."""
    entries: list[ProfileCell | AbortedProbe] = [*profile.cells, *profile.aborted]
    rows = tuple(sorted({entry.shape for entry in entries}))
    # A batch size that does not fit in memory fits at no setting, so a profile may probe it at one only.
    probes: list[ProfileCell | AbortedProbe] = [*profile.measured, *profile.aborted]
    columns = tuple(sorted({entry.knobs for entry in probes or entries if entry.knobs})) or (Knobs(),)
    cells = {(rows.index(cell.shape), columns.index(cell.knobs)): cell for cell in profile.measured}
    aborted = {(rows.index(probe.shape), columns.index(probe.knobs)): probe for probe in profile.aborted}
    out = {rows.index(cell.shape) for cell in profile.cells if cell.out_of_memory}
    full = {(row, column) for row in out for column in range(len(columns))} - cells.keys() - aborted.keys()
    return ProfileGrid(rows, columns, cells, frozenset(full), aborted)


def time_map(profile: ProfileTable, plan: Plan | None) -> Figure:
    """Milliseconds per sample over batch size and clock."""
    return _figure(
        "step-time",
        "Time per sample (ms)",
        lambda cell: (cell.step_s or 0.0) / cell.batch_size * 1000,
        "time",
        profile,
        plan,
    )


def power_map(profile: ProfileTable, plan: Plan | None) -> Figure:
    """The power that a cap is compared with, in watts, over batch size and clock: a highest mean, or the peak."""
    window_s = profile.cap_window_s if plan is None else plan.cap_window_s
    title = f"{phrases.capped_power(window_s).capitalize()} (W)"
    figure = _figure("capped-power", title, capped_powers(profile, window_s), "power", profile, plan)
    averaged = f", each averaged over {phrases.seconds(profile.sensor_window_s)}" if profile.sensor_window_s else ""
    said = (
        f"The largest reading of the sensor{averaged}."
        if window_s is None
        else "The highest mean, with the sensor's error."
    )
    return replace(figure, note=f"{said} {figure.note}".strip())


def _figure(
    key: str,
    title: str,
    value: Callable[[ProfileCell], float],
    colours: str,
    profile: ProfileTable,
    plan: Plan | None,
) -> Figure:
    grid = arrange(profile)
    origin = phrases.origin(profile=profile.provenance.kind)
    places = [[(row, column) for column in range(len(grid.columns))] for row in range(len(grid.rows))]
    values = [[_drawn(value(grid.cells[place])) if place in grid.cells else None for place in row] for row in places]
    heat = HeatMap(
        values,
        texts=[["" if v is None else number(v) for v in row] for row in values],
        hovers=[[_hover(grid, *place) for place in row] for row in places],
        colours=(f"var(--{colours}-0)", f"var(--{colours}-1)", f"var(--{colours}-2)"),
    )
    marks, legend = _marks(grid, profile, plan)
    panel = Panel(
        [heat, *marks],
        Axis(grid.title, categories=[phrases.knob_values(knobs) for knobs in grid.columns]),
        Axis(_row_title(grid), categories=[grid.label(row) for row in range(len(grid.rows))]),
    )
    return Figure(key, title, origin, Chart([panel]), note=legend, height=90 + 46 * max(5, len(grid.rows)))


def _marks(grid: ProfileGrid, profile: ProfileTable, plan: Plan | None) -> tuple[list[Mark], str]:
    """The marks over a heat map, and their legend."""
    marks, legend = list[Mark](), []
    if plan is not None and plan.cap_w is not None:
        marks.append(_frontier(grid, capped_powers(profile, plan.cap_window_s), plan))
        legend.append(f"Line: the highest setting of each batch size under {phrases.cap(plan.cap_w)}.")
    if plan is not None and (place := _chosen(grid, plan)) is not None:
        row, column = place
        # Just inside the cell, so that the line of the cap stays visible beside it.
        left, right, low, high = column - 0.43, column + 0.43, row - 0.43, row + 0.43
        frame = ([left, right, right, left, left], [low, low, high, high, low])
        marks.append(Line(*frame, "var(--accent)", "chosen", width=3.5))
        legend.append("Green frame: the chosen point.")
    blank = len(grid.rows) * len(grid.columns) - len(grid.cells) - len(grid.full) - len(grid.aborted)
    strained_cells = sorted(place for place, cell in grid.cells.items() if phrases.strain(cell))
    symbols: list[tuple[list[tuple[int, int]], str, Symbol]] = [
        (sorted(grid.full), "out of memory", "cross"),
        (sorted(grid.aborted), "stopped above the cap", "triangle-up"),
        (strained_cells, "throttled", "ring"),
    ]
    for places, name, symbol in symbols:
        if places:
            rows, columns = zip(*places, strict=True)
            hovers = [_hover(grid, *place) for place in places]
            marks.append(Dots(columns, rows, "var(--muted)", name, size=8, symbol=symbol, hovers=hovers))
    if grid.full:
        legend.append("Cross: does not fit in memory.")
    if grid.aborted:
        legend.append("Triangle: probe stopped above the cap.")
    if strained_cells:
        legend.append("Ring: the board was throttled or swapping during the measurement.")
    if blank:
        legend.append(f"Blank: not measured ({blank} of {len(grid.rows) * len(grid.columns)}).")
    return marks, " ".join(legend)


def _frontier(grid: ProfileGrid, power: Callable[[ProfileCell], float], plan: Plan) -> Line:
    """A staircase right of the highest setting under the cap, row by row; without a line for rows that do not fit."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row in range(len(grid.rows)):
        under = [
            column
            for (r, column), cell in grid.cells.items()
            if r == row and cell.power_peak_w is not None and plan.limit.allows(power(cell))
        ]
        is_probed = under or any(r == row for r, _ in (*grid.cells, *grid.aborted))
        edge = max(under, default=-1) + 0.5
        x += [edge, edge] if is_probed else [None, None]
        y += [row - 0.5, row + 0.5] if is_probed else [None, None]
    return Line(x, y, "var(--cap)", f"under {phrases.cap(plan.cap_w)}", width=3)


def _chosen(grid: ProfileGrid, plan: Plan) -> tuple[int, int] | None:
    if plan.shape not in grid.rows or plan.knobs not in grid.columns:
        return None
    return grid.rows.index(plan.shape), grid.columns.index(plan.knobs)


def _hover(grid: ProfileGrid, row: int, column: int) -> str:
    knobs = grid.columns[column]
    where = f"batch size {grid.label(row)}" + (f" at {knobs}" if knobs else "")
    if (row, column) in grid.full:
        return f"{where}\ndoes not fit in memory"
    if (row, column) in grid.aborted:
        probe = grid.aborted[row, column]
        return f"{where}\nstopped at {phrases.watts(probe.power_w)}, above {phrases.cap(probe.cap_w)}"
    cell = grid.cells.get((row, column))
    if cell is None or cell.step_s is None:
        return f"{where}\nnot measured"
    strain = f"\n{strain}" if (strain := phrases.strain(cell)) else ""
    if cell.notices:
        strain += f"\nheld below its setting by {', '.join(cell.notices)}"
    spread = "" if cell.step_std_s is None else f" ± {cell.step_std_s * 1000:.2g}"
    sample = number(cell.step_s / cell.batch_size * 1000)
    return (
        f"{where}\n{number(cell.step_s * 1000)}{spread} ms per step, {sample} ms per sample"
        f"\npeak {phrases.watts(cell.power_peak_w)}, mean {phrases.watts(cell.power_mean_w)}{strain}"
    )


def _row_title(grid: ProfileGrid) -> str:
    return "batch size" if all(b == m for b, m in grid.rows) else "batch size / micro-batch size"


def _drawn(value: float) -> float | None:
    """The value, or None if it is not plausible: a record may hold any number."""
    return value if LEAST < value < LARGEST else None


def number(value: float) -> str:
    """Write three digits, for a cell of a heat map: 0.0123, 4.80, 21.0, 154."""
    return f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"
