"""A fake board in virtual time: a ladder of clocks, a load, a sensor, and its exact power."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from benchmarks.guard.loads import Load, Phase

TICK_S = 0.01
TICKS_OF_SECOND = 100
STEP_TICKS = 5


class Ladder(NamedTuple):
    """The clocks of a board, and its power: at rest, and at the highest clock under full load."""

    name: str
    clocks_mhz: tuple[float, ...]
    rest_w: float
    full_w: float

    @property
    def shares(self) -> list[float]:
        """Power above rest at each clock, as a share of the highest: a fifth whatever the clock, the rest by clock and
        voltage."""
        clocks = [mhz / self.clocks_mhz[-1] for mhz in self.clocks_mhz]
        return [0.2 + 0.8 * clock * (0.65 + 0.35 * clock) ** 2 for clock in clocks]

    @property
    def rates(self) -> list[float]:
        """Speed at each clock: 15 % of the time is the memory's."""
        return [1 / (0.85 * self.clocks_mhz[-1] / mhz + 0.15) for mhz in self.clocks_mhz]


ORIN = Ladder("Orin", (306, 408, 510, 612, 714, 816, 918), 4.5, 15.0)
TX2_MHZ = (114.75, 216.75, 318.75, 420.75, 522.75, 624.75, 726.75, 854.25, 930.75, 1032.75, 1122, 1236.75, 1300.5)
TX2 = Ladder("TX2", TX2_MHZ, 3.0, 13.0)
LADDERS = (ORIN, TX2)


class FakeSensor(NamedTuple):
    """Ticks that a value averages over, ticks between two values, ticks of their age, and relative noise."""

    name: str
    average: int
    period: int
    lag: int
    noise: float = 0.005

    @property
    def averaging_s(self) -> float:
        """0 for an instantaneous value."""
        return 0.0 if self.average == 1 else self.average * TICK_S

    @property
    def period_s(self) -> float:
        """0 for a value that is always fresh."""
        return 0.0 if self.period == 1 else self.period * TICK_S

    @property
    def read_ticks(self) -> int:
        """Ticks between two readings of a guard, which reads twice as often where the sensor does not average."""
        return 5 if self.average == 1 else 10

    @property
    def lag_s(self) -> float:
        """Age of a fresh value."""
        return self.lag * TICK_S


SENSORS = (
    FakeSensor("Orin 7 ms", 1, 1, 0),
    FakeSensor("Nano 0.42 s", 42, 42, 0),
    FakeSensor("lag 0.5 s", 10, 10, 50),
    FakeSensor("1 Hz", 100, 100, 0),
)

Rule = Callable[[float, "float | None"], int]
"""The setting from now on, by the time and a reading, or None between two readings."""


class Trace(NamedTuple):
    """What happened: exact power of each tick, work done after each, and changes of the setting."""

    powers_w: list[float]
    work_s: list[float]
    settings: list[int]

    def changes(self, from_s: float) -> int:
        """Changes of the setting after a time."""
        return sum(one != other for one, other in pairwise(self.settings[round(from_s / TICK_S) :]))

    def means_w(self, from_s: float) -> list[float]:
        """The exact mean over each second that ends after a time."""
        sums = [0.0]
        for power_w in self.powers_w:
            sums.append(sums[-1] + power_w)
        first = round(from_s / TICK_S)
        return [(sums[i] - sums[i - TICKS_OF_SECOND]) / TICKS_OF_SECOND for i in range(first, len(sums))]


def run(ladder: Ladder, load: Load, sensor: FakeSensor, rule: Rule, seconds: float, *, seed: int = 0) -> Trace:
    """Run a load under a rule; what the rule sets is effective a tick later."""
    noise, dynamic_w = random.Random(seed), ladder.full_w - ladder.rest_w
    coming = load(random.Random(seed + 1))
    shares, rates = ladder.shares, ladder.rates
    phase, left = Phase(0.0, 0.0), 0.0
    powers_w, work, settings = [], [], []
    setting = wanted = len(rates) - 1
    done_s = value_w = 0.0
    for tick in range(round(seconds / TICK_S)):
        while left <= 1e-9:
            phase = next(coming)
            left += phase.amount
        power_w = ladder.rest_w + phase.draw * dynamic_w * shares[setting]
        left -= TICK_S * rates[setting] if phase.is_work else TICK_S
        if phase.is_work or phase.draw > 0.3:
            done_s += TICK_S * rates[setting] * (1.0 if phase.is_work else phase.draw)
        powers_w.append(power_w)
        work.append(done_s)
        settings.append(setting)
        setting = wanted
        end = tick + 1 - sensor.lag
        if (tick + 1) % sensor.period == 0 and end > 0:
            window = powers_w[max(0, end - sensor.average) : end]
            value_w = sum(window) / len(window) * (1 + sensor.noise * noise.gauss(0, 1))
        if (tick + 1) % STEP_TICKS == 0 and value_w:
            time_s = (tick + 1) * TICK_S
            wanted = rule(time_s, value_w if (tick + 1) % sensor.read_ticks == 0 else None)
    return Trace(powers_w, work, settings)
