"""`python -m benchmarks asyncfgd PART [...]`: one part of what training without a backward pass is measured on."""

from __future__ import annotations

import importlib
import sys

PARTS = {
    "accuracy": "benchmarks.asyncfgd.accuracy",
    "feasibility": "benchmarks.asyncfgd.feasibility",
    "memory": "benchmarks.asyncfgd.memory",
    "speed": "benchmarks.asyncfgd.speed",
    "staleness": "benchmarks.asyncfgd.staleness",
}
"""Name -> module, whose ``main`` gets the arguments behind the name."""


def main(arguments: list[str]) -> None:
    """Run the part that is named."""
    if not arguments or arguments[0] not in PARTS:
        sys.exit(f"which part? allowed: {', '.join(PARTS)}")
    importlib.import_module(PARTS[arguments[0]]).main(arguments[1:])
