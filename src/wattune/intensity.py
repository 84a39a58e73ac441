"""Carbon intensity or price of grid energy over time, from a file."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

from wattune.errors import InputError
from wattune.known_columns import NO_VALUE
from wattune.tables import AS_KNOWN, Layout, number
from wattune.trace_file import read_trace

Unit = Literal["gco2_per_kwh", "price_per_kwh"]

JOULES_PER_KWH: Final = 3.6e6

CLEANEST, DIRTIEST = 2.0, 3000.0
"""Grams per kWh that the dirtiest hour of a grid is between: less are kilograms, more are milligrams or per MWh."""


class Stretch(NamedTuple):
    """A time, from ``from_s`` until ``until_s``."""

    from_s: float
    until_s: float

    @property
    def length_s(self) -> float:
        """Seconds of it."""
        return self.until_s - self.from_s


@dataclass(frozen=True)
class Intensity:
    """Grams of CO2 or money per kWh over time: each of ``values`` holds from its time until the next one.

    ``times_s``: ascending, the first is 0; the last value holds as long as the one before it. ``begin``: the moment of
    the first one, None if times are seconds of a run. Prices may be negative. ``note``: what was assumed of its file.

    Raises: InputError for times that do not ascend from 0, and values that are not numbers or negative carbon.
    """

    times_s: tuple[float, ...]
    values: tuple[float, ...]
    unit: Unit = "gco2_per_kwh"
    begin: datetime | None = None
    name: str = "the intensity"
    note: str | None = None

    def __post_init__(self) -> None:
        if len(self.times_s) != len(self.values) or len(self.times_s) < 2 or self.times_s[0] != 0:
            raise InputError(self.name, allowed="two values or more, each with its time, the first at 0 s")
        for earlier_s, later_s in pairwise(self.times_s):
            if not earlier_s < later_s < math.inf:
                raise InputError(f"a time of {self.name}", value=later_s, allowed=f"more than {earlier_s:g} s")
        for value in self.values:
            if not math.isfinite(value) or (value < 0 and self.unit == "gco2_per_kwh"):
                raise InputError(f"{self.unit} in {self.name}", value=value, allowed="a number, carbon not below 0")

    @classmethod
    def load(cls, path: str | Path, unit: Unit, layout: Layout = AS_KNOWN) -> Intensity:
        """Read a table of times and values, see ``read_trace``. Last rows without a value are left out.

        Raises: InputError in one line.
        """
        trace = read_trace(path, unit, layout)
        rows, notes = list(trace.rows), [trace.note] if trace.note else []
        while len(rows) > 1 and rows[-1].cell.lower() in NO_VALUE:
            rows.pop()
        if left_out := len(trace.rows) - len(rows):
            notes.append(f"rows without a value at the end of {path} are left out: {left_out}")
        values = tuple(trace.factor * number(row.where, row.cell) for row in rows)
        if unit == "gco2_per_kwh" and not CLEANEST < max(values) < DIRTIEST:
            notes.append(f"no grid has {max(values):g} g/kWh, the most in {path}: are these g?")
        return cls(trace.times_s[: len(rows)], values, unit, trace.begin, str(path), "; ".join(notes) or None)

    @property
    def end_s(self) -> float:
        """Seconds from the first value to the end of the last one."""
        return 2 * self.times_s[-1] - self.times_s[-2]

    def pieces(self, from_s: float, until_s: float) -> Iterator[tuple[Stretch, float]]:
        """The values between two times, each with its own; the last one also holds after its end."""
        index = max(0, bisect_right(self.times_s, from_s) - 1)
        while from_s < until_s:
            next_s = self.times_s[index + 1] if index + 1 < len(self.times_s) else math.inf
            yield Stretch(from_s, min(next_s, until_s)), self.values[index]
            from_s, index = next_s, index + 1

    def integral(self, from_s: float, until_s: float) -> float:
        """Value multiplied by seconds, between two times."""
        first, last = (max(0, bisect_right(self.times_s, time_s) - 1) for time_s in (from_s, until_s))
        before = self.values[first] * (from_s - self.times_s[first])
        after = self.values[last] * (until_s - self.times_s[last])
        return self._sums[last] - self._sums[first] + after - before

    @cached_property
    def _sums(self) -> list[float]:
        """Value multiplied by seconds, until each of the times."""
        spans = (value * (b_s - a_s) for value, (a_s, b_s) in zip(self.values, pairwise(self.times_s), strict=False))
        return list(accumulate(spans, initial=0.0))
