"""Base of all records: frozen and validated fields, a name, a version, a provenance, JSON in and out; board events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticSerializationError
from typing_extensions import Self

from wattune.errors import InputError, RecordError
from wattune.files import read_json, write_json
from wattune.version import __version__


def number(value: object) -> object:
    """Return the value unless it is a text or a truth value. Raises: ValueError."""
    # Files of other programs may have 4.0 for 4, but a text or a truth value is a mistake.
    if isinstance(value, (bool, str)):
        raise ValueError("a number")
    return value


_ALLOWED = {
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "above {gt:g}",
    "less_than_equal": "{le:g} or less",
    "less_than": "below {lt:g}",
    "finite_number": "a finite number",
    "tuple_type": "a list",
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
"""Type of pydantic's error -> what is allowed, with its figures."""


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def in_words(error: Mapping[str, Any]) -> str:
    """Words for what is allowed, from an entry of pydantic's ``ValidationError.errors()``."""
    if (words := _ALLOWED.get(error["type"])) is not None:
        return words.format(**error.get("ctx", {}))
    text: str = error["msg"]
    return text.removeprefix("Value error, ").removeprefix("Input should be ")


Flag = Annotated[bool, Field(strict=True)]
Whole = Annotated[int, BeforeValidator(number)]
Number = Annotated[float, BeforeValidator(number)]
Positive = Annotated[float, BeforeValidator(number), Field(gt=0)]
NotNegative = Annotated[float, BeforeValidator(number), Field(ge=0)]
Share = Annotated[float, BeforeValidator(number), Field(ge=0, le=1)]
BatchSize = Annotated[int, BeforeValidator(number), Field(ge=1)]
Samples = Annotated[int, BeforeValidator(number), Field(ge=0)]
Kind = Literal["measured", "simulated", "recorded", "replayed"]


class Value(BaseModel):
    """Base of all frozen values; unknown fields are kept, NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


class Provenance(Value):
    """Origin of a record. All fields are optional; ``kind`` is None if a third-party file does not have it."""

    kind: Kind | None = None
    device: str | None = None
    model: str | None = None
    data: str | None = None
    software: str | None = None
    seed: Whole | None = None
    created_at: str | None = None

    def kind_on(self, kind: Kind | None) -> list[str]:
        """One text if a device of this kind cannot have given the figures: a simulated and a physical board may have
        everything else in common."""
        own = ("measured", "simulated")
        return [f"kind ({kind}, not {self.kind})"] if kind in own and self.kind in own and kind != self.kind else []


def provenance(kind: Kind | None, **fields: Any) -> Provenance:
    """Make a provenance with this version of wattune and the current time."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Provenance(**{"kind": kind, "software": f"wattune {__version__}", "created_at": now, **fields})


class Record(Value):
    """A value with a name and a version that has a file of its own."""

    name: ClassVar[str]
    written_by: ClassVar[str]
    """Command that writes such a record."""
    needed: ClassVar[tuple[str, ...]] = ()
    """Fields that a record lists under ``needs`` if they are set. Who ignored them would do something else than was
    asked for, so a reader that does not know one refuses the record."""
    version_read: ClassVar[int] = 1

    version: int = 1
    provenance: Provenance = Provenance()

    @classmethod
    def parse(cls, data: object, *, source: str = "record") -> Self:
        """Validate ``data``, the content of a JSON file.

        Raises: RecordError in one line: the field, its value and what is allowed.
        """
        if not isinstance(data, dict):
            raise RecordError(
                f"{source} is not a {cls.name} record", value=type(data).__name__, allowed="a JSON object"
            )
        name = data.get("record")
        if name != cls.name:
            raise RecordError(
                f"{source} is not a {cls.name} record",
                value="no field 'record'" if name is None else f"its field 'record' is {name!r}",
                allowed=f'"record": "{cls.name}"',
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the whole record"
            if isinstance(why := first.get("ctx", {}).get("error"), _NotReadable):
                origin = data.get("provenance")
                software = origin.get("software") if isinstance(origin, dict) else None
                raise RecordError(
                    f"{source} cannot be read by wattune {__version__}",
                    value=f"{place} {why}" + (f", written by {software}" if isinstance(software, str) else ""),
                    hint=f"update wattune, or write it again with {cls.written_by}",
                ) from error
            raise RecordError(
                f"{source}, field {place}",
                value=_shown(first.get("input")),
                allowed=in_words(first),
            ) from error
        except InputError as error:  # as a goal raises, which arguments have as well
            raise RecordError(f"{source}: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a record from a JSON file. Raises: RecordError."""
        return cls.parse(read_json(path), source=str(path))

    def dump(self) -> dict[str, Any]:
        """The record as plain JSON values: ``record``, ``version``, ``needs`` if it needs anything, and the fields."""
        needs = [name for name in self.needed if getattr(self, name)]
        try:
            fields = self.model_dump(mode="json")
            return {"record": self.name, "version": fields["version"], **({"needs": needs} if needs else {}), **fields}
        except PydanticSerializationError as error:  # also of a Ctrl-C while one of our serializers runs
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise

    def __str__(self) -> str:
        """Text of one line: the fields with one value each, those that are None left out."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields if name != "version")
        figures = (f"{name}={_short(value)}" for name, value in values if isinstance(value, (str, int, float)))
        return f"{type(self).__name__}({', '.join(figures)})"

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON, replacing the file atomically. Raises: OutputError."""
        return write_json(path, self.dump())

    @field_validator("version", mode="before")
    @classmethod
    def _is_known(cls, value: object) -> object:
        # Also of a record within another one.
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= cls.version_read:
            raise _NotReadable(f"is {value!r}, not 1{f' to {cls.version_read}' if cls.version_read > 1 else ''}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _without_name(cls, data: object) -> object:
        # "record" and "needs" are not fields: `dump` writes them, and here they are checked.
        if not isinstance(data, dict):
            return data
        if data.get("record", cls.name) != cls.name:
            raise ValueError(f'"record": "{cls.name}"')
        needs = data.get("needs", [])
        names = needs if isinstance(needs, list) else [needs]
        if unknown := [str(name) for name in names if not isinstance(name, str) or name not in cls.model_fields]:
            raise _NotReadable(f"needs {', '.join(unknown)}, which it does not know")
        return {k: v for k, v in data.items() if k not in ("record", "needs") and (k, v) != ("provenance", None)}


class _NotReadable(ValueError):
    """A record that a later version may read."""


def load_one_of(kinds: Iterable[type[Record]], path: str | Path) -> Record:
    """Read a record of any of these kinds from a JSON file. Raises: RecordError."""
    data, by_name = read_json(path), {kind.name: kind for kind in kinds}
    name = data.get("record") if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in by_name:
        raise RecordError(f"{path} is not a record of the required kind", value=name, allowed=", ".join(by_name))
    return by_name[name].parse(data, source=str(path))


def _shown(value: object) -> object:
    # A whole record would make the error line unreadable.
    return f"{type(value).__name__} with {len(value)} entries" if isinstance(value, (dict, list, tuple)) else value


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
