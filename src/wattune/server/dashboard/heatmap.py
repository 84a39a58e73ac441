"""Heat maps of a profile, and the operating point chosen from it under every cap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wattune.cap import PowerCap, SensorLimit
from wattune.errors import InputError, RecordError
from wattune.planning.candidates import fastest
from wattune.planning.table import Option, PlanningTable
from wattune.records import ProfileTable, SampleEfficiency
from wattune.reporting import phrases
from wattune.reporting.heat_maps import ProfileGrid, arrange, number
from wattune.search.observation import capped_powers
from wattune.server.dashboard.line_chart import colour

MOST_W = 1e6
"""Upper bound of a cap."""

LEAST, MOST = 1e-99, 1e99
"""Range of values that are shown."""

SHADES = 7
"""Steps of the colour ramps in page.css: classes shade-0 to shade-6."""


SQUARES = 4096
"""Maximum number of squares of a map."""


@dataclass(frozen=True)
class Square:
    """One cell of a map: text, shade (None without a value) and tooltip."""

    row: int
    column: int
    text: str
    shade: int | None
    hint: str


@dataclass(frozen=True)
class MapTable:
    """A map: rows by descending batch size, so that small ones are at the bottom, columns by ascending setting."""

    title: str
    unit: str
    colours: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Square, ...]], ...]


@dataclass(frozen=True)
class CapStep:
    """Choice for caps from ``cap_w`` up to the ``cap_w`` of the next step.

    ``marked``: per row, the column of the fastest setting that stays under the cap, or None. ``chosen``: row and column
    of the chosen point; ``texts``: for the elements of the page that describe it.
    """

    cap_w: float
    marked: tuple[int | None, ...]
    chosen: tuple[int, int] | None
    texts: dict[str, str]


@dataclass(frozen=True)
class Pick:
    """Part of the slider, in per cent, in which one batch size is chosen; ``colour``: step of the ramp."""

    begin: float
    end: float
    batch_size: int
    colour: int


def heatmaps(profile: ProfileTable) -> tuple[MapTable, MapTable]:
    """Build the maps of time per sample in milliseconds and of the power that a cap is compared with, in watts."""
    grid = arrange(profile)
    times = {at: cell.step_s / cell.batch_size * 1000 for at, cell in grid.cells.items() if cell.step_s}
    window_s = _window_s(profile)
    capped_w = capped_powers(profile, window_s)
    powers = {at: capped_w(cell) for at, cell in grid.cells.items() if cell.power_peak_w}
    power_title = phrases.capped_power(window_s).capitalize()
    return _map(grid, "Time per sample", "ms", "time", times), _map(grid, power_title, "W", "power", powers)


def fits_page(profile: ProfileTable) -> bool:
    """True if the maps are small enough for a page: sparse cells can make a map of the square of their number."""
    rows = {cell.shape for cell in profile.cells}
    settings = {cell.knobs for cell in profile.cells}
    return len(rows) * len(settings) <= SQUARES


def cap_steps(profile: ProfileTable, efficiency: SampleEfficiency | None) -> list[CapStep]:
    """List the choices under all caps: one step per cap at which another point becomes feasible.

    Without a curve, only the fastest setting of each batch size is marked, and no point is chosen.

    Raises: RecordError if profile and curve do not match, or a power is implausibly high.
    """
    grid = arrange(profile)
    table = PlanningTable(profile, efficiency or _neutral_curve(profile), _window_s(profile))
    caps_w = sorted({option.capped_w for option in table.at.values()})
    if caps_w and caps_w[-1] >= MOST_W:
        raise RecordError("implausible power in the profile", value=f"{caps_w[-1]:g} W", hint="measure it again")
    return [_step(grid, table, cap_w, efficiency is not None) for cap_w in caps_w]


def step_at(steps: Sequence[CapStep], cap_w: float) -> CapStep | None:
    """Find the step of a cap; None if no point stays under it."""
    return next((step for step in reversed(steps) if step.cap_w <= cap_w), None)


def as_json(steps: Sequence[CapStep]) -> list[dict[str, object]]:
    """Serialize the steps for the page's script, which looks up the choice."""
    return [
        {
            "cap_w": step.cap_w,
            "marked": list(step.marked),
            "chosen": step.chosen and list(step.chosen),
            "texts": step.texts,
        }
        for step in steps
    ]


def slider(steps: Sequence[CapStep]) -> tuple[float, float]:
    """Range of the slider: from just below the lowest to just above the highest power, rounded to 0.01 W."""
    low, high = steps[0].cap_w, steps[-1].cap_w
    space = max(0.02, 0.03 * (high - low))
    return max(0.01, math.floor((low - space) * 100) / 100), math.ceil((high + space) * 100) / 100


