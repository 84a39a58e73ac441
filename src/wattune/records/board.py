"""A board's supply, and the events that happened to the board."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from wattune.records.base import NotNegative, Value, number


class Supply(Value):
    """Losses between the supply's terminals and the sensor.

    ``other_w``: power of all parts of the board that the sensor does not measure; ``efficiency``: share of the power at
    the terminals that the regulators pass on.
    """

    other_w: NotNegative = 0.0
    efficiency: Annotated[float, BeforeValidator(number), Field(gt=0, le=1)] = 1.0

    def at_supply(self, module_w: float) -> float:
        """Power at the terminals while the sensor reads ``module_w``: (module + other) / efficiency."""
        return (module_w + self.other_w) / self.efficiency

    def at_module(self, supply_w: float) -> float:
        """Power at the sensor while the terminals give ``supply_w``; zero or less if ``other_w`` uses all of it."""
        return supply_w * self.efficiency - self.other_w


class BoardEvent(Value):
    """An event on the board while it was in use: another writer, throttling, a stuck sensor, ...

    ``time_s`` is the device's time, in a training record the time since the start of the run; ``kind`` is one or two
    words, ``text`` a sentence.
    """

    time_s: NotNegative
    kind: str
    text: str
