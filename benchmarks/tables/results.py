"""What the tables share: reading a result, saying when it was measured, and a table in Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.timing import RESULTS

_READ: list[str] = []


def read(name: str) -> dict[str, Any]:
    """The results of one benchmark."""
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    _READ.append(name)
    return data


def with_moment(text: Callable[[], str]) -> str:
    """A text about results, and the commits and dates at which the results that it reads were measured."""
    _READ.clear()
    written = text()
    names: dict[str, list[str]] = {}
    for name in dict.fromkeys(_READ):
        names.setdefault(moment(read(name)["measured_at"]), []).append(name)
    if len(names) == 1:
        return f"{written}\nMeasured at {next(iter(names))}.\n"
    each = "; ".join(f"{', '.join(own)} at {when}" for when, own in names.items())
    return f"{written}\nMeasured: {each}.\n"


def moment(where: dict[str, Any]) -> str:
    """A commit and its date; of results whose parts were measured one by one, for each part."""
    if "commit" not in where:
        parts: dict[str, list[str]] = {}
        for part, one in where.items():
            parts.setdefault(moment(one), []).append(part)
        if len(parts) == 1:
            return next(iter(parts))
        return " and ".join(f"{when} ({', '.join(own)})" for when, own in parts.items())
    commit = where["commit"][:7] if where["commit"] else "no commit"
    return f"{commit}{' with changes' if where.get('dirty') else ''}, {where['date']}"


def table(heads: str, rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown; ``heads``: those of the columns, with ``|`` between them."""
    columns = heads.split("|")
    lines = [[head.strip() for head in columns], *([str(cell) for cell in row] for row in rows)]
    head, *body = ("|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in lines)
    return "\n".join([head, "|" + "---|" * len(columns), *body]) + "\n"


def ms(figures: dict[str, float]) -> str:
    """A median with its range, in milliseconds."""
    return f"{figures['median_s'] * 1e3:.2f} ms ({figures['min_s'] * 1e3:.2f} to {figures['max_s'] * 1e3:.2f})"


def percent(share: float) -> str:
    """A share of one, with one decimal."""
    return f"{100 * share:.1f}%"
