"""The table [data] of a workload file: which source, and what it is called with. See docs/workload-file.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from wattune.errors import WorkloadError
from wattune.workloads.data import DataSource
from wattune.workloads.graphs import Graphs
from wattune.workloads.image_archives import Cifar, Idx, Stl10, Svhn
from wattune.workloads.image_folders import ImageFolders
from wattune.workloads.series import Series
from wattune.workloads.sources import Digits, Npz, Text
from wattune.workloads.tables import file_value, find, known_keys, names_value
from wattune.workloads.values import choice

_SPLIT = ("test_share", "split_seed", "classes")
_IMAGES = (*_SPLIT, "share", "size", "channels")
_FOLDERS = ("train", "train_folder", "test", "test_folder", *_IMAGES)
_IDX = ("images", "labels", "test_images", "test_labels")

# What makes the source, its keys, and those of them that are needed.
_SOURCES: dict[str, tuple[Callable[..., DataSource], tuple[str, ...], tuple[str, ...]]] = {
    "cifar10": (partial(Cifar, kind="cifar10"), ("archive", *_IMAGES), ("archive",)),
    "cifar100": (partial(Cifar, kind="cifar100"), ("archive", *_IMAGES), ("archive",)),
    "cinic10": (ImageFolders, _FOLDERS, ("train",)),
    "digits": (Digits, ("size", "invert", "noise", *_SPLIT), ()),
    "fashion-mnist": (Idx, (*_IDX, *_IMAGES), ("images", "labels")),
    "graphs": (Graphs, ("nodes", "samples", "rewired", "seed", "test_share", "split_seed"), ()),
    "image-folders": (ImageFolders, _FOLDERS, ("train",)),
    "mnist": (Idx, (*_IDX, *_IMAGES), ("images", "labels")),
    "npz": (Npz, ("train", "test", "share", *_SPLIT), ("train",)),
    "series": (Series, ("file", "horizon", "stride", "steps", "noise", "standardise", "test_share"), ()),
    "stl10": (Stl10, ("archive", *_IMAGES), ("archive",)),
    "svhn": (Svhn, ("train", "test", *_IMAGES), ("train",)),
    "text": (
        Text,
        ("train", "test", "train_members", "test_members", "gutenberg", "vocabulary", "test_share", "split_seed"),
        ("train",),
    ),
}
# What input_shape is of, what its first number says to the source, and the form of the whole.
_SHAPES = {
    "graphs": ("graph", "edges", "[edges of a graph, 2]"),
    "series": ("series", "length", "[length of a piece, values at each step]"),
    "text": ("text", "length", "[length of a piece of text]"),
}
_FILES = ("archive", "file", "train", "test", *_IDX)


def data_source(table: object, folder: Path, input_shape: object) -> DataSource:
    """The source that the table describes; nothing is read yet. Paths are relative to ``folder``.

    Raises: WorkloadError or UnknownName.
    """
    table = known_keys("[data]", table, None, needed=("source",))
    source = choice("data source", table["source"], (*_SOURCES, "factory"))
    if source == "factory":
        return _factory(table)
    make, keys, needed = _SOURCES[source]
    table = known_keys(f"[data] from {source}", table, ("source", *keys), needed=needed)
    values = {key: _value(key, value, folder, source) for key, value in table.items() if key != "source"}
    if source == "cinic10":  # its layout
        values.setdefault("train_folder", "train")
        if "test_share" not in values and "test" not in values:
            values.setdefault("test_folder", "test")
    if source in _SHAPES:
        what, key, form = _SHAPES[source]
        if not isinstance(input_shape, list) or len(input_shape) != form.count(",") + 1:
            raise WorkloadError(f"input_shape of a {what}", value=input_shape, allowed=form)
        values[key] = input_shape[0]
    return make(**values)


def _factory(table: dict[str, Any]) -> DataSource:
    table = known_keys("[data] from a factory", table, ("source", "factory", "options"), needed=("factory",))
    options = table.get("options", {})
    if not isinstance(options, dict):
        raise WorkloadError("options of the data factory", value=options, allowed="a table [data.options]")
    return partial(find(table["factory"], "the data factory"), **options)


def _value(key: str, value: object, folder: Path, source: str) -> object:
    if key in _FILES:
        if source == "text" and isinstance(value, list) and value:
            return tuple(file_value(f"{key} file", item, folder) for item in value)
        return file_value(f"{key} file", value, folder)
    if key == "classes":
        if not isinstance(value, list):
            raise WorkloadError("classes", value=value, allowed="a list of labels")
        return tuple(value)
    if key.endswith("_members"):
        return names_value(key, value)
    return value
