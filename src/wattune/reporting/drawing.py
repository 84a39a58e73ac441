"""Figures as SVG, in the colours of the page's style sheet: nothing else is needed to show them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape, unescape
from typing import Any

from wattune.reporting.axes import Axis, Spec, axes_of, line_between, text_at

NARROW = 480
"""Width in pixels below which a drawing is for a phone."""


def draw(spec: Spec, width: int, height: int) -> str:
    """Draw the figure in a view box of this size. For a phone, a map with more columns than rows is transposed."""
    is_map = any(trace["type"] == "heatmap" for trace in spec["data"])
    if is_map and width < NARROW:
        (heat,) = (trace for trace in spec["data"] if trace["type"] == "heatmap")
        if len(heat["x"]) > len(heat["y"]):
            spec = _transposed(spec)
            height = 70 + 26 * len(heat["x"])
    axes = axes_of(spec, width, height)
    parts = [_shape(shape, axes) for shape in spec["layout"].get("shapes", ()) if shape.get("layer") == "below"]
    parts += [axis.drawn() for axis in axes.values()]
    parts += [_trace(trace, axes, spec) for trace in spec["data"]]
    parts += [_shape(shape, axes) for shape in spec["layout"].get("shapes", ()) if shape.get("layer") != "below"]
    parts += [_annotation(note, axes) for note in spec["layout"].get("annotations", ())]
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}">{"".join(parts)}</svg>'


def legend(spec: Spec) -> list[tuple[str, str]]:
    """Names and colours of the traces that a legend lists; empty for a figure without one."""
    if not spec["layout"].get("showlegend"):
        return []
    return [
        (unescape(trace["name"]), _colour(trace))
        for trace in spec["data"]
        if trace.get("name") and trace.get("showlegend", True)
    ]


def _colour(trace: Spec) -> str:
    colour: str = trace.get("marker", {}).get("color") or trace["line"]["color"]
    return colour


def _trace(trace: Spec, axes: dict[str, Axis], spec: Spec) -> str:
    x, y = axes[trace.get("xaxis", "x")], axes[trace.get("yaxis", "y")]
    if trace["type"] == "heatmap":
        return _heat_map(trace, x, y)
    if trace["type"] == "bar":
        return _bars(trace, x, y, spec["layout"].get("bargap", 0.25))
    points = [
        None if one is None or other is None else (x.at(one), y.at(other))
        for one, other in zip(trace["x"], trace["y"], strict=True)
    ]
    parts = []
    if "lines" in trace["mode"]:
        parts.append(_path(points, trace))
    if "markers" in trace["mode"]:
        for index, point in enumerate(points):
            if point is not None:
                parts.append(_marker(point, trace, _hover(trace, index)))
    return "".join(parts)


def _path(points: Sequence[tuple[float, float] | None], trace: Spec) -> str:
    line, text, before = trace["line"], [], None
    for point in points:
        if point is not None:
            stair = f"H{point[0]:g}V{point[1]:g}" if line.get("shape") == "hv" else f"L{point[0]:g} {point[1]:g}"
            text.append(stair if before is not None else f"M{point[0]:g} {point[1]:g}")
        before = point
    if trace.get("fill") == "toself":
        edge = f"stroke:{line['color']};stroke-width:{line.get('width', 0)}"
        return (
            f'<path d="{"".join(text)}Z" style="fill:{trace["fillcolor"]};{edge};opacity:{trace.get("opacity", 1)}"/>'
        )
    dash = {"dash": "6 4", "dot": "2 3"}.get(line.get("dash", ""), "")
    dashed = f";stroke-dasharray:{dash}" if dash else ""
    style = f"fill:none;stroke:{line['color']};stroke-width:{line['width']};stroke-linejoin:round{dashed}"
    name = f"<title>{_escaped(trace['name'])}</title>" if trace.get("name") else ""
    return f'<path d="{"".join(text)}" style="{style}">{name}</path>' if text else ""


def _marker(point: tuple[float, float], trace: Spec, hover: str) -> str:
    marker, (x, y) = trace.get("marker", {}), point
    size, colour = marker.get("size", 6) / 2, marker.get("color") or trace["line"]["color"]
    symbol = marker.get("symbol", "circle")
    filled, outlined = f"fill:{colour}", f"fill:none;stroke:{colour};stroke-width:1.8"
    if symbol.startswith("x"):
        d = f"M{x - size:g} {y - size:g}L{x + size:g} {y + size:g}M{x - size:g} {y + size:g}L{x + size:g} {y - size:g}"
        shape = f'<path d="{d}" style="{outlined}"'
    elif symbol.startswith("triangle"):
        way = -1 if symbol.endswith("up") else 1
        d = f"M{x - size:g} {y - way * size:g}H{x + size:g}L{x:g} {y + way * size:g}Z"
        shape = f'<path d="{d}" style="{filled}"'
    elif symbol == "square":
        shape = f'<rect x="{x - size:g}" y="{y - size:g}" width="{2 * size:g}" height="{2 * size:g}" style="{filled}"'
    else:
        style = outlined if symbol.endswith("open") else filled
        shape = f'<circle cx="{x:g}" cy="{y:g}" r="{size:g}" style="{style}"'
    return f"{shape}>{hover}</{shape[1 : shape.index(' ')]}>"


def _bars(trace: Spec, x: Axis, y: Axis, gap: float) -> str:
    lies = trace.get("orientation") == "h"
    along, across, values, names = (x, y, trace["x"], trace["y"]) if lies else (y, x, trace["y"], trace["x"])
    thick = (1 - gap) * abs(across.end - across.start) / max(1, len(across.categories or names))
    parts = []
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        if value is None:
            continue
        middle, zero, tip = across.at(name), along.at(0.0), along.at(value)
        low, length = min(zero, tip), abs(tip - zero)
        box = (low, middle - thick / 2, length, thick) if lies else (middle - thick / 2, low, thick, length)
        place = 'x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"'.format(*box)
        style = f"fill:{trace['marker']['color'][index]}"
        parts.append(f'<rect {place} rx="2" style="{style}">{_title(trace["hovertext"][index])}</rect>')
        if trace.get("text"):
            parts.append(text_at(middle, zero - 7, trace["text"][index], "middle", ' class="on"'))
        more = (trace.get("error_x") or {}).get("array", [None] * len(values))[index]
        if more:
            parts.append(
                line_between(along.at(max(0.0, value - more)), middle, along.at(value + more), middle, "var(--muted)")
            )
    return "".join(parts)


def _heat_map(trace: Spec, x: Axis, y: Axis) -> str:
    values = [value for row in trace["z"] for value in row if value is not None]
    low, high = min(values), max(values)
    width, height = abs(x.at(1) - x.at(0)), abs(y.at(1) - y.at(0))
    small = ' class="fine"' if width < 36 else ""
    parts = []
    for row, line in enumerate(trace["z"]):
        for column, value in enumerate(line):
            left, top = x.at(column) - width / 2 + 1, y.at(row) - height / 2 + 1
            share = None if value is None else (value - low) / (high - low) if high > low else 0.5
            fill = "var(--blank)" if share is None else _mixed(share, trace["colorscale"])
            box = f'x="{left:.1f}" y="{top:.1f}" width="{width - 2:.1f}" height="{height - 2:.1f}"'
            hover = _title(trace["hovertext"][row][column])
            parts.append(f'<rect {box} style="fill:{fill}">{hover}</rect>')
            if share is not None:
                is_deep = share > trace["colorscale"][1][0]
                colour = "var(--card)" if is_deep else "var(--text)"
                style = f'{small} style="fill:{colour};pointer-events:none"'
                parts.append(text_at(x.at(column), y.at(row) + 4, trace["text"][row][column], "middle", style))
    return "".join(parts)


def _mixed(share: float, scale: Sequence[Sequence[Any]]) -> str:
    (_, first), (middle, second), (_, third) = scale
    one, other, part = (first, second, share / middle) if share <= middle else (second, third, 0.0)
    if share > middle:
        part = (share - middle) / (1 - middle)
    return f"color-mix(in srgb, {other} {100 * part:.0f}%, {one})"


def _shape(shape: Spec, axes: dict[str, Axis]) -> str:
    def pixel(side: str, end: str) -> float:
        reference, value = shape[f"{side}ref"], shape[f"{side}{end}"]
        axis = axes[side if reference == "paper" else reference]
        return axis.start + value * (axis.end - axis.start) if reference == "paper" else axis.at(value)

    x0, x1, y0, y1 = (pixel(side, end) for side in "xy" for end in "01")
    if shape["type"] == "line":
        return line_between(x0, y0, x1, y1, shape["line"]["color"], ";stroke-dasharray:6 4;stroke-width:1.5")
    place = f'x="{min(x0, x1):.1f}" y="{min(y0, y1):.1f}" width="{abs(x1 - x0):.1f}" height="{abs(y1 - y0):.1f}"'
    return f'<rect {place} style="fill:{shape["fillcolor"]};opacity:{shape["opacity"]}"/>'


def _annotation(note: Spec, axes: dict[str, Axis]) -> str:
    x, y = axes["x"], axes["y"]
    left, right = y.across
    place_x = left + note["x"] * (right - left) if note["xref"] == "paper" else x.at(note["x"])
    place_y = (y.start + note["y"] * (y.end - y.start) if note["yref"] == "paper" else y.at(note["y"])) - 5
    anchor = {"center": "middle", "left": "start", "right": "end"}[note["xanchor"]]
    return text_at(place_x, place_y, note["text"], anchor, f' style="fill:{note["font"]["color"]}"')


def _transposed(spec: Spec) -> Spec:
    def turned(trace: Spec) -> Spec:
        found = {**trace, "x": trace["y"], "y": trace["x"]}
        if trace["type"] == "heatmap":
            found.update(
                {name: [list(row) for row in zip(*trace[name], strict=True)] for name in ("z", "text", "hovertext")}
            )
        return found

    layout = spec["layout"]
    turned_layout = {**layout, "xaxis": layout["yaxis"], "yaxis": layout["xaxis"]}
    return {"data": [turned(trace) for trace in spec["data"]], "layout": turned_layout}


FORMAT = re.compile(r"%\{(x|y|text|hovertext)(?::([^}]*))?\}")


def _hover(trace: Spec, index: int) -> str:
    """The text that a mark shows under the pointer, as an SVG title."""
    template = trace.get("hovertemplate")
    if trace.get("hoverinfo") == "skip" or template is None:
        return ""

    def filled(match: re.Match[str]) -> str:
        value, form = trace[match[1]][index], match[2]
        return str(value) if form is None else format(value, form.replace("~", ""))

    text, _, extra = template.partition("<extra>")
    name = extra.removesuffix("</extra>")
    return _title(FORMAT.sub(filled, text) + (f"<br>{name}" if name else ""))


def _title(text: str) -> str:
    return f"<title>{_escaped(text)}</title>" if text else ""


def _escaped(text: str) -> str:
    return "\n".join(escape(unescape(line)) for line in text.split("<br>"))
