"""Workload files: the same as ``Workload(...)`` in Python, as TOML for the command line. See docs/workload-file.md."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from wattune.errors import UnknownName, WorkloadError
from wattune.workloads.augmentation import Augmentation
from wattune.workloads.data import DataSource
from wattune.workloads.metrics import LOSSES, METRICS, Metric
from wattune.workloads.model import Model
from wattune.workloads.models import MODELS
from wattune.workloads.optimizers import OptimizerRule
from wattune.workloads.sources import Digits, Npz, Text
from wattune.workloads.values import choice
from wattune.workloads.workload import OptimizerOf, Workload

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PLAIN = (
    "name",
    "task",
    "input_shape",
    "data_type",
    "batch_sizes",
    "micro_batch_sizes",
    "host_s_per_sample",
    "target",
    "evaluate_every",
    "budget_samples",
)
"""Keys that go to ``Workload`` as they are."""

TABLES = ("model", "data", "loss", "metric", "optimizer", "augmentation")
OPTIMIZER_KEYS = ("name", "learning_rate", "reference_batch_size", "scaling", "weight_decay", "momentum")
SPLIT_KEYS = ("test_share", "split_seed", "classes")


def load_workload(path: str | Path) -> Workload:
    """Read a workload file. Paths in it are relative to it, and modules beside it can be named in it.

    Weights and data are not read before they are needed.
    Raises: WorkloadError or UnknownName, one line, for anything in it that is not right.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError as error:
        raise WorkloadError("no such workload file", value=str(path), hint="give the path of a TOML file") from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not TOML
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a TOML file") from error
    folder = path.resolve().parent
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # and processes that are started later find the user's modules too
    try:
        proxy = table.pop("proxy", None)
        workload = _workload(table, folder)
        if proxy is None:
            return workload
    except WorkloadError as error:
        raise _placed(error, path.name) from error
    try:
        _known("[proxy]", proxy, (*PLAIN, *TABLES), needed=("data",))
        own = _workload({**table, "name": f"{workload.name}-proxy", **proxy}, folder)
    except WorkloadError as error:
        raise _placed(error, f"{path.name}, [proxy]") from error
    return replace(workload, proxy=own)


def find(text: object, what: str) -> Callable[..., Any]:
    """The object that "package.module:name" stands for. Raises: WorkloadError."""
    if not isinstance(text, str) or text.count(":") != 1:
        raise WorkloadError(what, value=text, allowed='"package.module:name"')
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the user's module may raise anything
        raise WorkloadError(f"{what}: cannot import {text}", value=f"{type(error).__name__}: {error}") from error
    if not callable(found):
        raise WorkloadError(f"{what}: {text}", value=type(found).__name__, allowed="something that can be called")
    return found  # type: ignore[no-any-return]


def _workload(table: Mapping[str, Any], folder: Path) -> Workload:
    _known("the workload", table, (*PLAIN, *TABLES), needed=("name", "model", "data", "input_shape", "budget_samples"))
    values = {key: table[key] for key in PLAIN if key in table}
    if "loss" in table:
        values["loss"] = _loss(table["loss"])
    if "metric" in table:
        values["metric"] = _metric(table["metric"])
    if "optimizer" in table:
        values["optimizer"] = _optimizer(table["optimizer"])
    if "augmentation" in table:
        values["augmentation"] = Augmentation(
            **_known("[augmentation]", table["augmentation"], ("flip", "shift", "noise"))
        )
    return Workload(
        model=_model(table["model"], folder), data=_data(table["data"], folder, table["input_shape"]), **values
    )


