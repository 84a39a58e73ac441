"""Where a cap is meant: at the power sensor, or at the terminals of the supply."""

from __future__ import annotations

from wattune.errors import InputError
from wattune.planning.selection import Limit
from wattune.records import CapSide, Supply

SIDES: dict[str, str] = {
    "module": "the power sensor",
    "supply": "the terminals of the supply or the battery",
}
"""Name of each side and where that is."""


def module_cap(cap_w: float | None, side: CapSide, supply: Supply | None) -> float | None:
    """What the sensor may read under a cap of ``cap_w`` watts on this side; None where there is no cap.

    At the supply that is ``cap_w * efficiency - other_w``, so that (module + other) / efficiency is the cap.

    Raises: InputError for an unknown side, a cap that is not a positive number, a supply that is not known, and where
    everything beside the module takes all of the cap.
    """
    Limit(cap_w)
    if side not in SIDES:
        raise InputError("cap_side", value=side, allowed=", ".join(SIDES))
    if cap_w is None or side == "module":
        return cap_w
    if supply is None:
        raise InputError(
            "a cap at the supply needs what lies between its terminals and the sensor, which is not known",
            hint="measure it with `wattune doctor --calibrate METER`, or give the cap at the module",
        )
    left_w = supply.at_module(cap_w)
    if left_w <= 0:
        raise InputError(
            "the cap at the supply leaves nothing to the module",
            value=f"{cap_w:g} W",
            allowed=f"more than {supply.at_supply(0.0):.4g} W",
        )
    return left_w
