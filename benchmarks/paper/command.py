"""`python -m benchmarks paper [PART ...]`: the evaluation of arXiv 2502.18323; without PART all but `measured`."""

from __future__ import annotations

import importlib
import sys

PARTS = ("calibration", "replay")
"""Parts that `make paper` runs, in this order."""

MEASURED = "measured"
"""Part that takes up to three hours and needs a folder of data."""


def main(arguments: list[str]) -> None:
    """Run the named parts."""
    if arguments and arguments[0] == MEASURED:
        importlib.import_module("benchmarks.paper.measured").main(arguments[1:])
        return
    if unknown := [name for name in arguments if name not in PARTS]:
        sys.exit(f"unknown part: {', '.join(unknown)}; allowed: {', '.join((*PARTS, MEASURED))}")
    for name in arguments or PARTS:
        importlib.import_module(f"benchmarks.paper.{name}").main([])
