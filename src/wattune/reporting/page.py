"""One self-contained HTML file without scripts: plain text in, escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import groupby

from wattune.reporting.charts import Chart
from wattune.reporting.drawing import draw, legend

# With this policy the browser requests nothing and runs no script.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

ROWS = 150
"""Most rows of a table; the record has the others."""

_WIDE, _HALF, _PHONE = 1130, 556, 348
"""Widths of the drawings of a figure: over both columns, in one of them, and on a phone."""


@dataclass(frozen=True)
class Figure:
    """A chart with its title, the origin of its values, and a note on how to read it."""

    key: str
    title: str
    origin: str
    chart: Chart
    note: str = ""
    height: int = 380
    wide: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of text. ``numeric`` columns are right-aligned; rows after the first ``shown`` are collapsed.

    A terminal leaves out the last ``extra`` columns of figures where they do not fit.
    """

    title: str
    origin: str
    head: Sequence[str]
    numeric: Sequence[bool]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()
    shown: int = 12
    note: str = ""
    extra: int = 0


@dataclass(frozen=True)
class Note:
    """A short text in place of a figure."""

    title: str
    text: str


@dataclass(frozen=True)
class Section:
    """A heading, an introduction, and the items below it."""

    title: str
    intro: str
    items: Sequence[Figure | Table | Note]


@dataclass(frozen=True)
class Tile:
    """One value in large type, with its label and a value to compare with."""

    label: str
    value: str
    beside: str = ""
    warning: bool = False


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    origin: str
    headline: str
    about: str
    warnings: Sequence[str]
    tiles: Sequence[Tile]
    sections: Sequence[Section]


def render(page: Page) -> str:
    """Render the page as HTML."""
    body = "\n".join(
        [
            _header(page),
            *(_section(section) for section in page.sections),
        ]
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(page.title)}</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def _header(page: Page) -> str:
    warnings = "".join(f'<p class="warning">{escape(warning)}</p>' for warning in page.warnings)
    tiles = "".join(
        f'<div class="tile{" bad" if tile.warning else ""}"><dt>{escape(tile.label)}</dt>'
        f"<dd>{escape(tile.value)}<small>{escape(tile.beside)}</small></dd></div>"
        for tile in page.tiles
    )
    return (
        f'<header><p class="about">{escape(page.about)} {_tag(page.origin)}</p>'
        f"<h1>{escape(page.headline)}</h1>{warnings}"
        + (f'<dl class="tiles">{tiles}</dl>' if tiles else "")
        + "</header>"
    )


def _section(section: Section) -> str:
    cards: list[str] = []
    for is_notes, group in groupby(section.items, key=lambda item: isinstance(item, Note)):
        if is_notes:
            cards.append(_notes(item for item in group if isinstance(item, Note)))
        else:
            cards += map(render_item, group)
    items = "\n".join(cards)
    intro = f'<p class="intro">{escape(section.intro)}</p>' if section.intro else ""
    return f'<section><h2>{escape(section.title)}</h2>{intro}\n<div class="grid">\n{items}\n</div></section>'


def render_item(item: Figure | Table | Note) -> str:
    """Render one item as HTML, whose style sheet is ``page.css``, or that of the server's pages."""
    if isinstance(item, Note):
        return _notes([item])
    note = f'<p class="note">{escape(item.note)}</p>' if item.note else ""
    heading = f"<h3>{escape(item.title)} {_tag(item.origin)}</h3>"
    if isinstance(item, Table):
        return f'<div class="card wide">{heading}{_table(item)}{note}</div>'
    return (
        f'<figure class="card{" wide" if item.wide else ""}"><figcaption>{heading}</figcaption>'
        f'<div data-figure="{escape(item.key)}">{_drawings(item)}</div>'
        f"{note}</figure>"
    )


def _notes(notes: Iterable[Note]) -> str:
    """One card of notes."""
    text = "".join(f"<h3>{escape(note.title)}</h3><p>{escape(note.text)}</p>" for note in notes)
    return f'<div class="card wide empty">{text}</div>'


def _drawings(item: Figure) -> str:
    """The legend of a figure, and its drawings for a large and a small screen, of which one is shown."""
    names = "".join(
        f'<li><svg viewBox="0 0 14 4"><rect width="14" height="4" rx="2" fill="{colour}"/></svg>{escape(name)}</li>'
        for name, colour in legend(item.chart).items()
    )
    large = draw(item.chart, _WIDE if item.wide else _HALF, item.height)
    small = draw(item.chart, _PHONE, min(item.height, 300))
    drawn = (
        f'<div role="img" aria-label="{escape(item.title)}">'
        f'<div class="large">{large}</div><div class="small">{small}</div></div>'
    )
    return (f'<ul class="legend">{names}</ul>' if names else "") + drawn


def _table(table: Table) -> str:
    head = "".join(
        _cell("th" if text else "td", text, number) for text, number in zip(table.head, table.numeric, strict=True)
    )
    lines = [
        f"<tr{' class=chosen' if index in table.marked else ''}>"
        + "".join(
            _cell("td", text, number, label) for text, number, label in zip(row, table.numeric, table.head, strict=True)
        )
        + "</tr>"
        for index, row in enumerate(table.rows[:ROWS])
    ]
    first, rest = lines[: table.shown], lines[table.shown :]
    text = _rows(head, first) if first else ""
    if rest:
        more = f"{len(rest)} more" if first else f"Show {len(rest)} rows"
        text += f"<details><summary>{more}</summary>{_rows(head, rest)}</details>"
    if len(table.rows) > ROWS:
        text += f"<p>The record has another {len(table.rows) - ROWS:,} rows.</p>"
    return text


def _rows(head: str, lines: Iterable[str]) -> str:
    body = "\n".join(lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _cell(name: str, text: str, number: bool, label: str = "") -> str:
    """A cell; ``label``: the name of its column, which a small screen shows beside it."""
    named = f' data-label="{escape(label)}"' if label else ""
    return f"<{name}{' class=number' if number else ''}{named}>{escape(text)}</{name}>"


def _tag(origin: str) -> str:
    return f'<span class="origin">{escape(origin)}</span>'


def _asset(name: str) -> str:
    return (files("wattune.reporting") / name).read_text(encoding="utf-8")
