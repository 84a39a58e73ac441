"""Results of the benchmarks, and figures in words."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.timing import RESULTS


def read(name: str) -> dict[str, Any]:
    """The results of one benchmark."""
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def comparison_table(rows: list[dict[str, Any]]) -> list[str]:
    """A comparison with other rules as a table."""
    lines = [
        "| | batch size | clock | time to target | energy | time relative to wattune |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        point = f"| {row['rule']} | {row['batch_size'] or '–'} | "
        if row["time_s"] is None:
            lines.append(f"{point}– | {row['why_not']} | | |")
            continue
        lines.append(
            f"{point}{row['clock_mhz']:g} MHz | {row['time_s']:.1f} ± {row['time_std_s']:.1f} s "
            f"| {row['energy_j']:.0f} ± {row['energy_std_j']:.0f} J | {row['speed_up']:.2f} |"
        )
    return lines


def ms(figures: dict[str, float]) -> str:
    """A median with its range, in milliseconds."""
    return f"{figures['median_s'] * 1e3:.2f} ms ({figures['min_s'] * 1e3:.2f} to {figures['max_s'] * 1e3:.2f})"


def percent(share: float) -> str:
    """A share of one, with one decimal."""
    return f"{100 * share:.1f}%"


def signed(share: float) -> str:
    """A share in percent with its sign."""
    return f"{100 * share:+.1f}%"
