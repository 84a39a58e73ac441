"""The axes of a drawing: their ranges, ticks and labels, and their places."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

Spec = dict[str, Any]
"""A figure: "data", a list of traces, and "layout". See ``wattune.reporting.charts`` for how they are made."""

CHARACTER = 6.4
"""Width of a character of a label, in pixels."""

LINE = 15
"""Height of a line of text, in pixels."""


def ticks(low: float, high: float, about: int) -> list[float]:
    """List about ``about`` round numbers from ``low`` to ``high``."""
    if high <= low:
        return [low]
    raw = (high - low) / max(1, about)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{step * index:.12g}") for index in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass
class Axis:
    """One axis in the drawing: ``start`` and ``end`` are the pixels of its lowest and highest value."""

    spec: Spec
    is_x: bool
    low: float
    high: float
    categories: list[str] | None
    start: float = 0.0
    end: float = 0.0
    across: tuple[float, float] = (0.0, 0.0)

    def at(self, value: Any) -> float:
        """Pixel of a value."""
        number = self.categories.index(value) if self.categories is not None and isinstance(value, str) else value
        share = (number - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def labels(self) -> list[tuple[float, list[str]]]:
        """Ticks with the lines of their labels."""
        if self.categories is not None:
            return [(float(index), _lines(name)) for index, name in enumerate(self.categories)]
        if "tickvals" in self.spec:
            names = self.spec.get("ticktext") or [f"{value:g}" for value in self.spec["tickvals"]]
            return [(value, _lines(name)) for value, name in zip(self.spec["tickvals"], names, strict=True)]
        room = abs(self.end - self.start) or 300.0
        about = max(2, int(room / (75 if self.is_x else 45)))
        return [(value, [_short(value)]) for value in ticks(self.low, self.high, min(about, 7))]

    @property
    def title(self) -> str:
        """Title of the axis."""
        return unescape(self.spec["title"]["text"])

    def drawn(self) -> str:
        """Grid lines, labels and title."""
        parts = []
        first, last = self.across
        shown = self.labels
        if self.is_x and shown:
            widest = max(len(line) for _, lines in shown for line in lines) * CHARACTER + 6
            every = max(1, math.ceil(widest * len(shown) / max(1.0, abs(self.end - self.start))))
            shown = shown[::every]
        for value, lines in shown:
            place = self.at(value)
            if self.spec.get("showgrid", True):
                ends = (place, first, place, last) if self.is_x else (first, place, last, place)
                parts.append(line_between(*ends, "var(--line)"))
            if self.is_x:
                parts += [text_at(place, first + LINE * (1 + i), line, "middle") for i, line in enumerate(lines)]
            else:
                shift = 4 - LINE / 2 * (len(lines) - 1)
                parts += [text_at(first - 7, place + shift + LINE * i, line, "end") for i, line in enumerate(lines)]
        middle = (self.start + self.end) / 2
        if self.title and self.is_x:
            below = first + LINE * (1 + max((len(lines) for _, lines in shown), default=0)) + 3
            parts.append(text_at(middle, below, self.title, "middle"))
        elif self.title:
            room = abs(self.end - self.start) + 20
            for i, line in enumerate(_wrapped(self.title, room)):
                parts.append(
                    text_at(11 + 13 * i, middle, line, "middle", f' transform="rotate(-90 {11 + 13 * i} {middle:g})"')
                )
        return "".join(parts)


def axes_of(spec: Spec, width: int, height: int) -> dict[str, Axis]:
    """The axes of a figure in a view box of this size, by "x", "y", "x2" and "y2"."""
    layout = spec["layout"]
    axes = {
        name.replace("axis", ""): _scaled(name.replace("axis", ""), layout[name], spec)
        for name in ("xaxis", "yaxis", "xaxis2", "yaxis2")
        if name in layout
    }
    has_names = any(note.get("yref") == "paper" for note in layout.get("annotations", ()))
    top, right = (22 if has_names else 10), width - 14
    rows = max((len(lines) for axis in axes.values() if axis.is_x for _, lines in axis.labels), default=1)
    bottom = height - 8 - LINE * (rows + bool(axes["x"].title)) - 4
    for axis in axes.values():
        if not axis.is_x:
            low, high = axis.spec.get("domain", (0, 1))
            axis.start, axis.end = bottom - low * (bottom - top), bottom - high * (bottom - top)
    labels = [(axis, max((len(t) for _, lines in axis.labels for t in lines), default=0)) for axis in axes.values()]
    wide = max((CHARACTER * count for axis, count in labels if not axis.is_x), default=0.0)
    titles = max(
        (len(_wrapped(a.title, abs(a.end - a.start) + 20)) for a in axes.values() if not a.is_x and a.title), default=0
    )
    left = 10 + wide + 14 * titles + 4
    for axis in axes.values():
        if axis.is_x:
            low, high = axis.spec.get("domain", (0, 1))
            axis.start, axis.end = left + low * (right - left), left + high * (right - left)
            axis.across = (bottom, top)
        else:
            axis.across = (left, right)
    return axes


def _scaled(name: str, axis: Spec, spec: Spec) -> Axis:
    """The axis with its range, over the values of its traces."""
    is_x, side = name.startswith("x"), name[0]
    own = [trace for trace in spec["data"] if trace.get(f"{side}axis", side) == name]
    values = [value for trace in own for value in trace[side] if value is not None]
    if axis.get("type") == "category":
        names = list(axis.get("categoryarray") or dict.fromkeys(values))
        low, high = axis.get("range", (-0.5, len(names) - 0.5))
        return Axis(axis, is_x, low, high, names)
    if "range" in axis:
        low, high = axis["range"]
        return Axis(axis, is_x, low, high, None)
    if any(isinstance(value, str) for value in values):
        names = list(dict.fromkeys(values))
        return Axis(axis, is_x, -0.5, len(names) - 0.5, names)
    shapes = [shape for shape in spec["layout"].get("shapes", ()) if shape.get(f"{side}ref") == name]
    values += [shape[end] for shape in shapes for end in (f"{side}0", f"{side}1")]
    if any(trace["type"] == "bar" and (trace.get("orientation") == "h") == is_x for trace in own):
        values.append(0.0)
    for trace in own:
        spread = trace.get("error_x", {}).get("array", ()) if is_x else ()
        values += [mean + more for mean, more in zip(trace["x"], spread, strict=False) if mean and more]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    space = 0.05 * (high - low) or 0.1 * abs(high) or 1.0
    if axis.get("rangemode") == "tozero" or (low == 0 and high > 0):
        return Axis(axis, is_x, min(0.0, low), max(0.0, high) + space, None)
    return Axis(axis, is_x, low - space, high + space, None)


def _lines(text: str) -> list[str]:
    return [unescape(line) for line in text.split("<br>")]


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
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(unescape(text))}</text>'


def line_between(x0: float, y0: float, x1: float, y1: float, colour: str, more: str = "") -> str:
    """A straight SVG path; ``more``: further style."""
    return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" style="stroke:{colour}{more}"/>'
