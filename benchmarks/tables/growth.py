"""How costs grow with the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.tables.results import read


def growth() -> str:
    """CPU time at x1, x10 and x100 of the work, its exponents, and what stays bounded."""
    data = read("growth")
    rows, week, day = {row["name"]: row for row in data["rows"]}, data["week"], data["day"]
    report, look = rows["a report of a training run"], rows["10,000 looks at a cap trace"]
    lines = ["| | work | CPU seconds | exponent; from x10 to x100 |", "|---|---|---|---|"]
    for row in data["rows"]:
        works = ", ".join(f"{work:,}" for work in row["works"])
        lines.append(f"| {row['name']} | {works} {row['unit']} | {_costs(row)} |")
    lines += [
        f"| training under a new cap each {3600 * week['hours'] / week['caps']:g} s | {week['caps']:,} caps, "
        f"{week['evaluations']:,} evaluations | {_costs(week)} |",
        f"| `wattune guard`, a new cap each 4 s | 24 h, {day['readings']:,} readings | {_costs(day)} |",
        "",
        f"A look at a cap trace of a day takes {look['look_us']:.1f} µs. A checkpoint takes "
        f"{rows['writing a checkpoint']['extra_over_state']:.2f} of its size as extra memory. A report of 10,000 "
        f"evaluations has {report['mb']:.2f} MB and {report['nodes']:,.0f} elements. From a tenth of the training to "
        f"its end, memory grows by {week['growth_mib']:.1f} MiB. The guard takes {day['reading_us']:.0f} µs a reading, "
        f"in its last hour {day['last_hour_over_first']:.2f} times as long as in its first, and "
        f"{day['growth_mib']:.1f} MiB more.",
    ]
    return "\n".join(lines) + "\n"


def _costs(row: dict[str, Any]) -> str:
    return f"{', '.join(f'{one:.2g}' for one in row['cpu_s'])} | {row['exponent']:.2f}; {row['exponent_last']:.2f}"


PARTS: dict[str, Callable[[], str]] = {"growth": growth}
