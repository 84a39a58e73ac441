"""Common elements of all figures: axes, colours, traces, as plain dicts which ``wattune.reporting.drawing`` draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wattune.reporting.axes import Spec
from wattune.reporting.page import plain

BATCH_COLOURS = 6
"""Steps of the colour ramp for batch sizes in page.css."""


def axis(title: str, **more: Any) -> Spec:
    """Make an axis with its title, units included."""
    return {
        "title": {"text": plain(title)},
        **more,
    }


def spec(data: list[Spec], x: Spec, y: Spec, **more: Any) -> Spec:
    """Make a figure of these traces in the page's style; ``more`` goes into the layout."""
    layout: Spec = {"showlegend": False, "xaxis": x, "yaxis": y}
    return {"data": data, "layout": {**layout, **more}}


def line(x: Sequence[Any], y: Sequence[Any], name: str, colour: str, **more: Any) -> Spec:
    """Make a line without markers; None is a gap."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(x),
        "y": list(y),
        "name": plain(name),
        "line": {"color": colour, "width": 2, **more.pop("line", {})},
        **more,
    }


def dots(x: Sequence[Any], y: Sequence[Any], name: str, colour: str, **more: Any) -> Spec:
    """Make markers without a line."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": list(x),
        "y": list(y),
        "name": plain(name),
        "marker": {"color": colour, "size": 9, **more.pop("marker", {})},
        **more,
    }


def rule(
    value: float, label: str, *, vertical: bool = False, left: bool = False, colour: str = "var(--cap)"
) -> tuple[Spec, Spec]:
    """Make a dashed line across the figure at ``value``, and a label at its end: a shape and an annotation."""
    along, across = ("y", "x") if vertical else ("x", "y")
    shape = {
        "type": "line",
        f"{along}ref": "paper",
        f"{along}0": 0,
        f"{along}1": 1,
        f"{across}ref": across,
        f"{across}0": value,
        f"{across}1": value,
        "line": {"color": colour, "width": 1.5, "dash": "dash"},
    }
    label_place = (
        {"x": value, "y": 1, "yanchor": "bottom"}
        if vertical
        else {"x": 0 if left else 1, "y": value, "yanchor": "bottom"}
    )
    annotation = {
        "text": plain(label),
        "showarrow": False,
        "font": {"size": 12, "color": colour},
        "xref": "x" if vertical else "paper",
        "yref": "paper" if vertical else "y",
        "xanchor": "center" if vertical else "left" if left else "right",
        **label_place,
    }
    return shape, annotation


def band(begin: float, end: float, *, is_good: bool = False) -> Spec:
    """Make a shaded band over a part of the horizontal axis, as a shape."""
    return {
        "type": "rect",
        "xref": "x",
        "x0": begin,
        "x1": end,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "fillcolor": "var(--accent)" if is_good else "var(--quiet)",
        "opacity": 0.15,
        "layer": "below",
        "line": {"width": 0},
    }


def batch_colour(batch_sizes: Sequence[int], batch_size: int) -> str:
    """The colour of one batch size among these: the same in every figure with the same batch sizes."""
    place = sorted(batch_sizes).index(batch_size)
    step = round(place * (BATCH_COLOURS - 1) / max(1, len(batch_sizes) - 1))
    return f"var(--batch-{step})"


def number(value: float) -> str:
    """Write three digits, for a cell of a heat map: 0.0123, 4.80, 21.0, 154."""
    return f"{value:#.3g}".rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"
