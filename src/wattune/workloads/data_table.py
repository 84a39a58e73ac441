"""The table [data] of a workload file: the data source that it names, and its arguments.

See docs/workload-file.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from wattune.errors import WorkloadError
from wattune.workloads.data import DataSource
from wattune.workloads.values import choice, find, known_keys, names_value, path_value

DOWNLOAD = "wattune.datasets.downloads:Download"
"""The "module:Class" behind a table { url = "...", checksum = "..." } in place of a path."""

_SPLIT = ("test_share", "split_seed", "classes")
_IMAGES = (*_SPLIT, "share", "size", "channels")
_FOLDERS = ("train", "train_folder", "test", "test_folder", *_IMAGES)
_IDX = ("images", "labels", "test_images", "test_labels")
_TEXT = ("train", "test", "train_members", "test_members", "gutenberg", "vocabulary", "test_share", "split_seed")


class SourceEntry(NamedTuple):
    """The "module:Class" of a data source, the keys of its table, the required ones, and the fixed arguments."""

    place: str
    keys: tuple[str, ...]
    required: tuple[str, ...] = ()
    fixed: dict[str, str] = {}  # noqa: RUF012 - nothing writes to it


SOURCES: dict[str, SourceEntry] = {
    "cifar10": SourceEntry(
        "wattune.datasets.image_archives:Cifar", ("archive", *_IMAGES), ("archive",), {"kind": "cifar10"}
    ),
    "cifar100": SourceEntry(
        "wattune.datasets.image_archives:Cifar", ("archive", *_IMAGES), ("archive",), {"kind": "cifar100"}
    ),
    "cinic10": SourceEntry("wattune.datasets.image_folders:ImageFolders", _FOLDERS, ("train",)),
    "digits": SourceEntry("wattune.workloads.example:Digits", ("size", "invert", "noise", *_SPLIT)),
    "fashion-mnist": SourceEntry("wattune.datasets.image_archives:Idx", (*_IDX, *_IMAGES), ("images", "labels")),
    "graphs": SourceEntry(
        "wattune.datasets.graphs:Graphs", ("nodes", "samples", "rewired", "seed", "test_share", "split_seed")
    ),
    "image-folders": SourceEntry("wattune.datasets.image_folders:ImageFolders", _FOLDERS, ("train",)),
    "mnist": SourceEntry("wattune.datasets.image_archives:Idx", (*_IDX, *_IMAGES), ("images", "labels")),
    "npz": SourceEntry("wattune.datasets.npz:Npz", ("train", "test", "share", *_SPLIT), ("train",)),
    "series": SourceEntry(
        "wattune.datasets.series:Series",
        ("file", "horizon", "stride", "steps", "noise", "standardise", "test_share"),
    ),
    "stl10": SourceEntry("wattune.datasets.image_archives:Stl10", ("archive", *_IMAGES), ("archive",)),
    "svhn": SourceEntry("wattune.datasets.image_archives:Svhn", ("train", "test", *_IMAGES), ("train",)),
    "text": SourceEntry("wattune.datasets.texts:Text", _TEXT, ("train",)),
}
"""Name in a workload file -> the data source, imported on use."""

# For sources that take a number from input_shape: the kind of sample, the argument for its first number, its form.
_SHAPES = {
    "graphs": ("graph", "edges", "[edges of a graph, 2]"),
    "series": ("series", "length", "[length of a piece, values at each step]"),
    "text": ("text", "length", "[length of a piece of text]"),
}
_FILES = ("archive", "file", "train", "test", *_IDX)


def data_source(table: object, folder: Path, input_shape: object) -> DataSource:
    """Make the source that the table describes, without reading any data. Paths are relative to ``folder``.

    Raises: WorkloadError or UnknownName.
    """
    table = known_keys("[data]", table, None, required=("source",))
    name = choice("data source", table["source"], (*SOURCES, "factory"))
    if name == "factory":
        return _factory(table)
    source = SOURCES[name]
    table = known_keys(f"[data] from {name}", table, ("source", *source.keys), required=source.required)
    values = {key: _value(key, value, folder, name) for key, value in table.items() if key != "source"}
    if name == "cinic10":  # the layout of its archive
        values.setdefault("train_folder", "train")
        if "test_share" not in values and "test" not in values:
            values.setdefault("test_folder", "test")
    if name in _SHAPES:
        what, key, form = _SHAPES[name]
        if not isinstance(input_shape, list) or len(input_shape) != form.count(",") + 1:
            raise WorkloadError(f"input_shape of a {what}", value=input_shape, allowed=form)
        values[key] = input_shape[0]
    make: Callable[..., DataSource] = find(source.place, f"the data source {name}")
    return make(**values, **source.fixed)


def _factory(table: dict[str, Any]) -> DataSource:
    table = known_keys("[data] from a factory", table, ("source", "factory", "options"), required=("factory",))
    options = table.get("options", {})
    if not isinstance(options, dict):
        raise WorkloadError("options of the data factory", value=options, allowed="a table [data.options]")
    return partial(find(table["factory"], "the data factory"), **options)


def _value(key: str, value: object, folder: Path, source: str) -> object:
    if key in _FILES:
        if source == "text" and isinstance(value, list) and value:
            return tuple(_file(f"{key} file", item, folder) for item in value)
        return _file(f"{key} file", value, folder)
    if key == "classes":
        if not isinstance(value, list):
            raise WorkloadError("classes", value=value, allowed="a list of labels")
        return tuple(value)
    if key.endswith("_members"):
        return names_value(key, value)
    return value


def _file(what: str, value: object, folder: Path) -> object:
    """Parse a path, or the download ``{ url = "...", checksum = "..." }``. Raises: WorkloadError."""
    if isinstance(value, dict):
        keys = known_keys(what, value, ("url", "checksum"), required=("url", "checksum"))
        return find(DOWNLOAD, what)(**keys)
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        raise WorkloadError(
            f"{what}: a URL without a checksum",
            value=value,
            allowed='a path, or { url = "...", checksum = "sha256:..." }',
        )
    return path_value(what, value, folder)
