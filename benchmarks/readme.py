"""Fill the figures of the README and the docs from results/, each between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from benchmarks.tables import (
    boards,
    decisions,
    growth,
    job,
    moving_budgets,
    papers,
    script,
    server,
    session,
    several_devices,
)
from benchmarks.tables.results import with_moment

ROOT = Path(__file__).parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "algorithms.md",
    ROOT / "docs" / "any-program.md",
    ROOT / "docs" / "boards.md",
    ROOT / "docs" / "carbon.md",
    ROOT / "docs" / "fleet.md",
    ROOT / "docs" / "install.md",
    ROOT / "docs" / "calibration.md",
    ROOT / "docs" / "moving-caps.md",
    ROOT / "docs" / "own-loop.md",
    ROOT / "docs" / "results.md",
    ROOT / "docs" / "server.md",
    ROOT / "docs" / "several-devices.md",
    ROOT / "docs" / "works-with.md",
    ROOT / "docs" / "decisions" / "0013-one-level-under-a-cap.md",
    ROOT / "benchmarks" / "decisions" / "README.md",
    ROOT / "benchmarks" / "asyncfgd" / "README.md",
    ROOT / "benchmarks" / "paper" / "README.md",
    ROOT / "benchmarks" / "server" / "README.md",
)
MARK = re.compile(r"(<!-- (?P<name>\w+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)
PARTS: dict[str, Callable[[], str]] = {
    **boards.PARTS,
    **decisions.PARTS,
    **growth.PARTS,
    **job.PARTS,
    **moving_budgets.PARTS,
    **papers.PARTS,
    **script.PARTS,
    **server.PARTS,
    **session.PARTS,
    **several_devices.PARTS,
}


def filled(text: str) -> str:
    """``text`` with every marked part filled from the results, and when these were measured."""
    return MARK.sub(lambda match: match[1] + with_moment(PARTS[match["name"]]) + match[3], text)


def main() -> None:
    """Fill every page."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))
        print(f"{page.name} filled")
