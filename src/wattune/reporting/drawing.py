"""Charts as SVG, in the colours of the page's style sheet: nothing else is needed to show them.

Colours and strokes are attributes, not styles: the content security policy of the server's pages forbids inline styles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape

from wattune.reporting.axes import PlacedAxis, is_drawable, line_between, placed_axes, text_at
from wattune.reporting.charts import Area, Band, Bars, Chart, Dots, HeatMap, Line, Mark, Panel, Rule, Values
from wattune.reporting.thinning import DOTS, POINTS_PER_PIXEL, thinned

NARROW = 480
"""Width in pixels below which a drawing is for a phone."""

_DASHES = {"solid": "", "dashed": ' stroke-dasharray="6 4"', "dotted": ' stroke-dasharray="2 3"'}


_SHADES = (
    (0, 1, 0, "low"),
    (25, 1, 0, "low"),
    (50, 1, 0, "low"),
    (100, 1, 0, "middle"),
    (58, 2, 1, "high"),
    (80, 2, 1, "high"),
    (100, 2, 1, "high"),
)
"""Shades of a heat map: percent of one of its three colours mixed with another one, and which text is readable on it.

Few steps, each readable: between the steps around the middle neither a light nor a dark text would be.
"""


def draw(chart: Chart, width: int, height: int) -> str:
    """Draw the chart in a view box of this size. For a phone, a map with more columns than rows is transposed."""
    columns, rows = next(((len(mark.x), len(mark.y)) for mark in chart.marks if isinstance(mark, HeatMap)), (0, 0))
    if width < NARROW and columns > rows:
        chart, height = replace(chart, panels=[_transposed(panel) for panel in chart.panels]), 70 + 26 * columns
    axes = placed_axes(chart, width, height)
    panels = list(zip(chart.panels, axes, strict=True))
    parts = [_bands(panel.bands, x, y) for panel, (x, y) in panels]
    parts += [axis.drawn() for axis in dict.fromkeys(axis for pair in axes for axis in pair)]
    parts += [_mark(mark, x, y) for panel, (x, y) in panels for mark in panel.marks]
    rules = [(rule, x, y) for panel, (x, y) in panels for rule in panel.rules if is_drawable(rule.value)]
    parts += [_rule(*rule) for rule in rules]
    parts += [_label(*rule) for rule in rules if rule[0].label]
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}">{"".join(parts)}</svg>'


def legend(chart: Chart) -> dict[str, str]:
    """The colour of every name that a legend lists; empty for a chart without one."""
    named = [mark for mark in chart.marks if isinstance(mark, Line | Dots) and mark.name]
    return {mark.name: mark.colour for mark in named} if chart.legend else {}


def _mark(mark: Mark, x: PlacedAxis, y: PlacedAxis) -> str:
    match mark:
        case Line():
            return _line(mark, x, y)
        case Area():
            return _area(mark, x, y)
        case Dots():
            return _dots(mark, x, y)
        case Bars():
            return _bars(mark, x, y)
        case HeatMap():
            return _heat_map(mark, x, y)


def _points(xs: Values, ys: Values, x: PlacedAxis, y: PlacedAxis) -> Iterator[tuple[float, float] | None]:
    for one, other in zip(xs, ys, strict=True):
        yield (x.at(one), y.at(other)) if is_drawable(one) and is_drawable(other) else None


def _most(x: PlacedAxis) -> int:
    return max(3, round(POINTS_PER_PIXEL * x.length))


def _line(line: Line, x: PlacedAxis, y: PlacedAxis) -> str:
    text, before = [], None
    shown = thinned(line.y, _most(x))
    for point in _points([line.x[i] for i in shown], [line.y[i] for i in shown], x, y):
        if point is not None:
            onward = f"H{point[0]:g}V{point[1]:g}" if line.stairs else f"L{point[0]:g} {point[1]:g}"
            text.append(onward if before is not None else f"M{point[0]:g} {point[1]:g}")
        before = point
    stroke = f'stroke="{line.colour}" stroke-width="{line.width}" stroke-linejoin="round"{_DASHES[line.dash]}'
    return f'<path d="{"".join(text)}" fill="none" {stroke}>{_title(line.name)}</path>' if text else ""


def _area(area: Area, x: PlacedAxis, y: PlacedAxis) -> str:
    """One path for each part between gaps; a part of one point is as narrow as its stroke."""
    parts, upper, lower = [], list[str](), list[str]()
    shown = sorted({*thinned(area.low, _most(x) // 2), *thinned(area.high, _most(x) // 2)})
    points = [(area.x[i], area.low[i], area.high[i]) for i in shown]
    for place, low, high in (*points, (0.0, None, None)):
        if is_drawable(low) and is_drawable(high):
            upper.append(f"{x.at(place):g} {y.at(high):g}")
            lower.append(f"{x.at(place):g} {y.at(low):g}")
        elif upper:
            paint = f'fill="{area.colour}" stroke="{area.colour}" stroke-width="{8 if len(upper) == 1 else 0}"'
            parts.append(f'<path d="M{"L".join(upper + lower[::-1])}Z" {paint} opacity="0.2"/>')
            upper, lower = [], []
    return "".join(parts)


def _dots(dots: Dots, x: PlacedAxis, y: PlacedAxis) -> str:
    hovers = dots.hovers or [""] * len(dots.x)
    shown = thinned(dots.y, DOTS)
    places = _points([dots.x[i] for i in shown], [dots.y[i] for i in shown], x, y)
    points = zip(places, [hovers[i] for i in shown], strict=True)
    return "".join(_marker(dots, *point, _title(hover)) for point, hover in points if point is not None)


def _marker(dots: Dots, x: float, y: float, title: str) -> str:
    size = dots.size / 2
    filled, outlined = f'fill="{dots.colour}"', f'fill="none" stroke="{dots.colour}" stroke-width="1.8"'
    match dots.symbol:
        case "cross":
            rising, falling = f"M{x - size:g} {y + size:g}L{x + size:g} {y - size:g}", f"L{x + size:g} {y + size:g}"
            return f'<path d="M{x - size:g} {y - size:g}{falling}{rising}" {outlined}>{title}</path>'
        case "triangle-up" | "triangle-down":
            way = -size if dots.symbol == "triangle-up" else size
            d = f"M{x - size:g} {y - way:g}H{x + size:g}L{x:g} {y + way:g}Z"
            return f'<path d="{d}" {filled}>{title}</path>'
        case "square":
            box = f'x="{x - size:g}" y="{y - size:g}" width="{2 * size:g}" height="{2 * size:g}"'
            return f"<rect {box} {filled}>{title}</rect>"
        case "circle" | "ring":
            paint = filled if dots.symbol == "circle" else outlined
            return f'<circle cx="{x:g}" cy="{y:g}" r="{size:g}" {paint}>{title}</circle>'


def _bars(bars: Bars, x: PlacedAxis, y: PlacedAxis) -> str:
    thick = 0.65 * y.length / max(1, len(bars.lengths))
    parts = []
    for place, length in enumerate(bars.lengths):
        if not is_drawable(length):
            continue
        middle, zero, tip = y.at(place), x.at(0.0), x.at(length)
        box = _box(min(zero, tip), middle - thick / 2, abs(tip - zero), thick)
        parts.append(f'<rect {box} rx="2" fill="{bars.colours[place]}">{_title(bars.hovers[place])}</rect>')
        if error := bars.errors[place]:
            ends = x.at(max(0.0, length - error)), x.at(length + error)
            parts.append(line_between(ends[0], middle, ends[1], middle, "var(--muted)"))
    return "".join(parts)


def _heat_map(heat: HeatMap, x: PlacedAxis, y: PlacedAxis) -> str:
    # Logarithms: step times span two orders of magnitude, and the lowest clocks, which are never chosen, would
    # otherwise take all shades.
    known = [math.log(value) for row in heat.values for value in row if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    width, height = abs(x.at(1) - x.at(0)), abs(y.at(1) - y.at(0))
    small = ' class="fine"' if width < 36 else ""
    parts = []
    for row, values in enumerate(heat.values):
        for column, value in enumerate(values):
            share = 0.5 if value is None or high <= low else (math.log(value) - low) / (high - low)
            percent, of, over, text_colour = _SHADES[round(share * (len(_SHADES) - 1))]
            fill = f"color-mix(in oklab, {heat.colours[of]} {percent}%, {heat.colours[over]})"
            box = _box(x.at(column) - width / 2 + 1, y.at(row) - height / 2 + 1, width - 2, height - 2)
            paint = "var(--blank)" if value is None else fill
            parts.append(f'<rect {box} fill="{paint}">{_title(heat.hovers[row][column])}</rect>')
            if value is not None:
                style = f'{small} fill="var(--on-{text_colour})" pointer-events="none"'
                parts.append(text_at(x.at(column), y.at(row) + 4, heat.texts[row][column], "middle", style))
    return "".join(parts)


def _rule(rule: Rule, x: PlacedAxis, y: PlacedAxis) -> str:
    place = y.at(rule.value)
    stroke = f'{_DASHES["dashed"]} stroke-width="1.5"'
    return line_between(x.start, place, x.end, place, "var(--quiet)" if rule.quiet else "var(--cap)", stroke)


def _label(rule: Rule, x: PlacedAxis, y: PlacedAxis) -> str:
    style = "" if rule.quiet else ' fill="var(--cap)"'
    end, anchor = (x.start, "start") if rule.quiet else (x.end, "end")
    return text_at(end, y.at(rule.value) - 5, rule.label, anchor, style)


def _bands(bands: Sequence[Band], x: PlacedAxis, y: PlacedAxis) -> str:
    """Bands as rectangles. Those less than a pixel apart are one."""
    spans = list[list[float]]()
    for left, right in sorted((x.at(band.begin), x.at(band.end)) for band in bands):
        if spans and left - spans[-1][1] < 1:
            spans[-1][1] = max(right, spans[-1][1])
        else:
            spans.append([left, right])
    boxes = (_box(left, y.end, right - left, y.start - y.end) for left, right in spans)
    return "".join(f'<rect {box} fill="var(--quiet)" opacity="0.15"/>' for box in boxes)


def _transposed(panel: Panel) -> Panel:
    """A heat map, and the lines and dots over it, with rows and columns exchanged."""

    def turned(mark: Mark) -> Mark:
        match mark:
            case HeatMap():
                values, texts, hovers = (
                    list(zip(*rows, strict=True)) for rows in (mark.values, mark.texts, mark.hovers)
                )
                return replace(mark, values=values, texts=texts, hovers=hovers)
            case Line() | Dots():
                return replace(mark, x=mark.y, y=mark.x)
        return mark

    return replace(panel, marks=[turned(mark) for mark in panel.marks], x=panel.y, y=panel.x)


def _box(left: float, top: float, width: float, height: float) -> str:
    return f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'


def _title(text: str) -> str:
    """The text that an element shows under the pointer."""
    return f"<title>{escape(text)}</title>" if text else ""
