"""A profile as a table of shades, and what is chosen from it under every cap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wattune.errors import InputError, RecordError
from wattune.planning.selection import Limit, fastest
from wattune.planning.table import Option, Table
from wattune.records import EfficiencyCurve, ProfileTable
from wattune.reporting import words
from wattune.reporting.charts import number
from wattune.reporting.maps import Grid, arrange
from wattune.server.dashboard.figures import colour

MOST_W = 1e6
"""Caps below it can be asked for."""

LEAST, MOST = 1e-99, 1e99
"""Between them lies whatever can be shown."""

SHADES = 7
"""Steps of the colour ramps in page.css: the classes shade-0 to shade-6."""


SQUARES = 4096
"""Squares of a map at most."""


@dataclass(frozen=True)
class Square:
    """One cell: its text and shade, None where it has no figure; ``why`` is what stands there then."""

    row: int
    column: int
    text: str
    shade: int | None
    hint: str


@dataclass(frozen=True)
class Heatmap:
    """Rows by descending batch size, so that small ones stand at the bottom, columns by ascending setting."""

    title: str
    unit: str
    colours: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Square, ...]], ...]


@dataclass(frozen=True)
class Step:
    """What is chosen from ``cap_w`` up to the next step's.

    ``marked``: of each row, the column of the fastest setting that keeps the cap, None where none does. ``chosen``: row
    and column; ``says``: that in words, for the places of the page that show it.
    """

    cap_w: float
    marked: tuple[int | None, ...]
    chosen: tuple[int, int] | None
    says: dict[str, str]


@dataclass(frozen=True)
class Pick:
    """A part of the slider, in per cent of it, in which one batch size is chosen; ``colour``: of the ramp."""

    begin: float
    end: float
    batch_size: int
    colour: int


def heatmaps(grid: Grid) -> tuple[Heatmap, Heatmap]:
    """Time per sample in milliseconds and peak power in watts."""
    times = {at: cell.step_s / cell.batch_size * 1000 for at, cell in grid.cells.items() if cell.step_s}
    powers = {at: cell.power_peak_w for at, cell in grid.cells.items() if cell.power_peak_w}
    return _map(grid, "Time per sample", "ms", "time", times), _map(grid, "Peak power", "W", "power", powers)


def can_be_drawn(profile: ProfileTable) -> bool:
    """Whether its maps are no larger than a page: cells that share no batch size and no clock make one of their square,
    and there is a choice for each of their powers."""
    rows = {(cell.batch_size, cell.micro_batch_size) for cell in profile.cells}
    settings = {cell.point.setting for cell in profile.cells}
    return len(rows) * len(settings) <= SQUARES


def steps(profile: ProfileTable, efficiency: EfficiencyCurve | None) -> list[Step]:
    """What is chosen under every cap there is: it changes only where a cap lets one more point in.

    Without a curve only the fastest setting of each batch size is known, and no point is chosen.

    Raises: RecordError where profile and curve do not fit together, or a power is beyond anything that a device draws.
    """
    grid = arrange(profile)
    table = Table(profile, efficiency or _even(profile))
    caps_w = sorted({option.peak_w for option in table.at.values()})
    if caps_w and caps_w[-1] >= MOST_W:
        raise RecordError("a power that no device draws", value=f"{caps_w[-1]:g} W", hint="measure it again")
    return [_step(grid, table, cap_w, efficiency is not None) for cap_w in caps_w]


def step_of(found: Sequence[Step], cap_w: float) -> Step | None:
    """The step that a cap belongs to; None where no point keeps it."""
    return next((step for step in reversed(found) if step.cap_w <= cap_w), None)


def as_json(found: Sequence[Step]) -> list[dict[str, object]]:
    """The steps for the page's script, which looks them up and plans nothing."""
    return [
        {
            "cap_w": step.cap_w,
            "marked": list(step.marked),
            "chosen": step.chosen and list(step.chosen),
            "says": step.says,
        }
        for step in found
    ]


def slider(found: Sequence[Step]) -> tuple[float, float]:
    """From just below the lowest to just above the highest peak power, in steps of 0.01 W."""
    low, high = found[0].cap_w, found[-1].cap_w
    space = max(0.02, 0.03 * (high - low))
    return max(0.01, math.floor((low - space) * 100) / 100), math.ceil((high + space) * 100) / 100


def strip(found: Sequence[Step], low_w: float, high_w: float, grid: Grid) -> list[Pick]:
    """The batch sizes that are chosen along the slider."""
    sizes = sorted({batch_size for batch_size, _ in grid.rows})
    ends = [*(step.cap_w for step in found[1:]), high_w][: len(found)]
    parts: list[Pick] = []
    for step, end_w in zip(found, ends, strict=True):
        if step.chosen is None:
            continue
        begin, end = (round(100 * (cap_w - low_w) / (high_w - low_w), 2) for cap_w in (step.cap_w, end_w))
        size = grid.rows[step.chosen[0]][0]
        if parts and parts[-1].batch_size == size and parts[-1].end == begin:
            parts[-1] = replace(parts[-1], end=end)
        else:
            parts.append(Pick(begin, end, size, colour(sizes, size)))
    return parts


