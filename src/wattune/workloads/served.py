"""Conversion between workloads and a server's description of a model: its proxy for the server, itself for a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wattune.errors import WorkloadError
from wattune.records.served import FACTORIES, ServedFile, ServedModel
from wattune.workloads.data import Augmentation, DataSource
from wattune.workloads.data_table import data_source
from wattune.workloads.example import Digits, example_workload
from wattune.workloads.metrics import LOSSES, METRICS
from wattune.workloads.model import Model
from wattune.workloads.models import MODELS
from wattune.workloads.optimizers import OptimizerRule
from wattune.workloads.workload import Workload

SAME = ("input_shape", "task", "data_type", "batch_sizes", "evaluate_every", "host_s_per_sample")
"""Fields that a workload and its description both have."""

FILE = "sha256:"
"""Prefix of the name of a server's file in a table [data]."""


def proxy_workload(
    model: ServedModel, weights: Path | None, file: Callable[[str], Path], *, target: float | str | None = None
) -> Workload:
    """Make the proxy that the server trains to estimate the samples to target.

    ``weights``: path of the model's safetensors file; None if it has none. ``file``: SHA-256 of one of the server's
    files -> its path. ``target``: None is the proxy's own, or else the model's. Nothing is read yet.

    Raises: WorkloadError, UnknownName.
    """
    proxy = model.proxy
    own = model.target if proxy.target is None else proxy.target
    data = {key: _local(value, file) for key, value in proxy.data.items()}
    return _workload(
        model,
        f"{model.model}-proxy",
        weights,
        data=data_source(data, Path(), list(model.input_shape)),
        target=own if target is None else target,
        budget_samples=proxy.budget_samples or model.budget_samples,
    )


def device_workload(
    model: ServedModel,
    weights: Path | None,
    data: str | Path | DataSource,
    *,
    target: float | None = None,
    budget_samples: int | None = None,
) -> Workload:
    """Make the workload that a device trains: the server's model on the device's own data, without the proxy.

    ``data``: as ``Workload`` takes it, or a file: ``.npz`` with images and labels or inputs and targets, or, if the
    proxy is a text, a text, read with the proxy's vocabulary. ``target``, ``budget_samples``: None is
    the model's own. Nothing is read yet. Raises: WorkloadError.
    """
    source = _own_file(model, Path(data)) if isinstance(data, (str, Path)) else data
    return _workload(
        model,
        model.model,
        weights,
        data=source,
        target=model.target if target is None else target,
        budget_samples=budget_samples or model.budget_samples,
    )


def served_model(
    workload: Workload, *, factory: str, data: Mapping[str, Any], weights: ServedFile | None = None
) -> ServedModel:
    """Describe this workload for a server; its name becomes the model's.

    ``factory``: name of its model; ``data``: the table [data] of its proxy, with the server's files as "sha256:...";
    ``weights``: the server's file with its initial weights.

    Raises: WorkloadError if a description cannot express the workload, such as a user's own loss, or a proxy with a
    recipe other than the workload's; RecordError.
    """
    proxy = workload.proxy
    if proxy is None:
        raise WorkloadError(f"{workload.name} has no proxy", hint="give it a table [proxy]")
    if factory not in FACTORIES:
        raise WorkloadError("a server's model", value=factory, allowed=", ".join(FACTORIES))
    rule = workload.optimizer
    if not isinstance(rule, OptimizerRule):
        raise WorkloadError("a server's model with a custom optimizer", allowed="adam, adamw or sgd by name")
    if workload.micro_batch_sizes:
        raise WorkloadError("micro_batch_sizes of a server's model", allowed="none")
    model = ServedModel.parse(
        {
            "record": ServedModel.name,
            "model": workload.name,
            "factory": factory,
            "options": dict(workload.model.options),
            **{name: getattr(workload, name) for name in SAME},
            "loss": _name(workload.loss, LOSSES, "loss"),
            "metric": _name(workload.metric, METRICS, "metric"),
            "optimizer": asdict(rule),
            "augmentation": asdict(workload.augmentation),
            "budget_samples": workload.budget_samples,
            "target": workload.target,
            "reinitialise": workload.model.reinitialise,
            "train_only": workload.model.train_only,
            "weights": None if weights is None else weights.model_dump(),
            "proxy": {"data": dict(data), "target": proxy_target(proxy), "budget_samples": proxy.budget_samples},
        },
        source=f"the model {workload.name}",
    )
    for what in ("input_shape", "task", "data_type", "loss", "metric", "optimizer", "augmentation", "evaluate_every"):
        if getattr(proxy, what) != getattr(workload, what):
            raise WorkloadError(f"{what} of a server's proxy", allowed="that of its model")
    if {**vars(workload.model), "weights": None} != {**vars(proxy.model), "weights": None}:
        raise WorkloadError("the model of a server's proxy", allowed="the same as the workload's")
    return model


def proxy_target(proxy: Workload) -> float | str | None:
    """The target of a proxy as ``Workload`` takes it."""
    return proxy.target if proxy.target_share is None else f"{100 * proxy.target_share:g}%"


def served_example(weights: ServedFile) -> ServedModel:
    """Describe the built-in example "resnet8-digits" for a server; ``weights``: its ``pretrained`` file."""
    example = example_workload()
    assert example.proxy is not None
    assert isinstance(example.proxy.data, Digits)
    digits = asdict(example.proxy.data)
    data = {"source": "digits", **digits, "classes": list(digits["classes"])}
    return served_model(example, factory="resnet8", data=data, weights=weights)


def _workload(
    model: ServedModel,
    name: str,
    weights: Path | None,
    *,
    data: DataSource,
    target: float | str | None,
    budget_samples: int,
) -> Workload:
    if (weights is None) != (model.weights is None):
        problem = "needs a" if weights is None else "has no"
        raise WorkloadError(f"{model.model} {problem} file with initial weights")
    return Workload(
        name,
        # A description can name a model of FACTORIES only.
        model=Model(
            MODELS[model.factory],
            model.options,
            weights=weights,
            reinitialise=model.reinitialise,
            train_only=model.train_only,
        ),
        data=data,
        loss=model.loss,
        metric=model.metric,
        optimizer=OptimizerRule(**model.optimizer.model_dump()),
        augmentation=Augmentation(**model.augmentation.model_dump()),
        target=target,
        budget_samples=budget_samples,
        **{name: getattr(model, name) for name in SAME},
    )


def _own_file(model: ServedModel, path: Path) -> DataSource:
    table = {"source": "npz", "train": str(path)}
    if model.proxy.data["source"] == "text" and path.suffix != ".npz":
        if "vocabulary" not in model.proxy.data:
            raise WorkloadError(
                f"a text for {model.model}, whose vocabulary the server does not give",
                value=str(path),
                hint="give an .npz file with inputs and targets as character indices",
            )
        table |= {"source": "text", "vocabulary": model.proxy.data["vocabulary"]}
    return data_source(table, Path(), list(model.input_shape))


def _local(value: object, file: Callable[[str], Path]) -> object:
    if isinstance(value, str) and value.startswith(FILE):
        return str(file(value.removeprefix(FILE)))
    return list(value) if isinstance(value, tuple) else value


def _name(value: object, names: Mapping[str, object], what: str) -> str:
    for name, thing in names.items():
        if thing == value:
            return name
    raise WorkloadError(f"a server's model with a custom {what}", allowed=", ".join(names))
