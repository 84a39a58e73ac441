"""Tables of values over time: rows in the order of their times."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime, timezone, tzinfo
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from wattune.errors import InputError, RecordError, did_you_mean
from wattune.known_columns import OFFSET, OFFSETS, QUANTITIES, TIMES, UNCLEAR_ZONE, ZONES
from wattune.tables import (
    AS_KNOWN,
    SECONDS,
    TIME,
    Column,
    Layout,
    Row,
    Table,
    find_column,
    find_header,
    missing_hint,
    plain,
    read_table,
    refuse_unclear,
)


class TraceRow(NamedTuple):
    """A row: its place in the file, for errors, seconds from the first row, and the cell of the value."""

    where: str
    time_s: float
    cell: str


class TraceFile(NamedTuple):
    """A file's rows in the order of their times, at least one, and the factor from their values to the unit.

    ``begin``: the moment of the first row, None if the times are seconds. ``note``: what was assumed of the file.
    """

    factor: float
    begin: datetime | None
    rows: tuple[TraceRow, ...]
    note: str | None = None

    @property
    def times_s(self) -> tuple[float, ...]:
        """Seconds from the first row, ascending."""
        return tuple(row.time_s for row in self.rows)


def read_trace(path: str | Path, quantity: str, layout: Layout = AS_KNOWN) -> TraceFile:
    """Read the times, and the values of this quantity.

    Times are ``seconds``, the first 0, or moments: ISO 8601 or seconds since 1970. Moments without an offset are in the
    zone that their header names, such as "Datetime (UTC)", else in the zone of ``layout``, else local. The newest row
    may be first. Other columns are ignored.

    Raises: InputError in one line, with the line of the file.
    """
    table = read_table(Path(path))
    time_at, value = _time_column(table, layout), find_column(table, quantity, layout, is_value=True)
    if time_at is None or value is None:
        missing = [name for name, one in ((TIME, time_at), (quantity, value)) if one is None]
        raise RecordError(
            f"{path} has no column of {' and '.join(missing)}",
            allowed=f"seconds or time, and {' or '.join(QUANTITIES[quantity].names)}",
            hint=missing_hint(table, missing),
        )
    if not table.rows:
        raise RecordError(f"{path} has no rows", allowed="rows of times and values below the header")
    header = plain(table.headers[time_at])
    if header in (SECONDS, plain(layout.columns.get(SECONDS, ""))):
        refuse_unclear(table, time_at)
        times, note = [_seconds(row.where, row.cells[time_at]) for row in table.rows], None
    else:
        times, note = _moments(table, time_at, _Zone.of(header, layout))
    times, rows = _ascending(times, table.rows, time_at)
    if isinstance(times[0], float) and times[0] != 0:
        raise RecordError(f"{path} says nothing about the time before its first row", value=times[0], allowed="0")
    begin = times[0] if isinstance(times[0], datetime) else None
    times_s = times if begin is None else [(moment - begin).total_seconds() for moment in times]
    notes = [_time_note(table, time_at, layout), note, _unit_note(table, value, quantity)]
    return TraceFile(
        value.factor,
        begin,
        tuple(TraceRow(row.where, time_s, row.cells[value.at]) for time_s, row in zip(times_s, rows, strict=True)),
        "; ".join(filter(None, notes)) or None,
    )


def _moments(table: Table, at: int, zone: _Zone) -> tuple[list[Any], str | None]:
    """The moment of each row, and a note if their zone was assumed."""
    moments = [_moment(row.where, row.cells[at], zone) for row in table.rows]
    assumed = next((moment for moment, is_assumed in moments if is_assumed), None)
    note = None
    if assumed is not None and zone.name == UNCLEAR:
        raise RecordError(
            f"the zone of times without an offset in {table.path}", value=table.headers[at], hint=zone.hint
        )
    if assumed is not None and zone.tz is None:
        local = f"{assumed:%Z} (UTC{assumed:%z})"
        note = f"times of {table.path} have no offset, and are taken as local: {local} at the first"
        note += "; --timezone sets another zone"
    return [moment for moment, _ in moments], note


def _ascending(times: list[Any], rows: tuple[Row, ...], at: int) -> tuple[list[Any], tuple[Row, ...]]:
    """The rows by ascending time; some providers answer with the newest first. Raises: RecordError."""
    if times[0] > times[-1]:
        times, rows = times[::-1], rows[::-1]
    for (earlier, later), row in zip(pairwise(times), rows[1:], strict=True):
        if later <= earlier:
            raise RecordError(f"{row.where}: the time is not after that of the row before", value=row.cells[at])
    return times, rows


def _time_note(table: Table, at: int, layout: Layout) -> str | None:
    named = _named_time(layout)
    if named is None or plain(named) == plain(table.headers[at]):
        return None
    return f"{table.path} has no column {named!r}, and its times are {table.headers[at]!r}"


def _unit_note(table: Table, value: Column, quantity: str) -> str | None:
    name = table.headers[value.at]
    if name in QUANTITIES[quantity].names:
        return None
    return f"{name!r} of {table.path} is read as {quantity}" + f", times {value.factor:g}" * (value.factor != 1.0)


def _time_column(table: Table, layout: Layout) -> int | None:
    headers = [plain(header) for header in table.headers]
    named, known = _named_time(layout), _known_times(headers)
    if named and (plain(named) in headers or not known or not layout.is_shared or did_you_mean(named, table.headers)):
        return find_header(table, named)
    return next(iter(known), None)


def _named_time(layout: Layout) -> str | None:
    return layout.columns.get(TIME) or layout.columns.get(SECONDS)


def _known_times(headers: list[str]) -> list[int]:
    """The places of the headers that are times, best first; of the same name, one that says UTC."""
    bare = [" ".join(re.sub(r"\(.*\)|utc", " ", header).split()) or "utc" * ("utc" in header) for header in headers]
    places = sorted(range(len(bare)), key=lambda at: re.search("(utc|gmt)(?! ?[+-])", headers[at]) is None)
    return [at for name in TIMES for at in places if bare[at] == name]


UNCLEAR: Final = "of an unclear zone"
"""Name of a zone whose header may be meant all year, or by the date."""


class _Zone(NamedTuple):
    """Zone of times without an offset. ``tz``: None for local; ``name``, ``hint``: for errors."""

    tz: tzinfo | None
    name: str
    hint: str

    @classmethod
    def of(cls, header: str, layout: Layout) -> _Zone:
        """The zone that the header names, else the one of the layout. Raises: InputError."""
        named = _offset_in(header)
        if named is None:
            named = next((name for key, name in ZONES.items() if re.search(rf"{key}(?![a-z])", header)), None)
        if named is not None:
            return cls(zone_of(named), named, "add an offset such as +01:00 to all of them")
        hint = "add --timezone UTC if they are UTC"
        if layout.timezone is None and UNCLEAR_ZONE.search(header):
            return cls(None, UNCLEAR, "add --timezone +01:00 for CET all year, or Europe/Brussels for CET and CEST")
        if layout.timezone is None:
            return cls(None, f"local ({'/'.join(time.tzname)})", hint)
        return cls(zone_of(layout.timezone), layout.timezone, hint)


def _offset_in(header: str) -> str | None:
    """The offset that a header names, such as "+01:00". Raises: InputError if it has another form."""
    found = OFFSET.search(header.replace("\N{MINUS SIGN}", "-"))
    if found is None:
        return None
    sign, digits = found[1] or found[3], found[2] or found[4]
    parts = re.fullmatch(r"(0?\d|1[0-4])(?::?([0-5]\d))?", digits)
    if parts is None or "etc/" in header:  # where the sign is the other way round
        raise InputError("offset in the header of times", value=header, allowed="such as UTC+1 or UTC-03:30")
    return f"{sign}{parts[1]:0>2}:{parts[2] or '00'}"


def zone_of(name: str) -> tzinfo:
    """The zone of a name such as "Europe/Berlin", "UTC" or "+01:00". Raises: InputError."""
    try:
        if re.fullmatch(r"[+-]\d\d:\d\d", name):
            return datetime.strptime(name, "%z").tzinfo or timezone.utc
        return timezone.utc if name.upper() == "UTC" else ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # of a zone that is not installed, a KeyError
        raise InputError("timezone", value=name, allowed="such as Europe/Berlin, UTC or +01:00") from error


_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d(?::\d\d(?::\d\d)?)?)(?:[.,](\d{1,6})\d*)?)? ?(Z|[+-]\d\d(?::?\d\d)?)?",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"\d{9,10}(?:\.\d+)?|\d{12,13}")
"""Seconds or milliseconds since 1970."""


def _moment(where: str, text: str, zone: _Zone) -> tuple[datetime, bool]:
    """The moment, by this machine's offset, and whether its zone was assumed.

    Raises: RecordError, also for a time that the zone lacks or has twice as its clocks change.
    """
    if _NUMBERS.fullmatch(text):
        per_second = 1e3 if len(text.partition(".")[0]) > 10 else 1.0
        return datetime.fromtimestamp(float(text) / per_second).astimezone(), False
    try:
        moment = _parsed(text)
        if moment.tzinfo is not None:
            return moment.astimezone(), False
        first, second = (_in_zone(moment.replace(fold=fold), zone.tz) for fold in (0, 1))
        here = first.astimezone()
    except (ValueError, OverflowError) as error:
        raise RecordError(
            f"{where}: time", value=text or "empty", allowed="ISO 8601, such as 2025-06-01T08:00"
        ) from error
    if first.utcoffset() != second.utcoffset():
        # The clock shows a moment that exists.
        shown = datetime.fromtimestamp(first.timestamp(), zone.tz).replace(tzinfo=None)
        what = "exists twice" if shown == moment else "does not exist"
        raise RecordError(
            f"{where}: times without an offset are {zone.name}, where this one {what}", value=text, hint=zone.hint
        )
    return here, True


def _in_zone(moment: datetime, tz: tzinfo | None) -> datetime:
    return moment.astimezone() if tz is None else moment.replace(tzinfo=tz)


def _parsed(text: str) -> datetime:
    """A moment, also of a day such as 2024/10/26, or of a row of the ENTSO-E platform, whose days come first.

    Raises: ValueError.
    """
    match = _ISO.fullmatch(text) or _ISO.fullmatch(_as_iso(text))
    if match is None:
        raise ValueError(text)
    day, clock, fraction, offset = match.groups()
    moment = datetime.fromisoformat(f"{day}T{clock or '00:00'}")
    if fraction:
        moment = moment.replace(microsecond=int(fraction.ljust(6, "0")))
    if offset:
        moment = moment.replace(tzinfo=_zone_of_offset(offset))
    return moment


def _as_iso(text: str) -> str:
    first, _, until = text.partition(" - ")
    for name, offset in OFFSETS.items():
        first = re.sub(rf" ?\(?{name}\)?$", offset, first)
    first = re.sub(r"^(\d\d)\.(\d\d)\.(\d{4})", r"\3-\2-\1", first)
    first = re.sub(r"^(\d{4})/(\d\d)/(\d\d)", r"\1-\2-\3", first)
    return re.sub(r"^(\d\d)/(\d\d)/(\d{4})", r"\3-\2-\1", first) if until else first


@cache
def _zone_of_offset(offset: str) -> tzinfo | None:
    digits = "0000" if offset in "zZ" else offset[1:].replace(":", "").ljust(4, "0")
    return datetime.strptime(("-" if offset[0] == "-" else "+") + digits, "%z").tzinfo


def _seconds(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise RecordError(f"{where}: seconds", value=text or "empty", allowed="a number, 0 or more")
    return value
