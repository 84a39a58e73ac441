"""Numbers with a unit, as written on the command line."""

import argparse
from typing import Callable, Dict, Optional, Tuple

MHZ = {"MHz": 1.0, "kHz": 1e-3, "GHz": 1e3, "Hz": 1e-6}
WATTS = {"W": 1.0, "w": 1.0, "mW": 1e-3, "kW": 1e3}
CELSIUS = {"C": 1.0}
SECONDS = {"s": 1.0, "ms": 1e-3}
SIDES = {"module": "module", "sensor": "module", "supply": "supply"}
"""Words behind the @ of a cap, as `wattune` takes them, and the side of each in a record."""


def quantity(units: Dict[str, float]) -> Callable[[str], float]:
    """A parser of numbers above zero in one of the units; a number without a unit is in the first."""
    first = next(iter(units))

    def parse(text: str) -> float:
        number, factor = text.strip(), 1.0
        for unit in sorted(units, key=len, reverse=True):
            # Not MW, a million watts, as mW.
            if number.endswith(unit) or (number.lower().endswith(unit.lower()) and units is not WATTS):
                number, factor = number[: -len(unit)], units[unit]
                break
        try:
            value = float(number) * factor
        except ValueError:
            value = -1.0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError("{!r} is not a number of {}".format(text, first))
        return value

    return parse


def window(text: str) -> float:
    """Seconds above zero, or 0 from "peak"."""
    return 0.0 if text.strip().lower() == "peak" else quantity(SECONDS)(text)


def _watts(text: str) -> float:
    """Watts, also as labels of supplies have them: 5A@5V."""
    amperes, at, volts = text.partition("@")
    return quantity({"A": 1.0})(amperes) * quantity({"V": 1.0})(volts) if at else quantity(WATTS)(text)


def limit(text: str) -> Tuple[Optional[float], str]:
    """Watts, and the side where they apply: "10W", "5A@5V", "10W@sensor", "12W@supply", or "none"."""
    watts, at, side = text.rpartition("@")
    if not at or side.strip().upper().endswith("V"):
        watts, at, side = text, "", ""
    if text.startswith("watch:") or watts.lower().endswith(".csv"):
        raise argparse.ArgumentTypeError("{!r}: a cap that changes needs `wattune guard`".format(text))
    if text.strip().lower() == "none":
        return None, "module"
    if at and side.strip().lower() not in SIDES:
        raise argparse.ArgumentTypeError("{!r}: only sensor or supply may follow the @".format(text))
    return _watts(watts), SIDES.get(side.strip().lower(), "module")