def _model(value: object, folder: Path) -> Model:
    table = {"name": value} if isinstance(value, str) else value
    table = _known("[model]", table, ("name", "options", "weights", "reinitialise", "train_only"), needed=("name",))
    name, options = table["name"], table.get("options", {})
    if not isinstance(options, dict):
        raise WorkloadError("options of the model", value=options, allowed="a table [model.options]")
    if not isinstance(name, str) or (":" not in name and name not in MODELS):
        raise UnknownName("model", str(name), [*MODELS, '"package.module:factory"'])
    weights = table.get("weights")
    return Model(
        find(MODELS.get(name, name), "the model"),
        options,
        weights=None if weights is None else _path("weights", weights, folder),
        reinitialise=_names("reinitialise", table.get("reinitialise", [])),
        train_only=_names("train_only", table.get("train_only", [])),
    )


def _data(table: object, folder: Path, input_shape: object) -> DataSource:
    table = _known("[data]", table, None, needed=("source",))
    source = choice("data source", table["source"], ("npz", "text", "digits", "factory"))
    if source == "factory":
        table = _known("[data] from a factory", table, ("source", "factory", "options"), needed=("factory",))
        options = table.get("options", {})
        if not isinstance(options, dict):
            raise WorkloadError("options of the data factory", value=options, allowed="a table [data.options]")
        return partial(find(table["factory"], "the data factory"), **options)
    files = ("train", "test")
    keys = {
        "npz": (*files, *SPLIT_KEYS),
        "text": (*files, "test_share", "vocabulary"),
        "digits": ("size", "invert", "noise", *SPLIT_KEYS),
    }[source]
    table = _known(f"[data] from {source}", table, ("source", *keys), needed=() if source == "digits" else ("train",))
    values: dict[str, Any] = {
        key: _path(f"{key} file", v, folder) if key in files else v for key, v in table.items() if key != "source"
    }
    if "classes" in values:
        if not isinstance(values["classes"], list):
            raise WorkloadError("classes", value=values["classes"], allowed="a list of labels")
        values["classes"] = tuple(values["classes"])
    if source == "text":
        if not isinstance(input_shape, list) or len(input_shape) != 1:
            raise WorkloadError("input_shape of a text", value=input_shape, allowed="[length of a piece of text]")
        return Text(length=input_shape[0], **values)
    return Npz(**values) if source == "npz" else Digits(**values)


def _loss(value: object) -> Any:
    if isinstance(value, str) and ":" in value:
        return find(value, "the loss")
    return choice("loss", value, LOSSES)


def _metric(value: object) -> str | Metric:
    if not isinstance(value, dict):
        return choice("metric", value, METRICS)
    table = _known("[metric]", value, ("name", "function", "direction"), needed=("function", "direction"))
    name = str(table.get("name", table["function"]))
    return Metric(name, table["direction"], find(table["function"], "the metric"))


def _optimizer(value: object) -> OptimizerOf:
    if isinstance(value, dict) and "factory" in value:
        return find(_known("[optimizer]", value, ("factory",))["factory"], "the optimizer")
    return OptimizerRule(**_known("[optimizer]", value, OPTIMIZER_KEYS, needed=("name", "learning_rate")))


def _known(where: str, table: object, keys: Iterable[str] | None, *, needed: Iterable[str] = ()) -> dict[str, Any]:
    """``table``, if it is one and has these keys and no other."""
    if not isinstance(table, dict):
        raise WorkloadError(where, value=table, allowed="a table")
    if keys is not None and (unknown := [key for key in table if key not in keys]):
        raise WorkloadError(f"unknown key in {where}", value=unknown[0], allowed=", ".join(keys))
    for key in needed:
        if key not in table:
            raise WorkloadError(f"{key} is missing in {where}", hint="see docs/workload-file.md")
    return table


def _path(what: str, value: object, folder: Path) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise WorkloadError(what, value=value, allowed="a path")
    return folder / Path(value).expanduser()


def _names(what: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise WorkloadError(what, value=value, allowed='a list of names, such as ["fc"]')
    return tuple(value)


def _placed(error: WorkloadError, place: str) -> WorkloadError:
    return WorkloadError(f"{place}: {error.what}", value=error.value, allowed=error.allowed, hint=error.hint)
