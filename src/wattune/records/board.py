"""What a board says of itself beside its power: where a cap can be meant, and what happened to it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from wattune.records.base import NotNegative, Value, number

CapSide = Literal["module", "supply"]
"""Where a cap holds: at the power sensor ("module"), or at the terminals of the supply or the battery ("supply")."""


class Supply(Value):
    """What lies between the supply's terminals and the sensor.

    ``other_w``: power of everything on the board that the sensor does not see; ``efficiency``: share of what the
    terminals give that the regulators pass on.
    """

    other_w: NotNegative = 0.0
    efficiency: Annotated[float, BeforeValidator(number), Field(gt=0, le=1)] = 1.0

    def at_supply(self, module_w: float) -> float:
        """Power at the terminals while the sensor reads ``module_w``: (module + other) / efficiency."""
        return (module_w + self.other_w) / self.efficiency

    def at_module(self, supply_w: float) -> float:
        """What the sensor reads while the terminals give ``supply_w``; not above zero where nothing is left."""
        return supply_w * self.efficiency - self.other_w


class BoardEvent(Value):
    """Something that happened to the board while it was in use: another writer, throttling, a sensor that is stuck, ...

    ``time_s`` is the device's time, in a training record that of the training; ``kind`` is one or two words, ``text``
    a sentence.
    """

    time_s: NotNegative
    kind: str
    text: str
