"""A battery with a reserve, and the panel that charges it, as the user names them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final, Literal, get_args

from wattune.budgets.clear_sky import Place, clear_sky_share
from wattune.errors import InputError

ReserveMode = Literal["strict", "soon"]
"""Sun that the night budget counts on: next to none for a day, or the light of a usual cloud cover."""

SIMULATED_DAY: Final = datetime(2025, 3, 20, 6, tzinfo=timezone.utc)
"""Local solar time at which time begins on a simulated board: sunrise at the equinox."""


@dataclass(frozen=True)
class Battery:
    """A battery of ``capacity_j`` joules, of which the share ``reserve`` is not to be used.

    ``charge``: where its charge is read, the name of a gauge of the kernel such as "BAT0", a file with one number, or a
    callable from seconds of the run to a share from 0 to 1; None: simulated, beside a simulated board.
    ``panel_w``: rated power of a horizontal panel ``at`` a place (latitude and longitude in degrees). ``mode``: sun
    that the night budget counts on, see ``wattune.budgets.battery_rule``. ``begin``: the moment at which time begins on
    a simulated board; None: at sunrise of an equinox. ``suspend``: the board is suspended in pauses.

    Raises: InputError.
    """

    capacity_j: float
    reserve: float = 0.2
    charge: str | Path | Callable[[float], float | None] | None = None
    panel_w: float | None = None
    at: Place | tuple[float, float] | None = None
    mode: ReserveMode = "strict"
    begin: datetime | None = None
    suspend: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.at, tuple):
            object.__setattr__(self, "at", Place(*self.at))
        if not _is_number(self.capacity_j) or not 0 < self.capacity_j < math.inf:
            raise InputError("the capacity of the battery", value=self.capacity_j, allowed="joules above zero")
        if not _is_number(self.reserve) or not 0 <= self.reserve < 1:
            raise InputError("the reserve", value=self.reserve, allowed="a share of the battery, 0 or more and below 1")
        if self.panel_w is not None and not (_is_number(self.panel_w) and 0 < self.panel_w < math.inf):
            raise InputError("the power of the panel", value=self.panel_w, allowed="watts above zero")
        if (self.panel_w is None) != (self.at is None):
            raise InputError("a panel and its place", allowed="both or neither: --panel 20W --at 52.52,13.40")
        if self.mode not in get_args(ReserveMode):
            raise InputError("the reserve mode", value=self.mode, allowed=", ".join(get_args(ReserveMode)))
        if self.begin is not None and self.begin.tzinfo is None:
            raise InputError("the beginning", value=str(self.begin), allowed="a moment with a time zone")

    @property
    def reserve_j(self) -> float:
        """Joules of the reserve."""
        return self.reserve * self.capacity_j

    def simulated_begin(self) -> datetime:
        """The moment at which time begins on a simulated board."""
        if self.begin is not None:
            return self.begin
        degrees = self.at.longitude if isinstance(self.at, Place) else 0.0
        return SIMULATED_DAY - timedelta(hours=degrees / 15)

    def sky_w(self, moment: datetime) -> float:
        """Watts of the panel under a clear sky; 0 without a panel."""
        if self.panel_w is None or not isinstance(self.at, Place):
            return 0.0
        return self.panel_w * clear_sky_share(self.at, moment)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
