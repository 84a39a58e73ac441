"""`python -m benchmarks ranks [division|shares|killed|overhead|losses ...]`: all without names; `recorded FOLDER`."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.ranks import division, killed, losses, overhead, recorded, shares
from wattune.errors import InputError

PARTS = {
    "division": division.main,
    "shares": shares.main,
    "killed": killed.main,
    "overhead": overhead.main,
    "losses": losses.main,
}


def main(arguments: Sequence[str] = ()) -> None:
    """Run the named parts. Raises: InputError."""
    if len(arguments) == 2 and arguments[0] == "recorded":
        recorded.main(arguments[1])
        return
    for name in arguments:
        if name not in PARTS:
            raise InputError("part of the benchmark", value=name, allowed=f"{', '.join(PARTS)}, or recorded FOLDER")
    for name in arguments or PARTS:
        PARTS[name]()