def strip(steps: Sequence[CapStep], low_w: float, high_w: float, grid: ProfileGrid) -> list[Pick]:
    """List the batch sizes that are chosen along the slider."""
    sizes = sorted({batch_size for batch_size, _ in grid.rows})
    ends = [*(step.cap_w for step in steps[1:]), high_w][: len(steps)]
    parts: list[Pick] = []
    for step, end_w in zip(steps, ends, strict=True):
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
    """Parse the requested cap; ``most_w`` if it is empty. Raises: InputError if it is not a positive number."""
    if text is None or not text.strip():
        return most_w
    try:
        cap_w = float(text)
    except ValueError:
        cap_w = math.nan
    if not (math.isfinite(cap_w) and 0 < cap_w < MOST_W):
        raise InputError("cap", value=text, allowed="a positive number of watts")
    return cap_w


def _step(grid: ProfileGrid, table: PlanningTable, cap_w: float, chooses: bool) -> CapStep:
    limit = SensorLimit(cap_w)
    marked: list[int | None] = [None] * len(grid.rows)
    for row in table.rows:
        best = fastest((row,), limit)
        if best is not None:
            at, column = _place(grid, best)
            marked[at] = column
    pick = fastest(table.rows, limit) if chooses else None
    if pick is None:
        text = "no proxy run reached the target at a batch size that stays under the cap" if chooses else "-"
        return CapStep(cap_w, tuple(marked), None, {"point": text, "line": text if chooses else ""})
    return CapStep(cap_w, tuple(marked), _place(grid, pick), _texts(pick, table.reference_samples))


def _texts(pick: Option, reference_samples: float | None) -> dict[str, str]:
    has_time = pick.relative_time is not None and reference_samples is not None
    time_s = pick.relative_time * reference_samples if has_time else None  # type: ignore[operator]
    texts = {
        "point": str(pick.cell.point),
        "power": phrases.watts(pick.capped_w),
        "time": phrases.seconds(time_s),
        "energy": phrases.joules(None if time_s is None else time_s * pick.mean_w),
    }
    line = f"{texts['point']}, at most {texts['power']}, {texts['time']} and {texts['energy']} to the target"
    return {**texts, "line": line}


def _window_s(profile: ProfileTable) -> float | None:
    """Window of a cap for which none was asked for."""
    return PowerCap().at_sensor(None, profile.sensor_window_s).window_s


def _place(grid: ProfileGrid, option: Option) -> tuple[int, int]:
    return grid.rows.index(option.point.shape), grid.columns.index(option.point.knobs)


def _neutral_curve(profile: ProfileTable) -> SampleEfficiency:
    """Build a curve with equal samples for all batch sizes, for use within one batch size only."""
    sizes = profile.batch_sizes or (1,)
    return SampleEfficiency.model_validate(
        {
            "workload": profile.workload,
            "algorithm": profile.algorithm,
            "reference_batch_size": sizes[-1],
            "points": [{"batch_size": size, "relative_samples": 1.0} for size in sizes],
        }
    )


def _map(grid: ProfileGrid, title: str, unit: str, colours: str, values: dict[tuple[int, int], float]) -> MapTable:
    values = {at: value for at, value in values.items() if LEAST < value < MOST}
    low, high = (min(values.values()), max(values.values())) if values else (1.0, 1.0)
    rows = []
    for row in reversed(range(len(grid.rows))):
        squares = tuple(
            _square(grid, row, column, values.get((row, column)), low, high) for column in range(len(grid.columns))
        )
        rows.append((grid.label(row), squares))
    return MapTable(title, unit, colours, _heads(grid), tuple(rows))


def _heads(grid: ProfileGrid) -> tuple[str, ...]:
    """Column heads: the knobs, rounded if there are many and the rounded ones are distinct."""
    exact = tuple(phrases.knob_values(knobs) or "-" for knobs in grid.columns)
    labels = tuple(" / ".join(f"{value:.0f}" for value in knobs.values()) for knobs in grid.columns)
    return labels if len(exact) > 8 and len(set(labels)) == len(exact) else exact


def _square(grid: ProfileGrid, row: int, column: int, value: float | None, low: float, high: float) -> Square:
    if value is not None:
        # Logarithmic: step times span two orders of magnitude, and the lowest clocks would use up all shades.
        span = math.log(high) - math.log(low)
        share = (math.log(value) - math.log(low)) / span if span > 0 else 0.0
        cell = grid.cells[row, column]
        hint = f"{cell.point}: {phrases.seconds(cell.step_s)} a step"
        hint += f", mean {phrases.watts(cell.power_mean_w)}, peak {phrases.watts(cell.power_peak_w)}"
        if strain := phrases.strain(cell):
            hint += f", {strain}"
        return Square(row, column, number(value), round(share * (SHADES - 1)), hint)
    if (row, column) in grid.cells:
        return Square(row, column, "?", None, "implausible value")
    if (row, column) in grid.full:
        return Square(row, column, "×", None, "does not fit in memory")
    if (row, column) in grid.aborted:
        probe = grid.aborted[row, column]
        return Square(
            row, column, "△", None, f"stopped at {phrases.watts(probe.power_w)}, above {phrases.cap(probe.cap_w)}"
        )
    return Square(row, column, "", None, "not measured")
