"""CSV files of values over time: a header, then a time and values in each row."""

from __future__ import annotations

import csv
import math
import re
import time
from collections.abc import Collection, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from wattune.errors import InputError


class TraceRow(NamedTuple):
    """A row: its place in the file, for errors, seconds from the first row, and the cell of the value."""

    where: str
    time_s: float
    cell: str


class TraceFile(NamedTuple):
    """A file's rows in the order of their times, at least one; the column of the value; the moment of the first row.

    ``begin`` is None if the times are seconds. ``note``: which zone was assumed for times without an offset.
    """

    column: str
    begin: datetime | None
    rows: tuple[TraceRow, ...]
    note: str | None = None

    @property
    def times_s(self) -> tuple[float, ...]:
        """Seconds from the first row, ascending."""
        return tuple(row.time_s for row in self.rows)


def read_trace(path: str | Path, columns: Collection[str], *, is_strict: bool = False) -> TraceFile:
    """Read the times, and the one column of these ``columns`` (in lower case) that the file has.

    Times are ``seconds``, the first 0, or ``time`` (also ``datetime``), moments in ISO 8601. Without an offset they are
    local, or UTC if the column's name says so, such as "Datetime (UTC)". Other columns are ignored, or refused if
    ``is_strict``.

    Raises: InputError in one line, with the line of the file.
    """
    lines = _lines(Path(path))
    first = next(lines, (0, []))[1]
    header = [name.lower() for name in first]
    times = [name for name in header if " ".join(_words(name) - {"utc"}) in ("seconds", "time", "datetime")]
    values = [name for name in header if name in columns]
    if len(times) != 1 or len(values) != 1 or (is_strict and len(header) != 2):
        names = " or ".join(columns)
        raise InputError(
            f"the first line of {path}",
            value=",".join(first),
            allowed=f"seconds or time, and {names}, with a comma",
            hint="rename the two columns",
        )
    time_at, value_at = header.index(times[0]), header.index(values[0])
    is_seconds, is_utc = times[0] == "seconds", "utc" in _words(times[0])
    found: list[tuple[str, Any, str]] = []
    note: str | None = None
    for line, cells in lines:
        where = f"{path}, line {line}"
        if len(cells) != len(header) or not cells[time_at]:
            raise InputError(where, value=",".join(cells), allowed=f"{len(header)} cells, one of them the time")
        time: Any
        if is_seconds:
            time = _seconds(where, cells[time_at])
        else:
            time, is_assumed = _moment(where, cells[time_at], is_utc=is_utc)
            if is_assumed and note is None:
                note = f"times of {path} have no offset, and are taken as local: {time:%Z} (UTC{time:%z}) at the first"
        if found and time <= found[-1][1]:
            raise InputError(f"{where}: the time is not after that of the row before", value=cells[time_at])
        found.append((where, time, cells[value_at]))
    if not found:
        raise InputError(f"{path} has no rows", allowed=f"rows of {times[0]},{values[0]} below the header")
    begin = None if is_seconds else found[0][1]
    if begin is None and found[0][1] != 0:
        raise InputError(f"{path} says nothing about the time before its first row", value=found[0][1], allowed="0")
    rows = (
        TraceRow(where, time if begin is None else (time - begin).total_seconds(), cell) for where, time, cell in found
    )
    return TraceFile(values[0], begin, tuple(rows), note)


def parse_moment(where: str, text: str) -> datetime:
    """A moment, with its time zone, from ISO 8601; local time without an offset.

    Raises: InputError, also for a local time that the zone lacks or has twice as its clocks change.
    """
    return _moment(where, text)[0]


def _moment(where: str, text: str, *, is_utc: bool = False) -> tuple[datetime, bool]:
    """The moment, and whether its zone was assumed."""
    try:
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("z", "Z") else text)
        if moment.tzinfo is None and is_utc:
            moment = moment.replace(tzinfo=timezone.utc)
        local = moment.astimezone()
        if moment.tzinfo is not None:
            return local, False
        other = moment.replace(fold=1).astimezone()
    except (ValueError, OverflowError) as error:
        raise InputError(f"{where}: time", value=text, allowed="ISO 8601, such as 2025-06-01T08:00") from error
    if local != other:
        exists = datetime.fromtimestamp(local.timestamp()) == moment  # of a moment that exists the clock shows the same
        what = "exists twice" if exists else "does not exist"
        raise InputError(
            f"{where}: times without an offset are local ({'/'.join(time.tzname)}), where this one {what}",
            value=text,
            hint="add +00:00 to all of them if they are UTC",
        )
    return local, True


def _words(name: str) -> set[str]:
    return set(re.findall("[a-z0-9_]+", name))


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path} cannot be read", value=error.strerror) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text", allowed="a CSV file of times and values") from error
    reader = csv.reader(text.splitlines())
    return ((reader.line_num, [cell.strip() for cell in row]) for row in reader if any(cell.strip() for cell in row))


def _seconds(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(f"{where}: seconds", value=text, allowed="a number, 0 or more")
    return value
