"""JSON schemas of the public records, for programs in other languages: ``python -m wattune.reporting.schemas DIR``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from wattune.files import write_json
from wattune.records import (
    Comparison,
    LearningCurve,
    Plan,
    ProfileTable,
    Record,
    SampleEfficiency,
    SessionRecord,
    TrainingRecord,
)

PUBLIC: dict[str, type[Record]] = {
    kind.name: kind
    for kind in (
        ProfileTable,
        SampleEfficiency,
        Plan,
        TrainingRecord,
        Comparison,
        LearningCurve,
        SessionRecord,
    )
}
"""Public records by the value of their field ``record``: other programs may rely on their JSON."""


def schema(kind: type[Record]) -> dict[str, Any]:
    """Make the JSON Schema (draft 2020-12) of a record.

    It describes the fields only. Reading checks more: cells are unique, a cell has figures unless it is out of memory,
    and a curve is 1 at its reference batch size.
    """
    fields = _standard(kind.model_json_schema())
    properties = {
        "record": {"const": kind.name, "description": "Which record this is."},
        **fields.pop("properties"),
    }
    properties["version"] = {**properties["version"], "minimum": 1, "maximum": kind.version_read}
    # Other programs may omit the origin or write null; the record is then of unknown origin.
    properties["provenance"] = {"anyOf": [{"$ref": "#/$defs/Provenance"}, {"type": "null"}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **fields,
        "properties": properties,
        "required": ["record", *fields.get("required", [])],
    }


def _standard(part: Any) -> Any:
    # pydantic writes the limits of a number with a custom validator under its own keywords, and gives every field a
    # title that only repeats its name.
    if isinstance(part, list):
        return [_standard(entry) for entry in part]
    if not isinstance(part, dict):
        return part
    names = {"gt": "exclusiveMinimum", "ge": "minimum"}
    keep = {k: v for k, v in part.items() if k != "title" or not isinstance(v, str) or "$defs" in part}
    return {names.get(k, k) if isinstance(v, (int, float)) else k: _standard(v) for k, v in keep.items()}


def write_schemas(folder: str | Path) -> list[Path]:
    """Write ``NAME.schema.json`` for every public record. Raises: OutputError."""
    return [write_json(Path(folder) / f"{name}.schema.json", schema(kind)) for name, kind in PUBLIC.items()]


if __name__ == "__main__":
    for path in write_schemas(sys.argv[1]):
        print(path)
