"""The table [data] of a workload file: the data source that it names, and its arguments.

See docs/workload-file.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

from wattune.errors import WorkloadError
from wattune.workloads.data import DataSource
from wattune.workloads.example import Digits
from wattune.workloads.image_folders import ImageFolders
from wattune.workloads.npz import Npz
from wattune.workloads.texts import Text
from wattune.workloads.values import choice, find, known_keys, path_value

SOURCES: dict[str, type[Digits | ImageFolders | Npz | Text]] = {
    "digits": Digits,
    "image-folders": ImageFolders,
    "npz": Npz,
    "text": Text,
}
"""Name in a workload file -> the data source, whose fields are the keys of its table."""


def data_source(table: object, folder: Path, input_shape: object) -> DataSource:
    """Make the source that the table describes, without reading any data. Paths are relative to ``folder``.

    Raises: WorkloadError or UnknownName.
    """
    table = known_keys("[data]", table, None, required=("source",))
    name = choice("data source", table["source"], (*SOURCES, "factory"))
    if name == "factory":
        return _factory(table)
    source = SOURCES[name]
    keys = [field for field in fields(source) if field.name != "length"]
    table = known_keys(
        f"[data] from {name}",
        table,
        ("source", *(key.name for key in keys)),
        required=[key.name for key in keys if key.default is MISSING],
    )
    values = {key: _value(key, value, folder, name) for key, value in table.items() if key != "source"}
    if name == "text":
        if not isinstance(input_shape, list) or len(input_shape) != 1:
            raise WorkloadError("input_shape of a text", value=input_shape, allowed="[length of a piece of text]")
        values["length"] = input_shape[0]
    make: Callable[..., DataSource] = source
    return make(**values)


def _factory(table: dict[str, Any]) -> DataSource:
    table = known_keys("[data] from a factory", table, ("source", "factory", "options"), required=("factory",))
    options = table.get("options", {})
    if not isinstance(options, dict):
        raise WorkloadError("options of the data factory", value=options, allowed="a table [data.options]")
    return partial(find(table["factory"], "the data factory"), **options)


def _value(key: str, value: object, folder: Path, source: str) -> object:
    if key in ("train", "test"):
        if source == "text" and isinstance(value, list) and value:
            return tuple(path_value(f"{key} file", item, folder) for item in value)
        return path_value(f"{key} file", value, folder)
    if key == "classes":
        if not isinstance(value, list):
            raise WorkloadError("classes", value=value, allowed="a list of labels")
        return tuple(value)
    return value
