"""Options of the form name=value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wattune.errors import InputError


def step_seconds(text: str) -> dict[int, float]:
    """Batch size -> seconds of a step, from "8=0.021,16=0.034". Raises: InputError."""
    found: dict[int, float] = {}
    for pair in text.split(","):
        size, equals, seconds = (part.strip() for part in pair.partition("="))
        value = _seconds(seconds)
        if not equals or not (size.isdecimal() and size.isascii() and 0 < int(size) < 10**9) or value is None:
            raise InputError("--step-times", value=pair, allowed="batch size=seconds, such as 8=0.021,16=0.034")
        if int(size) in found:
            raise InputError("--step-times has a batch size twice", value=size, allowed="each once")
        found[int(size)] = value
    return found


def values(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """Name -> value, from "name=value" each. Raises: InputError."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not name or not equals or name in found:
            raise InputError(option, value=pair, allowed="column=value, each column once")
        found[name] = value
    return found


def _seconds(text: str) -> float | None:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
