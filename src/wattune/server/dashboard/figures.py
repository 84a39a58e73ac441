"""Line charts as geometry: where lines, ticks and labels stand; the macro ``figure`` writes them down as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

Point = tuple[float, float]

COLOURS = 6
"""Steps of the colour ramp in page.css: the classes line-0 to line-5."""

ROWS, ROWS_OF_LINE = 600, 12
"""Rows of a figure's table at most, and of one line in it: a page is renewed every two seconds."""

LARGEST = 1e15
"""Numbers beyond it are left out of figures."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 42


@dataclass(frozen=True)
class Line:
    """One line: its name, its points by ascending x, the class of its colour, and what it is dotted for."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dotted: bool = False
    marks: bool = False


@dataclass(frozen=True)
class Chart:
    """What is to be drawn. ``target``: a dashed line across; ``band``: (x, low, high) by ascending x.

    ``logs``: which of the axes, "x" and "y", are logarithmic; then all numbers of that axis are positive.
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
class Tick:
    """A tick's place along its axis, and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Drawn:
    """A chart in units of its view box: everything that the macro ``figure`` needs."""

    chart: Chart
    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    paths: list[tuple[Line, str, list[Point]]] = field(default_factory=list)
    band: str = ""
    target: float | None = None

    @property
    def summary(self) -> str:
        """The figure in a sentence, for those who do not see it."""
        ends = [f"{line.name} ends at {line.points[-1][1]:.4g}" for line in self.chart.lines if line.points]
        goal = "" if self.chart.target is None else f" {self.chart.target_name} {self.chart.target:.4g}."
        said = "; ".join(ends[:8]) + ("; ..." if len(ends) > 8 else "")
        return f"{self.chart.title}: {self.chart.y} over {self.chart.x}.{goal} {said}."

    @property
    def points(self) -> int:
        """How many points all lines have together."""
        return sum(len(line.points) for line in self.chart.lines)

    @property
    def rows(self) -> list[tuple[str, float, float]]:
        """The figure as a table: line, x and y; of a long line its first and last point, and some between."""
        lines = [line for line in self.chart.lines if line.points][: ROWS // 2]
        most = min(ROWS_OF_LINE, ROWS // max(1, len(lines)))
        return [(line.name, x, y) for line in lines for x, y in _some(line.points, most)]


def draw(chart: Chart) -> tuple[Drawn, ...]:
    """The chart for a wide and for a narrow screen, since its letters must not shrink; none where there is no point."""
    lines = [replace(line, points=[(x, y) for x, y in line.points if _fits(x) and _fits(y)]) for line in chart.lines]
    target = chart.target if chart.target is not None and _fits(chart.target) else None
    chart = replace(chart, lines=lines, target=target, band=[part for part in chart.band if all(map(_fits, part))])
    points = [point for line in lines for point in line.points]
    if not points:
        return ()
    return _draw(chart, points, 640, 300, 6), _draw(chart, points, 320, 250, 3)


def colour(names: Sequence[float], name: float) -> int:
    """The step of the colour ramp for one of these: the same in every figure that shows the same ones."""
    place = sorted(names).index(name)
    return round(place * (COLOURS - 1) / max(1, len(names) - 1))


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from ``low`` to ``high``, about so many."""
    if high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{step * index:.12g}") for index in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number of an axis: 0.25, 400, 12k."""
    if value and abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"


def _draw(chart: Chart, points: Sequence[Point], width: int, height: int, about: int) -> Drawn:
    others = [number for _, low, high in chart.band for number in (low, high)]
    if chart.target is not None:
        others.append(chart.target)
    xs, ys = [x for x, _ in points], [y for _, y in points] + others
    left, right, top, bottom = _LEFT, width - _RIGHT, _TOP, height - _BOTTOM
    log_x, log_y = "x" in chart.logs, "y" in chart.logs
    x_low, x_high = (min(xs), max(xs)) if log_x or chart.x_ticks else (0.0, max(xs))
    y_low, y_high = _room(min(ys), max(ys), log_y)
    place_x = _scale(x_low, x_high, left, right, log_x)
    place_y = _scale(y_low, y_high, bottom, top, log_y)
    wanted = chart.x_ticks if chart.x_ticks is not None else ticks(x_low, x_high, about)
    y_wanted = _log_ticks(y_low, y_high) if log_y else ticks(y_low, y_high, 5)

    def placed(found: Sequence[Point]) -> list[Point]:
        return [(round(place_x(x), 1), round(place_y(y), 1)) for x, y in found]

    band = [(x, high) for x, _, high in chart.band] + [(x, low) for x, low, _ in reversed(chart.band)]
    return Drawn(
        chart,
        width,
        height,
        left,
        right,
        top,
        bottom,
        [Tick(round(place_x(x), 1), short(x)) for x in wanted],
        [Tick(round(place_y(y), 1), short(y)) for y in y_wanted],
        [(line, _path(placed(line.points)), placed(line.points)) for line in chart.lines if line.points],
        f"{_path(placed(band))}Z" if band else "",
        None if chart.target is None else round(place_y(chart.target), 1),
    )


def _some(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many of these, 2 at least: the ends, and evenly between."""
    if len(points) <= most:
        return list(points)
    return [points[round(index * (len(points) - 1) / (most - 1))] for index in range(most)]


def _fits(value: float) -> bool:
    """Whether a figure can be drawn with it: a record may hold any number."""
    return abs(value) < LARGEST


def _room(low: float, high: float, log: bool) -> tuple[float, float]:
    """A little room above and below, and some where everything is one number, or nearly."""
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
    few = [10.0**power * factor for power in powers for factor in (1, 2, 5)]
    found = [value for value in few if low <= value <= high]
    return found if len(found) > 1 else ticks(low, high, 4)


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""
