"""Tables in files of any program: CSV, or JSON with a list of rows."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from wattune.errors import InputError, RecordError, did_you_mean
from wattune.files import parse_json
from wattune.known_columns import NEVER_MEANT, PREFIXES, QUANTITIES, TELL_NO_UNIT, TIME_WORDS, Quantity

SUFFIXES: Final = (".csv", ".tsv", ".json", ".jsonl")
"""Ends of the names of files that may have a table."""

TIME: Final = "time"
SECONDS: Final = "seconds"
"""Names of a column of moments, and of one of seconds from the first row."""

VALUE: Final = "value"
"""Name, in a ``Layout``, of the one column of numbers beside the times."""


class Layout(NamedTuple):
    """Headers and zone of a table. ``columns``: name of a column, see ``QUANTITIES`` -> header.

    ``timezone``: the zone of times without an offset; None: this machine's. ``is_shared``: several tables are read by
    it, so that a header of times may be of another table.
    """

    columns: Mapping[str, str] = MappingProxyType({})
    timezone: str | None = None
    is_shared: bool = False


AS_KNOWN: Final = Layout()
"""Headers as ``QUANTITIES`` has them, and local times."""


class Row(NamedTuple):
    """A row: its place in the file, for errors, and its cells in the order of the headers."""

    where: str
    cells: tuple[str, ...]


class Table(NamedTuple):
    """The rows of a file. ``unit``: what the file says of its unit beside the rows.

    ``unclear``: place of a column whose dots may be of thousands or decimal points -> a cell with one.
    """

    path: Path
    headers: tuple[str, ...]
    rows: tuple[Row, ...]
    unit: str = ""
    unclear: Mapping[int, str] = MappingProxyType({})


class Column(NamedTuple):
    """A column of a table: its place, and the factor from its numbers to the unit of its name."""

    at: int
    factor: float = 1.0


def parse_columns(value: str | Mapping[str, str]) -> dict[str, str]:
    """Name of a column -> header, from a text such as "time=Start,value=Price". Raises: InputError."""
    if isinstance(value, str):
        try:
            parts = next(csv.reader([value], skipinitialspace=True), [])
        except csv.Error as error:
            raise InputError("columns", value=value, allowed="NAME=HEADER,... in one line") from error
        pairs = [part.partition("=") for part in parts]
        columns = {name.strip(): header.strip() for name, _, header in pairs}
        if len(columns) < len(pairs):
            raise InputError("columns", value=value, allowed="each column once")
    else:
        columns = dict(value)
    known = [TIME, SECONDS, VALUE, *_NAMES]
    for name, header in columns.items():
        if name not in known or not header:
            raise InputError(
                "columns",
                value=f"{name}={header}",
                allowed="NAME=HEADER,... such as time=Start,value=Price",
                hint=None if name in known else did_you_mean(name, known),
            )
    return columns


def plain(header: str) -> str:
    """A header in the form in which headers are compared."""
    text = header.lower().replace("₂", "2").replace("_", " ")
    return re.sub(r" per | ?/ ?", "/", " ".join(text.split()))


_NAMES: Final = {name: quantity for quantity, known in QUANTITIES.items() for name in known.names}
"""Name that ``Layout.columns`` may have -> its quantity."""


# ------------------------------------------------------------------------------------------------------------- reading


def read_table(path: Path) -> Table:
    """Read the one table of a file.

    JSON may be a list of objects, one object a line, or an object with such a list, with an object of rows, or with
    lists of the same length. A column of an object within a row is called "intensity.forecast".

    Raises: RecordError in one line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is not a CSV file in UTF-8", value=str(error)) from error
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise RecordError(f"cannot read {path}", value=getattr(error, "strerror", None) or str(error)) from error
    if text.lstrip()[:1] in ("{", "["):
        return _from_json(path, text)
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        # Tuples of texts, which the garbage collector does not visit again and again as it does lists.
        stripped = ((tuple(map(str.strip, row)), reader.line_num) for row in reader)
        lines = [(line, cells) for cells, line in stripped if any(cells)]
    except csv.Error as error:
        raise RecordError(f"{path} is not a CSV file in UTF-8", value=str(error)) from error
    headers = lines[0][1] if lines else ()
    for line, cells in lines[1:]:
        if len(cells) != len(headers):
            raise RecordError(
                f"{path}, line {line} has the wrong number of cells", value=len(cells), allowed=str(len(headers))
            )
    rows = tuple(Row(f"{path}, line {line}", cells) for line, cells in lines[1:])
    table = Table(path, headers, rows, _unit(zip(headers, rows[0].cells, strict=True)) if rows else "")
    return _with_points(table) if delimiter == ";" else table


