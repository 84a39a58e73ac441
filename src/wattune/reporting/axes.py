"""The axes of a drawing: their ranges, ticks and labels, and their places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeGuard

from wattune.reporting.charts import Axis, Chart, Panel

CHARACTER = 6.4
"""Width of a character of a label, in pixels."""

LINE = 15
"""Height of a line of text, in pixels."""

LARGEST = 1e15
"""Larger numbers are left out of charts."""


def ticks(low: float, high: float, about: int) -> list[float]:
    """List about ``about`` round numbers from ``low`` to ``high``."""
    if high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{step * index:.12g}") for index in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(eq=False)
class PlacedAxis:
    """An axis in a drawing: ``start`` and ``end`` are the pixels of its lowest and highest value.

    ``across``: pixels of the other direction, from the axis to the opposite side.
    """

    axis: Axis
    is_x: bool
    low: float
    high: float
    start: float = 0.0
    end: float = 0.0
    across: tuple[float, float] = (0.0, 0.0)

    @property
    def length(self) -> float:
        """Length in pixels."""
        return abs(self.end - self.start)

    def at(self, value: float) -> float:
        """Pixel of a value."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def labels(self) -> list[tuple[float, list[str]]]:
        """Ticks with the lines of their labels."""
        if self.axis.categories:
            return [(float(place), name.split("\n")) for place, name in enumerate(self.axis.categories)]
        if self.axis.ticks:
            return [(value, [f"{value:g}"]) for value in self.axis.ticks]
        about = max(2, int((self.length or 300.0) / (75 if self.is_x else 45)))
        return [(value, [_short(value)]) for value in ticks(self.low, self.high, min(about, 7))]

    @property
    def title_lines(self) -> list[str]:
        """Lines of the title: one below a horizontal axis, as many as its length asks for beside a vertical one."""
        if not self.axis.title or self.is_x:
            return [self.axis.title] if self.axis.title else []
        return _wrapped(self.axis.title, self.length + 20)

    def drawn(self) -> str:
        """Grid lines, labels and title."""
        parts = []
        first, last = self.across
        labels = self.labels
        if self.is_x and labels:
            widest = max(len(line) for _, lines in labels for line in lines) * CHARACTER + 6
            labels = labels[:: max(1, math.ceil(widest * len(labels) / max(1.0, self.length)))]
        for value, lines in labels:
            place = self.at(value)
            if self.axis.grid and not self.axis.categories:
                ends = (place, first, place, last) if self.is_x else (first, place, last, place)
                parts.append(line_between(*ends, "var(--line)"))
            if self.is_x:
                parts += [text_at(place, first + LINE * (1 + i), line, "middle") for i, line in enumerate(lines)]
            else:
                shift = 4 - LINE / 2 * (len(lines) - 1)
                parts += [text_at(first - 7, place + shift + LINE * i, line, "end") for i, line in enumerate(lines)]
        middle = (self.start + self.end) / 2
        for i, line in enumerate(self.title_lines):
            if self.is_x:
                below = first + LINE * (1 + max((len(lines) for _, lines in labels), default=0)) + 3
                parts.append(text_at(middle, below, line, "middle"))
            else:
                left = 11 + 13 * i
                parts.append(text_at(left, middle, line, "middle", f' transform="rotate(-90 {left} {middle:g})"'))
        return "".join(parts)


def placed_axes(chart: Chart, width: int, height: int) -> list[tuple[PlacedAxis, PlacedAxis]]:
    """The horizontal and the vertical axis of every panel, in a view box of this size."""
    panels = chart.panels
    if chart.stacked:
        shared = _scaled(panels[0].x, True, panels)
        pairs = [(shared, _scaled(panel.y, False, [panel])) for panel in panels]
    else:
        shared = _scaled(panels[0].y, False, panels)
        pairs = [(_scaled(panel.x, True, [panel]), shared) for panel in panels]
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    top, right = 10, width - 14
    rows = max((len(lines) for x in xs for _, lines in x.labels), default=1)
    bottom = height - 8 - LINE * (rows + bool(xs[0].axis.title)) - 4
    for y, panel in zip(ys, panels, strict=True):
        low, high = panel.span if chart.stacked else (0.0, 1.0)
        y.start, y.end = bottom - low * (bottom - top), bottom - high * (bottom - top)
    longest = max((len(line) for y in ys for _, lines in y.labels for line in lines), default=0)
    left = 10 + CHARACTER * longest + 14 * max(len(y.title_lines) for y in ys) + 4
    for (x, y), panel in zip(pairs, panels, strict=True):
        low, high = (0.0, 1.0) if chart.stacked else panel.span
        x.start, x.end = left + low * (right - left), left + high * (right - left)
        x.across, y.across = (bottom, top), (left, right)
    return pairs


def _scaled(axis: Axis, is_x: bool, panels: Sequence[Panel]) -> PlacedAxis:
    """The axis with its range, over all that these panels show."""
    if axis.range is not None:
        return PlacedAxis(axis, is_x, *axis.range)
    if axis.categories:
        return PlacedAxis(axis, is_x, -0.5, len(axis.categories) - 0.5)
    marks = [mark for panel in panels for mark in panel.marks]
    shown = [value for mark in marks for value in (mark.x if is_x else mark.y)]
    if is_x:
        shown += [end for panel in panels for band in panel.bands for end in (band.begin, band.end)]
    else:
        shown += [rule.value for panel in panels for rule in panel.rules]
    values = [value for value in shown if is_drawable(value)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    space = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    if axis.from_zero or (low == 0 and high > 0):
        return PlacedAxis(axis, is_x, min(0.0, low), max(0.0, high) + space)
    return PlacedAxis(axis, is_x, low - space, high + space)


def is_drawable(value: float | None) -> TypeGuard[float]:
    """True if the value is known and small enough to draw: a record may hold any number."""
    return value is not None and abs(value) < LARGEST


def _wrapped(text: str, room: float) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and CHARACTER * (len(lines[-1]) + 1 + len(word)) > room:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:.6g}"


def text_at(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    """An SVG text; ``more``: further attributes."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def line_between(x0: float, y0: float, x1: float, y1: float, colour: str, more: str = "") -> str:
    """A straight SVG path; ``more``: further attributes."""
    return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{colour}"{more}/>'
