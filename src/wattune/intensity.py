"""Carbon intensity or price of grid energy over time, from a file."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from wattune.errors import InputError
from wattune.trace_file import parse_moment, read_trace

Unit = Literal["gco2_per_kwh", "price_per_kwh"]

JOULES_PER_KWH: Final = 3.6e6

_COLUMNS: Final[dict[str, tuple[Unit, float]]] = {
    "gco2_per_kwh": ("gco2_per_kwh", 1.0),
    "co2_lbs_per_mwh": ("gco2_per_kwh", 0.45359237),
    "price_per_kwh": ("price_per_kwh", 1.0),
    "price_per_mwh": ("price_per_kwh", 1e-3),
}
"""Column of a file -> unit, and the factor to it. Pounds per MWh are WattTime's unit."""

_LISTS: Final = ("forecast", "history", "data")
"""Fields of Electricity Maps' JSON that may have the values."""


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
    def load(cls, path: str | Path, unit: Unit) -> Intensity:
        """Read a CSV file, or carbon from JSON as Electricity Maps has it.

        CSV: a column of times, see ``read_trace``, and one of ``gco2_per_kwh`` or ``co2_lbs_per_mwh``, for a price
        ``price_per_kwh`` or ``price_per_mwh``. JSON: a list ``forecast``, ``history`` or ``data`` of objects with
        ``carbonIntensity`` in g/kWh and ``datetime``. Raises: InputError in one line.
        """
        columns = {name: factor for name, (of, factor) in _COLUMNS.items() if of == unit}
        if Path(path).suffix.lower() == ".json":
            as_csv = f"a CSV file of time, and {' or '.join(columns)}"
            if unit == "price_per_kwh":
                raise InputError(str(path), value="JSON", allowed=f"a tariff as {as_csv}")
            times_s, values, begin = _json(Path(path), as_csv)
            return cls(times_s, values, unit, begin, str(path))
        trace = read_trace(path, tuple(columns))
        values = tuple(columns[trace.column] * _number(row.where, row.cell) for row in trace.rows)
        return cls(trace.times_s, values, unit, trace.begin, str(path), trace.note)

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


def _json(path: Path, as_csv: str) -> tuple[tuple[float, ...], tuple[float, ...], datetime]:
    allowed = f"a list of objects with carbonIntensity and datetime, as Electricity Maps has it, or {as_csv}"
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read", value=error.strerror) from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON", allowed=allowed) from error
    if isinstance(content, dict):
        content = next((content[name] for name in _LISTS if name in content), None)
    if not isinstance(content, list) or len(content) < 2:
        raise InputError(f"{path} has no carbon intensities", allowed=allowed)
    moments, values = [], []
    for index, entry in enumerate(content):
        where = f"{path}, entry {index + 1}"
        value, moment = (
            (entry.get("carbonIntensity"), entry.get("datetime")) if isinstance(entry, dict) else (None,) * 2
        )
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isinstance(moment, str):
            raise InputError(where, value=json.dumps(entry)[:80], allowed=allowed)
        values.append(float(value))
        moments.append(parse_moment(where, moment))
        if index and moments[-1] <= moments[-2]:
            raise InputError(f"{where}: the time is not after that of the entry before", value=moment)
    return tuple((moment - moments[0]).total_seconds() for moment in moments), tuple(values), moments[0]


def _number(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(where, value=text, allowed="a number")
    return value