_COMMA: Final = re.compile(r"-?(\d+|\d{1,3}(\.\d{3})+),\d+")
_THOUSANDS: Final = re.compile(r"-?[1-9]\d{0,2}(\.\d{3})+")
_POINT: Final = re.compile(r"-?\d*\.\d+(e[+-]?\d+)?", re.IGNORECASE)


def _with_points(table: Table) -> Table:
    """The table of a file in which "," may be the decimal point and "." may divide thousands, with points alone.

    Each column tells: 1.410 is 1410 beside 2,5, and stays 1.41 beside 2.5.
    """
    columns, unclear = list(zip(*(row.cells for row in table.rows), strict=True)), {}
    for at, cells in enumerate(columns):
        thousands = list(filter(_THOUSANDS.fullmatch, cells))
        has_commas = any(map(_COMMA.fullmatch, cells))
        has_points = any(_POINT.fullmatch(cell) and not _THOUSANDS.fullmatch(cell) for cell in cells)
        if thousands and has_commas == has_points:
            unclear[at] = thousands[0]
        elif has_commas:
            columns[at] = tuple(map(_with_point, cells))
    rows = zip(*columns, strict=True)
    return table._replace(
        rows=tuple(Row(row.where, cells) for row, cells in zip(table.rows, rows, strict=True)), unclear=unclear
    )


def _with_point(cell: str) -> str:
    is_local = _COMMA.fullmatch(cell) or _THOUSANDS.fullmatch(cell)
    return cell.replace(".", "").replace(",", ".") if is_local else cell


