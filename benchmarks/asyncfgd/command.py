"""`python -m benchmarks asyncfgd PART [...]`: one part of the benchmark of training without a backward pass."""

from __future__ import annotations

import importlib
import sys

PARTS = {
    "accuracy": "benchmarks.asyncfgd.accuracy",
    "exact_end": "benchmarks.asyncfgd.exact_end",
    "feasibility": "benchmarks.asyncfgd.feasibility",
    "memory": "benchmarks.asyncfgd.memory",
    "speed": "benchmarks.asyncfgd.speed",
    "staleness": "benchmarks.asyncfgd.staleness",
}
"""Name -> module, whose ``main`` measures and stores the results."""

WITH_ARGUMENTS = ("accuracy", "speed")
"""Parts whose ``main`` takes the arguments after the name; the others take none."""


def main(arguments: list[str]) -> None:
    """Run the named part."""
    if not arguments or arguments[0] not in PARTS:
        sys.exit(f"which part? allowed: {', '.join(PARTS)}")
    name, *rest = arguments
    main_of_part = importlib.import_module(PARTS[name]).main
    if name in WITH_ARGUMENTS:
        main_of_part(rest)
    elif rest:
        sys.exit(f"{name} takes no arguments: {' '.join(rest)}")
    else:
        main_of_part()
