"""The goal of a choice: what is least at the point that is chosen, and the bound that it has to meet.

Every aim is the time to the target multiplied by the price of one second at the point's power: 1 for the time, the
power for the energy, its square root for the energy-delay product (whose square root that is), and so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from wattune.errors import InputError

Aim = Literal["time", "energy", "energy-above-rest", "edp", "cost"]
"""Quantity that is least: the time to the target; the energy of the whole board; the energy above what the board draws
at rest; energy multiplied by time; the price of energy and time."""

LEAST_ABOVE_REST: Final = 0.01
"""Least share of a point's power that counts as above rest: readings of a quiet board scatter around its rest."""


@dataclass(frozen=True)
class Goal:
    """Purpose of a choice: the least ``aim`` among the points that stay under the cap.

    At most one bound: ``max_slowdown``, the share by which it may be slower than the fastest point; ``deadline_s``, the
    seconds within which the target has to be reached; ``energy_j``, the joules within which the time is least.
    ``price_per_kwh`` and ``price_per_hour``: of the aim "cost", in any one currency.

    Raises: InputError for an unknown aim, a bound that is not a positive number or does not go with the aim, more than
    one bound, and an aim "cost" without a price.
    """

    aim: Aim = "time"
    max_slowdown: float | None = None
    deadline_s: float | None = None
    energy_j: float | None = None
    price_per_kwh: float | None = None
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        if self.aim not in get_args(Aim):
            raise InputError("goal", value=self.aim, allowed=", ".join(get_args(Aim)))
        for name in ("max_slowdown", "deadline_s", "energy_j", "price_per_kwh", "price_per_hour"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                raise InputError(name, value=value, allowed="a positive number, or none")
        bounds = [name for name in ("max_slowdown", "deadline_s", "energy_j") if getattr(self, name) is not None]
        if len(bounds) > 1:
            raise InputError("the bounds of a goal", value=", ".join(bounds), allowed="one of them")
        if self.aim == "time" and bounds and bounds != ["energy_j"]:
            raise InputError(f"{bounds[0]} with the goal time", allowed="energy or another goal than time")
        if self.aim != "time" and self.energy_j is not None:
            raise InputError(
                f"energy_j with the goal {self.aim}", allowed="the goal time, the least within that energy"
            )
        if (self.aim == "cost") != (self.price_per_kwh is not None or self.price_per_hour is not None):
            raise InputError(
                "a price and the goal cost", allowed="both: the goal cost with a price per kWh, per hour, or of each"
            )

    @classmethod
    def of(cls, value: Goal | str) -> Goal:
        """The goal that is meant: a goal, or the name of an aim. Raises: InputError."""
        return value if isinstance(value, Goal) else cls(value)  # type: ignore[arg-type]  # refused if it is unknown

    @property
    def is_time(self) -> bool:
        """True if the fastest point is chosen, whatever it takes."""
        return self == TIME

    @property
    def has_bound(self) -> bool:
        """True if not every point will do, however little the aim is there."""
        return any(bound is not None for bound in (self.max_slowdown, self.deadline_s, self.energy_j))

    @property
    def exponent(self) -> int:
        """The power of ``price`` times time that the aim is."""
        return 2 if self.aim == "edp" else 1

    def price(self, power_w: Any, rest_w: float | None) -> Any:
        """The price of one second at this power (watts, a number or an array); the aim is least where time times it is.

        ``rest_w``: what the board draws at rest. Raises: InputError if that is needed and not known.
        """
        import numpy as np  # the command line parses goals, and starts faster without it

        if self.aim == "time":
            return np.ones_like(power_w)
        if self.aim == "energy":
            return power_w
        if self.aim == "edp":
            return np.sqrt(power_w)
        if self.aim == "cost":
            return (self.price_per_hour or 0.0) / 3600 + (self.price_per_kwh or 0.0) * power_w / 3.6e6
        if rest_w is None:
            raise InputError(
                "the power at rest is not known",
                value=self.aim,
                hint="profile for this goal, guided or full, or use the goal energy",
            )
        return np.maximum(power_w - rest_w, LEAST_ABOVE_REST * power_w)

    def order(
        self, seconds: float, power_w: float, rest_w: float | None, *, beside: tuple[float, float]
    ) -> tuple[bool, float]:
        """Sort key of a setting that takes ``seconds`` for some work, the smallest being the best: what is least among
        settings that keep a bound, else how far beyond it they are.

        ``beside``: seconds and watts, for the same work, of the setting that was chosen within the goal's bound.
        """
        beside_s, beside_w = beside
        if self.energy_j is not None and seconds * power_w > beside_s * beside_w:
            return True, seconds * power_w
        if (self.max_slowdown or self.deadline_s) is not None and seconds > beside_s:
            return True, seconds
        return False, seconds * float(self.price(power_w, rest_w))


TIME: Final = Goal()
"""The fastest point, whatever it takes: the goal unless another one is asked for."""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
