"""HTML page with all results: sections, embedded figures, machine, versions and seeds."""

from __future__ import annotations

import base64
import html
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.paper import figures
from benchmarks.paper.sections import Grid, results, sections
from benchmarks.timing import machine

PAGE = Path("build") / "paper" / "paper.html"
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: 0.8rem 0; font-size: 0.88rem; }
th, td { text-align: left; padding: 0.25rem 0.7rem; border-bottom: 1px solid #8884; vertical-align: top; }
img { max-width: 100%; background: white; border-radius: 4px; }
footer { margin-top: 3rem; opacity: 0.75; font-size: 0.85rem; }
"""
LIBRARIES = ("wattune", "torch", "numpy", "scipy")


def main(_: list[str]) -> None:
    """Draw the figures and write the page."""
    data = results()
    figures.draw(data)
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(data), encoding="utf-8")
    print(f"{PAGE}: {PAGE.stat().st_size / 1000:.0f} kB")


def page(data: dict[str, dict[str, Any]]) -> str:
    """The page's text."""
    parts = []
    for section in sections(data):
        parts.append(f"<section><h2>{html.escape(section.title)}</h2>")
        parts += [f"<p>{html.escape(text)}</p>" for text in section.texts]
        parts += [_table(grid) for grid in section.tables]
        parts += [_image(name) for name in section.figures]
        parts.append("</section>")
    title = "Accelerated training on low-power edge devices, rebuilt"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><h1>{title}</h1>'
        "<p>The evaluation of arXiv 2502.18323 with wattune. Time and power are those of simulated boards "
        "throughout; where samples were measured, it is said.</p>"
        + "\n".join(parts)
        + f"<footer>{_made_with(data)}</footer></body></html>\n"
    )


def _table(grid: Grid) -> str:
    def row(texts: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"

    body = "".join(row(texts, "td") for texts in grid.rows)
    return f'<div class="scroll"><table>{row(grid.heads, "th")}{body}</table></div>'


def _image(name: str) -> str:
    coded = base64.b64encode((figures.FOLDER / f"{name}.png").read_bytes()).decode("ascii")
    return f'<p><img alt="{name}" src="data:image/png;base64,{coded}"></p>'


def _made_with(data: dict[str, dict[str, Any]]) -> str:
    here = machine()
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    seeds = "; ".join(
        f"{part}: seeds {', '.join(map(str, one['seeds']))}" for part, one in data.items() if "seeds" in one
    )
    page_text = f"Page made on {here['cores']} cores of {here['cpu']}, {platform.system()}, Python {here['python']}, "
    page_text += f"{versions}."
    machines = "; ".join(
        f"{part}: {one['machine']['cores']} cores of {one['machine']['cpu']}" for part, one in data.items()
    )
    return html.escape(f"{page_text} Parts: {machines}. {seeds}.")
