"""Workload files: ``Workload(...)`` as TOML, for the command line. See docs/workload-file.md."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from wattune.errors import UnknownName, WorkloadError
from wattune.workloads.data import Augmentation
from wattune.workloads.data_table import data_source
from wattune.workloads.metrics import LOSSES, METRICS, Metric
from wattune.workloads.model import Model
from wattune.workloads.models import MODELS
from wattune.workloads.optimizers import OptimizerRule
from wattune.workloads.values import choice, find, known_keys, names_value, path_value
from wattune.workloads.workload import SPLIT, OptimizerOf, Workload
from wattune.workloads.workload_checks import check_own_target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FACTORY = '"package.module:factory"'
TABLES = ("model", "data", "loss", "metric", "optimizer", "augmentation")
PLAIN = tuple(field.name for field in fields(Workload) if field.name not in (*TABLES, "proxy", "target_share"))
"""Keys passed to ``Workload`` unchanged."""


def load_workload(path: str | Path) -> Workload:
    """Read a workload file. Its paths are relative to its folder, whose modules it can name.

    Weights and data are read when they are needed.
    Raises: WorkloadError or UnknownName, in one line, if anything in the file is wrong.
    """
    path = Path(path)
    table = read_toml(path)
    table.pop("run", None)  # the arguments of a run: `job.config` reads them
    folder = path.resolve().parent
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # child processes inherit it and find the user's modules too
    try:
        required = ("name", "model", "data", "input_shape", "budget_samples")
        known_keys("the workload", table, (*PLAIN, *TABLES, "proxy"), required=required)
        proxy = table.pop("proxy", None)
        workload = _workload(table, folder)
        check_own_target(workload)
        if proxy is None:
            return workload
    except WorkloadError as error:
        raise _at_place(error, path.name) from error
    try:
        if isinstance(proxy, str):
            name: Any = choice("proxy", proxy, (SPLIT,))
            return replace(workload, proxy=name)
        known_keys("[proxy]", proxy, (*PLAIN, *TABLES), required=("data",))
        # The batch size of today is that of the target; the proxy is trained at several.
        shared = {key: value for key, value in table.items() if key != "batch_size"}
        own = _workload({**shared, "name": f"{workload.name}-proxy", **proxy}, folder)
    except WorkloadError as error:
        raise _at_place(error, f"{path.name}, [proxy]") from error
    return replace(workload, proxy=own)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises: WorkloadError."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError as error:
        raise WorkloadError("no such workload file", value=str(path), hint="give the path of a TOML file") from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not TOML
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a TOML file") from error


def _workload(table: Mapping[str, Any], folder: Path) -> Workload:
    values = {key: table[key] for key in PLAIN if key in table}
    if "loss" in table:
        values["loss"] = _loss(table["loss"])
    if "metric" in table:
        values["metric"] = _metric(table["metric"])
    if "optimizer" in table:
        values["optimizer"] = _optimizer(table["optimizer"])
    if "augmentation" in table:
        values["augmentation"] = Augmentation(
            **known_keys("[augmentation]", table["augmentation"], _names(Augmentation))
        )
    return Workload(
        model=_model(table["model"], folder), data=data_source(table["data"], folder, table["input_shape"]), **values
    )


def _model(value: object, folder: Path) -> Model:
    table = {"name": value} if isinstance(value, str) else value
    table = known_keys(
        "[model]", table, ("name", "options", "weights", "reinitialise", "train_only"), required=("name",)
    )
    name, options = table["name"], table.get("options", {})
    if not isinstance(options, dict):
        raise WorkloadError("options of the model", value=options, allowed="a table [model.options]")
    if not isinstance(name, str) or (":" not in name and name not in MODELS):
        raise UnknownName("model", str(name), [*MODELS, FACTORY])
    weights = table.get("weights")
    return Model(
        MODELS.get(name) or find(name, "the model"),
        options,
        weights=None if weights is None else path_value("weights", weights, folder),
        reinitialise=names_value("reinitialise", table.get("reinitialise", [])),
        train_only=names_value("train_only", table.get("train_only", [])),
    )


def _loss(value: object) -> Any:
    if isinstance(value, str) and ":" in value:
        return find(value, "the loss")
    return choice("loss", value, LOSSES)


def _metric(value: object) -> str | Metric:
    if not isinstance(value, dict):
        return choice("metric", value, METRICS)
    table = known_keys("[metric]", value, ("name", "function", "direction"), required=("function", "direction"))
    name = str(table.get("name", table["function"]))
    return Metric(name, table["direction"], find(table["function"], "the metric"))


def _optimizer(value: object) -> OptimizerOf:
    if isinstance(value, dict) and "factory" in value:
        return find(known_keys("[optimizer]", value, ("factory",))["factory"], "the optimizer")
    return OptimizerRule(**known_keys("[optimizer]", value, _names(OptimizerRule), required=("name", "learning_rate")))


def _names(kind: type[Augmentation | OptimizerRule]) -> list[str]:
    return [field.name for field in fields(kind)]


def _at_place(error: WorkloadError, place: str) -> WorkloadError:
    return WorkloadError(f"{place}: {error.what}", value=error.value, allowed=error.allowed, hint=error.hint)
