"""Line charts as geometry: coordinates of lines, ticks and labels, which the macro ``figure`` renders as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from wattune.reporting.axes import ticks

Point = tuple[float, float]

COLOURS = 6
"""Steps of the colour ramp in page.css: classes line-0 to line-5."""

ROWS, ROWS_OF_LINE = 600, 12
"""Maximum rows of a chart's table, and of one line in it: a page is refreshed every two seconds."""

LARGEST = 1e15
"""Larger numbers are left out of charts."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 42


@dataclass(frozen=True)
class Line:
    """One line: name, points by ascending x, colour class, and style."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dotted: bool = False
    marks: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart to draw. ``target``: a dashed horizontal line; ``band``: (x, low, high) by ascending x.

    ``logs``: names of the logarithmic axes, "x" or "y"; all numbers of such an axis must be positive.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    target: float | None = None
    target_name: str = "target"
    band: Sequence[tuple[float, float, float]] = ()
    logs: str = ""
    x_ticks: Sequence[float] | None = None


@dataclass(frozen=True)
class AxisTick:
    """Position of a tick along its axis, and its label."""

    at: float
    text: str


@dataclass(frozen=True)
class DrawnChart:
    """A chart in units of its view box, as the macro ``figure`` needs it."""

    chart: Chart
    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: list[AxisTick]
    y_ticks: list[AxisTick]
    paths: list[tuple[Line, str, list[Point]]] = field(default_factory=list)
    band: str = ""
    target: float | None = None

    @property
    def summary(self) -> str:
        """Text alternative of the chart for screen readers."""
        ends = [f"{line.name} ends at {line.points[-1][1]:.4g}" for line in self.chart.lines if line.points]
        goal = "" if self.chart.target is None else f" {self.chart.target_name} {self.chart.target:.4g}."
        last_values = "; ".join(ends[:8]) + ("; ..." if len(ends) > 8 else "")
        return f"{self.chart.title}: {self.chart.y} over {self.chart.x}.{goal} {last_values}."

    @property
    def points(self) -> int:
        """Total number of points of all lines."""
        return sum(len(line.points) for line in self.chart.lines)

    @property
    def rows(self) -> list[tuple[str, float, float]]:
        """The chart as a table of line, x and y; a long line is sampled, including its first and last point."""
        lines = [line for line in self.chart.lines if line.points][: ROWS // 2]
        max_points = min(ROWS_OF_LINE, ROWS // max(1, len(lines)))
        return [(line.name, x, y) for line in lines for x, y in _sample(line.points, max_points)]


def draw(chart: Chart) -> tuple[DrawnChart, ...]:
    """Lay out a chart for a wide and for a narrow screen, at the same text size; empty if there are no points."""
    lines = [
        replace(line, points=[(x, y) for x, y in line.points if _is_drawable(x) and _is_drawable(y)])
        for line in chart.lines
    ]
    target = chart.target if chart.target is not None and _is_drawable(chart.target) else None
    chart = replace(
        chart, lines=lines, target=target, band=[part for part in chart.band if all(map(_is_drawable, part))]
    )
    points = [point for line in lines for point in line.points]
    if not points:
        return ()
    return _draw(chart, points, 640, 300, 6), _draw(chart, points, 320, 250, 3)


def colour(names: Sequence[float], name: float) -> int:
    """Step of the colour ramp for ``name`` among ``names``: the same in every chart with the same names."""
    index = sorted(names).index(name)
    return round(index * (COLOURS - 1) / max(1, len(names) - 1))


def short(value: float) -> str:
    """Format a tick label: 0.25, 400, 12k."""
    if value and abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"


def _draw(chart: Chart, points: Sequence[Point], width: int, height: int, about: int) -> DrawnChart:
    others = [number for _, low, high in chart.band for number in (low, high)]
    if chart.target is not None:
        others.append(chart.target)
    xs, ys = [x for x, _ in points], [y for _, y in points] + others
    left, right, top, bottom = _LEFT, width - _RIGHT, _TOP, height - _BOTTOM
    log_x, log_y = "x" in chart.logs, "y" in chart.logs
    x_low, x_high = (min(xs), max(xs)) if log_x or chart.x_ticks else (0.0, max(xs))
    y_low, y_high = _padded(min(ys), max(ys), log_y)
    place_x = _scale(x_low, x_high, left, right, log_x)
    place_y = _scale(y_low, y_high, bottom, top, log_y)
    x_ticks = chart.x_ticks if chart.x_ticks is not None else ticks(x_low, x_high, about)
    y_ticks = _log_ticks(y_low, y_high) if log_y else ticks(y_low, y_high, 5)

    def placed(points: Sequence[Point]) -> list[Point]:
        return [(round(place_x(x), 1), round(place_y(y), 1)) for x, y in points]

    band = [(x, high) for x, _, high in chart.band] + [(x, low) for x, low, _ in reversed(chart.band)]
    return DrawnChart(
        chart,
        width,
        height,
        left,
        right,
        top,
        bottom,
        [AxisTick(round(place_x(x), 1), short(x)) for x in x_ticks],
        [AxisTick(round(place_y(y), 1), short(y)) for y in y_ticks],
        [(line, _path(placed(line.points)), placed(line.points)) for line in chart.lines if line.points],
        f"{_path(placed(band))}Z" if band else "",
        None if chart.target is None else round(place_y(chart.target), 1),
    )


def _sample(points: Sequence[Point], max_points: int) -> list[Point]:
    """Sample at most ``max_points`` points (2 or more), evenly and including both ends."""
    if len(points) <= max_points:
        return list(points)
    return [points[round(index * (len(points) - 1) / (max_points - 1))] for index in range(max_points)]


def _is_drawable(value: float) -> bool:
    """True if the number is small enough to draw: a record may hold any number."""
    return abs(value) < LARGEST


def _padded(low: float, high: float, log: bool) -> tuple[float, float]:
    """Pad a range, also if all values are equal or nearly equal."""
    if log:
        return low / 1.08, high * 1.08
    size = max(abs(low), abs(high))
    space = 0.06 * (high - low)
    if space <= 1e-10 * max(size, 1e-6):
        space = 0.1 * size if size > 1e-6 else 1.0
    return low - space, high + space


def _scale(low: float, high: float, start: float, end: float, log: bool) -> Callable[[float], float]:
    bend = math.log if log else float
    first, last = bend(low), bend(high)
    if last <= first:
        return lambda value: (start + end) / 2
    return lambda value: start + (end - start) * (bend(value) - first) / (last - first)


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    candidates = [10.0**power * factor for power in powers for factor in (1, 2, 5)]
    inside = [value for value in candidates if low <= value <= high]
    return inside if len(inside) > 1 else ticks(low, high, 4)


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""
