"""One table of units: what may stand behind a number that a user writes, and what it is in the unit of the code."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final, Literal, NamedTuple

from wattune.errors import InputError

Unit = Literal["W", "s", "J", "MHz", "B", "°C", "share"]
"""Unit that a text is converted to, once. A number without a suffix is in that unit already."""


class Quantity(NamedTuple):
    """``factors``: suffix -> factor to the unit. ``words``: name of the quantity in errors; ``such_as``: examples."""

    words: str
    such_as: str
    factors: dict[str, str]
    folds_case: bool = False


_MEMORY: Final = {
    **{letter: f"1e{3 * power}" for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}i": str(1024**power) for power, letter in enumerate("kmgt", 1)},
    "": "1",
}

QUANTITIES: Final[dict[Unit, Quantity]] = {
    # Not MW, a million watts, which would be read as a thousandth of a watt.
    "W": Quantity("watts", "4.5W, 4500mW or 5A@5V", {"uW": "1e-6", "mW": "1e-3", "W": "1", "w": "1", "kW": "1e3"}),
    "s": Quantity(
        "a time",
        "200ms, 90s, 30min, 8h or 90d",
        {"us": "1e-6", "ms": "1e-3", "s": "1", "min": "60", "h": "3600", "d": "86400", "w": "604800"},
    ),
    "J": Quantity(
        "an energy", "200kJ, 50Wh or 1.2kWh", {"J": "1", "kJ": "1e3", "MJ": "1e6", "Wh": "3600", "kWh": "3.6e6"}
    ),
    "MHz": Quantity("a clock", "612MHz or 0.612GHz", {"hz": "1e-6", "khz": "1e-3", "mhz": "1", "ghz": "1e3"}, True),
    "B": Quantity(
        "an amount of memory",
        "64MB, 1.5GB or 512MiB",
        {f"{prefix}{b}": factor for prefix, factor in _MEMORY.items() for b in ("", "b")},
        True,
    ),
    "°C": Quantity("a temperature", "80C", {"c": "1", "°c": "1"}, True),
    "share": Quantity("a share", "5% or 0.05", {"%": "0.01"}),
}
"""Every suffix that wattune reads."""

_NUMBER: Final = re.compile(
    r"(?P<number>(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?)\s*(?P<suffix>\D*)", re.ASCII | re.IGNORECASE
)


def read(text: str, unit: Unit) -> float | None:
    """The number in ``unit`` from a text such as "4500mW"; None if it is not a finite one of 0 or more."""
    amperes, at, volts = text.partition("@")
    if unit == "W" and at:  # as labels of supplies have it: 5A@5V
        factors = _exact(amperes, {"A": "1"}), _exact(volts, {"V": "1"})
        value = None if factors[0] is None or factors[1] is None else factors[0] * factors[1]
    else:
        quantity = QUANTITIES[unit]
        value = _exact(text.lower() if quantity.folds_case else text, {"": "1", **quantity.factors})
    return float(value) if value is not None and float(value) < math.inf else None


def parse(
    text: str, unit: Unit, *, name: str, zero: bool = False, bare: bool = True, below: float = math.inf, also: str = ""
) -> float:
    """The number in ``unit`` from a text such as "4500mW".

    ``name``: what errors call it; ``zero``: it may be 0; ``bare``: it may stand without a suffix; ``below``: what it
    has to be less than; ``also``: what else the caller takes. Raises: InputError in one line.
    """
    quantity, value = QUANTITIES[unit], read(text, unit)
    is_bare = text.strip()[-1:].isdecimal() or text.strip().endswith(".")
    if value is not None and is_bare and unit == "share" and value > 1:
        spellings = f"{value:g}%" + (f" or {value / 100:g}" if value <= 100 else "")
        raise InputError(name, value=text, allowed=f"{spellings}, since a number above 1 needs the %")
    if value is None or not (0 < value < below or (zero and value == 0)) or (is_bare and not bare):
        least, most = "of 0 or more" if zero else "above zero", "" if below == math.inf else f" and below {below:g}"
        raise InputError(name, value=text, allowed=f"{quantity.words} {least}{most} such as {quantity.such_as}{also}")
    return value


def _exact(text: str, factors: dict[str, str]) -> Decimal | None:
    # A product of floats would make 3.3000000000000003 W of 3300mW, which no record of 3.3 W equals.
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match["suffix"] not in factors:
        return None
    return Decimal(match["number"]) * Decimal(factors[match["suffix"]])
