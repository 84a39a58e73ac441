"""Reports and tables as plain text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from wattune.reporting.charts import Bars
from wattune.reporting.page import Figure, Note, Page, Section, Table

WIDTH = 80
"""Columns of a terminal that tables fit into."""


def as_text(page: Page) -> str:
    """Write a page without its charts but bars; the first line has the origin: simulated, recorded, measured or
    unknown. What has bars comes last, where a terminal shows it."""
    parts = [f"{page.about}  [{page.origin}]", page.headline, *page.warnings]
    if page.tiles:
        parts.append(table(("", ""), [(tile.label.lower(), tile.value, tile.beside) for tile in page.tiles]))
    for item in (item for section in sorted(page.sections, key=_has_bars) for item in section.items):
        if isinstance(item, Note):
            parts.append(item.text)
        elif isinstance(item, Table):
            parts.append(_as_text(item))
        else:
            parts += _bars(item)
    return "\n\n".join(parts) + "\n"


def _has_bars(section: Section) -> bool:
    figures = (item for item in section.items if isinstance(item, Figure))
    return any(isinstance(mark, Bars) for figure in figures for mark in figure.chart.marks)


def _bars(figure: Figure) -> list[str]:
    """The bars in the first panel of a figure, from the top down; none without bars."""
    panel = figure.chart.panels[0]
    lengths = next((mark.lengths for mark in panel.marks if isinstance(mark, Bars)), ())
    bars = [(name, length) for name, length in zip(panel.y.categories, lengths, strict=False) if length]
    if not bars:
        return []
    names = max(len(name) for name, _ in bars)
    scale = (WIDTH - names - len("  0.123")) / max(length for _, length in bars)
    rows = (f"{name:<{names}} {'█' * max(1, round(scale * one))} {one:.3g}" for name, one in reversed(bars))
    return ["\n".join([f"{panel.x.title}  [{figure.origin}]", *rows])]


def _as_text(shown: Table) -> str:
    """A table without the extra columns that do not fit into a terminal; the column without a head has remarks."""
    columns = [list(column) for column in zip(shown.head, *shown.rows[: shown.shown], strict=True)]
    remarks = columns.pop()[1:] if not shown.head[-1] else [""] * len(shown.rows[: shown.shown])
    least = len(columns) - shown.extra
    while len(columns) > least and sum(max(map(len, column)) + 2 for column in columns) - 2 > WIDTH:
        columns.pop()
    head, *rows = zip(*columns, strict=True)
    parts = [
        f"{shown.title}  [{shown.origin}]",
        table(head, [(*row, remark) for row, remark in zip(rows, remarks, strict=True)], WIDTH),
        f"and {more} more in the record" if (more := len(shown.rows) - len(rows)) else "",
        f"({shown.note})" if shown.note else "",
    ]
    return "\n".join(filter(None, parts))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Align columns, the first to the left, the others to the right, in ``width`` columns of a terminal if they fit.

    Cells beyond the head are remarks. A remark that would go beyond the width is below its row. An empty head is left
    out.
    """
    lines = [head, *rows] if any(head) else rows
    widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(head))]
    out = []
    for line in lines:
        cells = [
            cell.ljust(wide) if i == 0 else cell.rjust(wide)
            for i, (cell, wide) in enumerate(zip(line, widths, strict=False))
        ]
        text = "  ".join(cells).rstrip()
        for remark in filter(None, line[len(head) :]):
            if width is None or len(text) + 2 + len(remark) <= width:
                text += f"  {remark}"
            else:
                text += f"\n{textwrap.fill(remark, width, initial_indent='    ', subsequent_indent='    ')}"
        out.append(text)
    return "\n".join(out)
