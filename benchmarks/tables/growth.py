"""How costs grow with the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.tables.results import read


def growth() -> str:
    """CPU time of the work, its exponents from a hundredth and a tenth of the work on, and what stays bounded."""
    data = read("growth")
    rows, week, day = {row["name"]: row for row in data["rows"]}, data["week"], data["day"]
    report = rows["a report of a training run"]
    lines = ["| | work | CPU seconds | exponent; from a tenth on |", "|---|---|---|---|"]
    for row in data["rows"]:
        lines.append(f"| {row['name']} | {row['works'][-1]:,} {row['unit']} | {_costs(row)} |")
    lines += [
        f"| training under a new cap each {3600 * week['hours'] / week['caps']:g} s | {week['caps']:,} caps, "
        f"{week['evaluations']:,} evaluations | {_costs(week)} |",
        f"| `wattune guard`, a new cap each 4 s | 24 h, {day['readings']:,} readings | {_costs(day)} |",
        "",
        f"A report of 10,000 evaluations has {report['mb']:.2f} MB. Memory grows by {week['growth_mib']:.1f} MiB from "
        f"a tenth of the training to its end, and by {day['growth_mib']:.1f} MiB in a day of the guard. Its last hour "
        f"takes {day['last_hour_over_first']:.2f} times as long as its first.",
    ]
    return "\n".join(lines) + "\n"


def _costs(row: dict[str, Any]) -> str:
    return f"{row['cpu_s'][-1]:.2g} | {row['exponent']:.2f}; {row['exponent_last']:.2f}"


PARTS: dict[str, Callable[[], str]] = {"growth": growth}