def checked_cap(text: str | None, most_w: float) -> float:
    """The cap that was asked for; ``most_w`` where none was.

    Raises: InputError for what is not a positive number.
    """
    if text is None or not text.strip():
        return most_w
    try:
        cap_w = float(text)
    except ValueError:
        cap_w = math.nan
    if not (math.isfinite(cap_w) and 0 < cap_w < MOST_W):
        raise InputError("cap", value=text, allowed="a positive number of watts")
    return cap_w


def _step(grid: Grid, table: Table, cap_w: float, chooses: bool) -> Step:
    limit = Limit(cap_w)
    marked: list[int | None] = [None] * len(grid.rows)
    for row in table.rows:
        best = fastest((row,), limit)
        if best is not None:
            at, column = _place(grid, best)
            marked[at] = column
    pick = fastest(table.rows, limit) if chooses else None
    if pick is None:
        said = "no proxy run reached the target at a batch size that keeps the cap" if chooses else "-"
        return Step(cap_w, tuple(marked), None, {"point": said, "line": said if chooses else ""})
    return Step(cap_w, tuple(marked), _place(grid, pick), _said(pick, table.reference_samples))


def _said(pick: Option, reference_samples: float | None) -> dict[str, str]:
    known = pick.relative_time is not None and reference_samples is not None
    time_s = pick.relative_time * reference_samples if known else None  # type: ignore[operator]
    said = {
        "point": words.point(pick.cell.point),
        "peak": words.watts(pick.peak_w),
        "time": words.seconds(time_s),
        "energy": words.joules(None if time_s is None else time_s * pick.mean_w),
    }
    return {**said, "line": f"{said['point']}, peak {said['peak']}, {said['time']} and {said['energy']} to the target"}


def _place(grid: Grid, option: Option) -> tuple[int, int]:
    batch_size, micro = option.place[:2]
    return grid.rows.index((batch_size, micro)), grid.columns.index(option.cell.point.setting)


def _even(profile: ProfileTable) -> EfficiencyCurve:
    """A curve that makes no difference within a batch size, where nothing is chosen between them."""
    sizes = profile.batch_sizes or (1,)
    return EfficiencyCurve.model_validate(
        {
            "workload": profile.workload,
            "algorithm": profile.algorithm,
            "reference_batch_size": sizes[-1],
            "points": [{"batch_size": size, "relative_samples": 1.0} for size in sizes],
        }
    )


def _map(grid: Grid, title: str, unit: str, colours: str, values: dict[tuple[int, int], float]) -> Heatmap:
    values = {at: value for at, value in values.items() if LEAST < value < MOST}
    low, high = (min(values.values()), max(values.values())) if values else (1.0, 1.0)
    rows = []
    for row in reversed(range(len(grid.rows))):
        squares = tuple(
            _square(grid, row, column, values.get((row, column)), low, high) for column in range(len(grid.columns))
        )
        rows.append((grid.label(row), squares))
    return Heatmap(title, unit, colours, _heads(grid), tuple(rows))


def _heads(grid: Grid) -> tuple[str, ...]:
    """The settings; without decimals where there are many and each still is another one. The cells have them whole."""
    known = [setting for setting in grid.columns if setting is not None]
    if not known:
        return ("-",)
    rounded = tuple(f"{setting:.0f}" for setting in known)
    return rounded if len(known) > 8 and len(set(rounded)) == len(known) else tuple(f"{setting:g}" for setting in known)


def _square(grid: Grid, row: int, column: int, value: float | None, low: float, high: float) -> Square:
    if value is not None:
        # By the logarithm: step times span two orders of magnitude, and the lowest clocks would take all shades.
        span = math.log(high) - math.log(low)
        share = (math.log(value) - math.log(low)) / span if span > 0 else 0.0
        cell = grid.cells[row, column]
        hint = f"{words.point(cell.point)}: {words.seconds(cell.step_s)} a step, peak {words.watts(cell.power_peak_w)}"
        if strain := words.strain(cell):
            hint += f", {strain}"
        return Square(row, column, number(value), round(share * (SHADES - 1)), hint)
    if (row, column) in grid.cells:
        return Square(row, column, "?", None, "a figure that no device has")
    if (row, column) in grid.full:
        return Square(row, column, "×", None, "does not fit in memory")
    if (row, column) in grid.aborted:
        probe = grid.aborted[row, column]
        return Square(
            row, column, "△", None, f"stopped at {words.watts(probe.power_w)}, above {words.cap(probe.cap_w)}"
        )
    return Square(row, column, "", None, "not measured")
