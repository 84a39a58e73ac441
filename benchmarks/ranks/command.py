"""`python -m benchmarks ranks [division|killed ...]`: both without names."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.ranks import division, killed
from wattune.errors import InputError

PARTS = {"division": division.main, "killed": killed.main}


def main(arguments: Sequence[str] = ()) -> None:
    """Run the named parts. Raises: InputError."""
    for name in arguments:
        if name not in PARTS:
            raise InputError("part of the benchmark", value=name, allowed=", ".join(PARTS))
    for name in arguments or PARTS:
        PARTS[name]()
