"""The power cap: watts asked for, where they hold, and what that allows at the power sensor.

A cap is made once, where the user says it, and passed on whole. ``PowerCap.at_sensor`` is the only place that turns it
into the limit that readings are compared with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol, TypeGuard, get_args

from wattune import units
from wattune.errors import InputError
from wattune_agent.cap_level import WINDOW_S

CapSide = Literal["module", "supply"]
"""Side of a cap: the power sensor ("module"), or the terminals of the supply or the battery ("supply")."""

Over = Literal["device", "node", "job"]
"""Devices that a cap holds for together: each alone, those of one computer, or all of a job."""

OVER: Final[tuple[Over, ...]] = get_args(Over)

PEAK: Final = "peak"
"""Window of a cap that every single reading has to stay under."""

_SIDES: dict[str, CapSide] = {"module": "module", "sensor": "module", "supply": "supply"}


class SupplyLosses(Protocol):
    """Conversion between the sensor and the supply's terminals, as ``wattune.records.Supply`` has it."""

    def at_supply(self, module_w: float) -> float:
        """Watts at the terminals while the sensor reads ``module_w``."""
        ...

    def at_module(self, supply_w: float) -> float:
        """Watts at the sensor while the terminals give ``supply_w``."""
        ...


@dataclass(frozen=True)
class SensorLimit:
    """The limit that readings of the power sensor are compared with.

    ``limit_w``: watts at the sensor (None: no cap), of which ``margin_w`` stay unused; ``max_temp_c``: second limit, on
    the board's highest temperature in degrees Celsius (None: no limit). ``window_s``: seconds over which the mean power
    has to stay under the limit; None: every reading has to.
    """

    limit_w: float | None = None
    margin_w: float = 0.0
    max_temp_c: float | None = None
    window_s: float | None = None

    @property
    def strict(self) -> SensorLimit:
        """The same limit with the margin taken off it: what profiling measures under."""
        return self if self.limit_w is None else replace(self, limit_w=self.limit_w - self.margin_w, margin_w=0.0)

    def allows(self, power_w: float) -> bool:
        """True if a power of ``power_w`` watts plus the margin stays under the cap."""
        return self.limit_w is None or power_w + self.margin_w <= self.limit_w


NO_LIMIT: Final = SensorLimit()
"""The limit without a cap: every reading is allowed."""


@dataclass(frozen=True)
class PowerCap:
    """A power cap as it was asked for.

    ``limit_w``: watts (None: no cap); ``side``: where they hold, see ``CapSide``; ``margin_w``: watts of the cap that
    stay unused; ``max_temp_c``: second limit, on the board's highest temperature in degrees Celsius (None: no limit).
    ``window``: seconds over which the mean power has to stay under the cap; "peak": every reading has to; default
    (None): ``WINDOW_S``, or the time that the sensor averages over if that is longer.

    Raises: InputError for a cap that is not a positive number of watts, an unknown side, a margin that is negative, not
    a number or not less than the cap, a temperature that is not a number, and a window of another kind.
    """

    limit_w: float | None = None
    side: CapSide = "module"
    margin_w: float = 0.0
    max_temp_c: float | None = None
    window: float | Literal["peak"] | None = None

    def __post_init__(self) -> None:
        if self.limit_w is not None and not (_is_number(self.limit_w) and self.limit_w > 0):
            raise InputError("cap_w", value=self.limit_w, allowed="a positive number of watts, or none")
        if self.side not in get_args(CapSide):
            raise InputError("cap_side", value=self.side, allowed=", ".join(get_args(CapSide)))
        if not (_is_number(self.margin_w) and self.margin_w >= 0):
            raise InputError("margin_w", value=self.margin_w, allowed="a number of watts, 0 or more")
        if self.max_temp_c is not None and not _is_number(self.max_temp_c):
            raise InputError("max_temp_c", value=self.max_temp_c, allowed="degrees Celsius, or none")
        is_time = _is_number(self.window) and self.window > 0
        if not is_time and self.window not in (None, PEAK):
            raise InputError("window", value=self.window, allowed='a positive number of seconds, "peak", or none')

    @classmethod
    def of(cls, value: PowerCap | float | str | None) -> PowerCap:
        """The cap that is meant: a cap, watts at the sensor, a text such as "10W" or "12W@supply", or None for no cap.

        Raises: InputError.
        """
        if isinstance(value, PowerCap):
            return value
        return cls.parse(value) if isinstance(value, str) else cls(value)

    @classmethod
    def parse(cls, text: str, *, name: str = "cap") -> PowerCap:
        """A cap from "4.5W", "4500mW", "5A@5V", "10W@sensor", "12W@supply" or "none"; ``name`` is what errors call it.

        Raises: InputError.
        """
        if text.strip().lower() == "none":
            return cls()
        watts, at, word = text.rpartition("@")
        side = parse_side(word) if at else None
        limit_w = units.read(text if side is None else watts, "W")
        if not limit_w:
            raise InputError(
                name,
                value=text,
                allowed="watts above zero such as 4.5W, 4500mW or 5A@5V, optionally with @sensor or @supply, or none",
            )
        return cls(limit_w, side or "module")

    def at_sensor(self, supply: SupplyLosses | None, averaging_s: float | None) -> SensorLimit:
        """The limit that this cap sets at the power sensor; ``supply`` is what lies between it and the terminals.

        ``averaging_s``: seconds that one reading of the sensor averages over, None if that is not known.

        At the supply that is ``limit_w * efficiency - other_w``, so that (module + other) / efficiency is the cap.

        Raises: InputError for a cap at a supply that is not known, one that the rest of the board uses up, a margin
        that is not less than the limit, and a window that is shorter than the sensor's own.
        """
        limit_w = self.limit_w
        if limit_w is not None and self.side == "supply":
            if supply is None:
                raise InputError(
                    "a cap at the supply needs the losses between the supply and the sensor, which are unknown",
                    hint="give the cap at the sensor, or read a Jetson or CPU by a meter at the supply (--meter)",
                )
            left_w = supply.at_module(limit_w)
            if left_w <= 0:
                raise InputError(
                    "the cap at the supply leaves nothing for the module",
                    value=f"{limit_w:g} W",
                    allowed=f"more than {supply.at_supply(0.0):.4g} W",
                )
            limit_w = left_w
        if limit_w is not None and self.margin_w >= limit_w:
            raise InputError("margin_w", value=self.margin_w, allowed=f"less than the cap of {limit_w:g} W")
        return SensorLimit(limit_w, self.margin_w, self.max_temp_c, self._window_s(averaging_s or 0.0))

    def _window_s(self, averaging_s: float) -> float | None:
        """Seconds of the window at a sensor that averages over ``averaging_s``; None if every reading counts."""
        if self.window is None:
            return max(WINDOW_S, averaging_s)
        if self.window == PEAK:
            return None
        if self.window < averaging_s:
            raise InputError(
                "the cap's window",
                value=f"{self.window:g} s",
                allowed=f"{averaging_s:g} s or more, the time that this sensor averages over; or peak",
            )
        return self.window

    @property
    def supply_w(self) -> float | None:
        """The cap at the supply as asked for, in watts; None if the cap holds at the sensor, or there is none."""
        return self.limit_w if self.side == "supply" else None

    def __str__(self) -> str:
        if self.limit_w is None:
            return "no cap"
        return f"{self.limit_w:g} W" + (" at the supply" if self.side == "supply" else "")


def parse_side(text: str) -> CapSide | None:
    """The side of a cap from "sensor", "module" or "supply"; None for any other text."""
    return _SIDES.get(text.strip().lower())


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