def _from_json(path: Path, text: str) -> Table:
    try:
        content = _parsed(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not valid JSON", value=str(error)) from error
    if isinstance(content, dict) and isinstance(name := content.get("record"), str):
        raise RecordError(f"{path} is a record of wattune, not a table", value=name)
    entries = content if isinstance(content, list) else _entries(path, content)
    flat = [_flat(entry) for entry in entries if isinstance(entry, dict)]
    headers = tuple(dict.fromkeys(header for entry in flat for header in entry))
    if not headers or len(flat) < len(entries):
        allowed = "a list of objects, alone or in a field"
        raise RecordError(f"{path} has no table", allowed=allowed, hint="take the list out of deeper objects")
    rows = (
        Row(f"{path}, entry {number}", tuple(entry.get(header, "") for header in headers))
        for number, entry in enumerate(flat, 1)
    )
    beside = _flat(content) if isinstance(content, dict) else {}
    return Table(path, headers, tuple(rows), _unit((*beside.items(), *flat[0].items())))


def _unit(fields: Iterable[tuple[str, str]]) -> str:
    """The text of the first field that is called unit, such as "value-units"; empty without one."""
    return next((text for name, text in fields if re.split("[^a-z]", name.lower())[-1] in ("unit", "units")), "")


def _parsed(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines):
            raise
        return [parse_json(line) for line in lines]


def _entries(path: Path, content: Mapping[str, Any]) -> list[Any]:
    """The rows within an object. Raises: RecordError if several of its fields have rows."""
    nested = {name: value for name, value in content.items() if isinstance(value, (list, dict)) and value}
    lists = {name: value for name, value in nested.items() if isinstance(value, list) and _are(dict, value)}
    objects = {
        name: list(value.values())
        for name, value in nested.items()
        if isinstance(value, dict) and _are(dict, value.values())
    }
    columns = {name: _transposed(value) for name, value in (("", content), *nested.items()) if isinstance(value, dict)}
    found = lists or objects or {name: rows for name, rows in columns.items() if rows}
    if len(found) > 1:
        raise RecordError(f"{path} has several tables", value=", ".join(found), allowed="one", hint="keep one of them")
    return next(iter(found.values()), [])


def _are(kind: type, values: Iterable[object]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _transposed(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of lists of the same length; none if there are fewer than two such lists."""
    lists = {name: value for name, value in content.items() if isinstance(value, list) and len(value) > 1}
    if len(lists) < 2 or len({len(value) for value in lists.values()}) > 1:
        return []
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def _flat(entry: Mapping[str, Any]) -> dict[str, str]:
    """Texts of the values of an object, and of objects within it; lists are left out."""
    texts: dict[str, str] = {}
    for name, value in entry.items():
        inner = {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
        for key, one in inner.items():
            if not isinstance(one, (list, dict)):
                texts[key.strip()] = "" if one is None else one.strip() if isinstance(one, str) else json.dumps(one)
    return texts


# ------------------------------------------------------------------------------------------------------------- columns


def find_columns(
    table: Table,
    required: Collection[str],
    optional: Sequence[str] = (),
    *,
    layout: Layout = AS_KNOWN,
    is_strict: bool = False,
    meaning: str | None = None,
) -> dict[str, Column]:
    """The columns of these quantities. ``is_strict``: without ``layout.columns`` the table has no others.

    ``meaning``: what a refusal says of required columns. Raises: RecordError, with the columns that may be
    meant, if a required column is missing, or if a column occurs twice.
    """
    named = {name: find_column(table, name, layout) for name in (*required, *optional)}
    columns = {name: one for name, one in named.items() if one is not None}
    headers = [plain(header) for header in table.headers]
    repeated = [name for name, one in columns.items() if headers.count(headers[one.at]) > 1]
    if missing := [name for name in required if name not in columns or name in repeated]:
        raise RecordError(
            f"{table.path} must have each of these columns exactly once",
            value=", ".join(missing),
            hint=missing_hint(table, [name for name in named if name not in columns], meaning),
        )
    places = {one.at for one in columns.values()}
    if is_strict and not layout.columns:
        repeated += [header for at, header in enumerate(table.headers) if at not in places]
    if repeated:
        raise RecordError(
            f"{table.path} has unknown or repeated columns",
            value=", ".join(name or "one without a name" for name in dict.fromkeys(repeated)),
            allowed=", ".join(named),
            hint="name yours with --columns NAME=HEADER,... and others are ignored",
        )
    return columns


def find_column(table: Table, quantity: str, layout: Layout = AS_KNOWN, *, is_value: bool = False) -> Column | None:
    """The column of this quantity, None without one. ``is_value``: it is the one that ``layout`` may call value.

    Raises: RecordError if the layout names a header that the table lacks, or if the column's numbers are unclear.
    """
    column = _found(table, quantity, layout, is_value)
    if column is not None:
        refuse_unclear(table, column.at)
    return column


def refuse_unclear(table: Table, at: int) -> None:
    """Raise RecordError if the dots of a column may be of thousands or decimal points."""
    if at in table.unclear:
        raise RecordError(
            f"{table.path}, {table.headers[at]}: a dot of thousands or a decimal point",
            value=table.unclear[at],
            hint='write thousands without dots, or "," instead of ";" between cells if it is a decimal point',
        )


def _found(table: Table, quantity: str, layout: Layout, is_value: bool) -> Column | None:
    headers, known = [plain(header) for header in table.headers], QUANTITIES[quantity]
    for name, header in layout.columns.items():
        if _NAMES.get(name) == quantity or (is_value and name == VALUE):
            at = find_header(table, header)
            told = _factor(known, headers[at]) or _factor(known, plain(table.unit)) or 1.0
            return Column(at, known.names.get(name, told))
    own = {plain(name): factor for name, factor in known.names.items()}
    of_trackers = {prefix + name: factor for prefix in PREFIXES for name, factor in own.items()}
    for header, factor in {**own, **of_trackers, **known.headers}.items():
        if header in headers:
            return Column(headers.index(header), factor)
    beside = _factor(known, plain(table.unit))
    factors = {
        at: _factor(known, text) or (beside if text in TELL_NO_UNIT else None) for at, text in enumerate(headers)
    }
    filled = {at for row in table.rows for at in range(len(headers)) if row.cells[at]}
    with_unit = {at: factor for at, factor in factors.items() if factor and at in filled}
    if len(with_unit) > 1:
        raise RecordError(
            f"{table.path} has several columns of {quantity}",
            value=", ".join(table.headers[at] for at in with_unit),
            hint=f"choose one with --columns {_name_of(known, set(with_unit.values()))}=HEADER",
        )
    return next((Column(at, factor) for at, factor in with_unit.items()), None)


def find_header(table: Table, header: str) -> int:
    """The place of a header. Raises: RecordError, which names a similar one."""
    headers = [plain(one) for one in table.headers]
    if plain(header) in headers:
        return headers.index(plain(header))
    hint = did_you_mean(header, table.headers)
    raise RecordError(f"{table.path} has no column", value=header, allowed=_listed(table), hint=hint)


def _factor(known: Quantity, text: str) -> float | None:
    match = re.search(known.unit, text) if known.unit else None
    return math.prod(known.factors.get(part, 1.0) for part in match.groups()) if match else None


def _name_of(known: Quantity, factors: set[float]) -> str:
    """A name of ours for columns of these factors, which is of no other file; else value, of the header's unit."""
    names = {f"{factor:g}": name for name, factor in known.names.items()}
    return names.get(f"{factors.pop():g}", VALUE) if len(factors) == 1 else VALUE


def missing_hint(table: Table, missing: Sequence[str], meaning: str | None = None) -> str:
    """Headers of the table, columns that may be meant by the missing names, and the option that says so."""
    parts, numeric = [f"found: {_listed(table)}"], _numeric(table)
    meant = {
        " or ".join(QUANTITIES[name].names if name in QUANTITIES else [name]): header
        for name in missing
        for header in reversed(table.headers)
        if _may_mean(plain(header), name) and (name not in _WITH_UNIT or header in numeric)
    }
    if meant:
        parts.append("may be meant: " + ", ".join(f"{name}={header}" for name, header in meant.items()))
    parts.append("name them with --columns NAME=HEADER,...")
    return "; ".join([*parts, meaning] if meaning else parts)


_WITH_UNIT: Final = frozenset(name for name, quantity in QUANTITIES.items() if quantity.unit)
"""Quantities that are told by a unit: each of their cells is a number."""


def _numeric(table: Table) -> set[str]:
    """Headers of the columns that have a number, perhaps with a decimal comma, in the first row."""
    first = table.rows[0].cells if table.rows else table.headers
    return {header for header, cell in zip(table.headers, first, strict=True) if re.fullmatch(r"-?[\d.,]*\d", cell)}


def _may_mean(header: str, name: str) -> bool:
    if name == TIME or header.replace(" ", "_") in _NAMES:
        return name == TIME and TIME_WORDS.search(header) is not None
    words, meant = set(re.split("[^a-z0-9]+", header)), QUANTITIES[name].words
    is_part = any(one in header for one in meant - {"total", "value"} if len(one) > 4)  # as in SpotPriceEUR
    return (is_part or not words.isdisjoint(meant)) and words.isdisjoint(NEVER_MEANT)


def _listed(table: Table) -> str:
    text = ", ".join(header for header in table.headers if header) or "nothing"
    return text if len(text) <= 300 else text[:297] + "..."


def number(where: str, text: str) -> float:
    """The number in a cell. Raises: RecordError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise RecordError(where, value=text or "empty", allowed="a number")
    return value
