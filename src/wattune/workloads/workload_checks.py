"""Checks that the model, the data and the proxy of a workload fit together; every problem is one line."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from wattune.errors import WorkloadError
from wattune.workloads.data import Loaders
from wattune.workloads.values import attempt

if TYPE_CHECKING:
    from wattune.workloads.workload import Workload

OUTPUTS = {"classification": "(2, classes)", "language": "(2, length, characters)", "regression": "(2, ...)"}
"""Shape of a model's output for two samples."""


def output_shape(workload: Workload) -> tuple[int, ...]:
    """Shape of the model's output for one sample. Raises: WorkloadError if it does not accept the input shape."""
    # Two samples, to expose a model that confuses the batch with another dimension.
    model = workload.without_weights().model(0).eval()
    kind = torch.int64 if workload.task == "language" else torch.float32
    with torch.no_grad():
        x = torch.zeros(2, *workload.input_shape, dtype=kind)
        output = attempt(f"the model does not accept inputs of shape {workload.input_shape}", lambda: model(x))
    least = {"classification": 2, "language": 3, "regression": 1}[workload.task]
    if not isinstance(output, Tensor) or output.ndim < least or len(output) != 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise WorkloadError("the model's output for two samples", value=shape, allowed=OUTPUTS[workload.task])
    return tuple(output.shape[1:])


def check(workload: Workload) -> None:
    """Try the data on the model. Raises: WorkloadError if shapes, types, labels or the loss do not fit."""
    data = workload.loaded
    first = attempt("the training data gives no batch", lambda: next(workload.batches(workload.batch_sizes[0], seed=0)))
    if isinstance(data, Loaders):
        _check_samples(workload, "training", *first)
        _check_samples(workload, "test", *attempt("the test loader fails", lambda: next(workload.test_batches())))
    else:
        _check_samples(workload, "training", *data.train)
        _check_samples(workload, "test", *data.test)
    if workload.batch_sizes[-1] > workload.train_samples:
        raise WorkloadError(
            "batch_sizes",
            value=workload.batch_sizes[-1],
            allowed=f"at most the {workload.train_samples} training samples",
        )
    model = workload.model(0)
    x, y = first[0][:4], first[1][:4]  # a few samples suffice
    with torch.no_grad():  # a loss without a gradient may leave PyTorch
        output = attempt("the model fails on the first batch", lambda: model(x))
        loss = attempt("the loss cannot be computed", lambda: torch.as_tensor(workload.loss(output, y)))
    if loss.numel() != 1 or not bool(loss.isfinite()):
        raise WorkloadError("the loss of the first batch", value=str(loss), allowed="one finite number")
    score = workload.metric.score or workload.loss
    metric = attempt(
        f"the metric {workload.metric.name} cannot be computed", lambda: float(score(model(x).detach().float(), y))
    )
    if math.isinf(metric):
        raise WorkloadError(f"the metric {workload.metric.name} of the first samples", value=metric, allowed="a number")
    attempt("the optimizer cannot be created", lambda: workload.optimizer(model, workload.batch_sizes[0]))


NO_PROXY = (
    'write proxy = "split" above the tables of the workload file (or in Python) to use half of its own data; or name '
    'other data of the same task with the lines [proxy.data], source = "npz", train = "other.npz"; or train with '
    "wattune.capped, which needs none"
)
"""Hint for a workload without a proxy."""


def check_proxy(workload: Workload) -> list[str]:
    """Warnings about how the proxy differs from the workload. Raises: WorkloadError."""
    proxy = workload.proxy
    if proxy is None:
        raise WorkloadError(f"{workload.name} has no proxy", hint=NO_PROXY)
    if proxy.task != workload.task:
        raise WorkloadError("task of the proxy", value=proxy.task, allowed=f"{workload.task}, as the workload's")
    check_own_target(workload)
    if proxy.target is None and proxy.target_share is None:
        raise WorkloadError(f"the proxy {proxy.name} has no target", hint='give it one, or "auto"')
    if missing := sorted(set(workload.batch_sizes) - set(proxy.batch_sizes)):
        raise WorkloadError("the proxy lacks batch sizes of the workload", value=missing, hint="give it the same ones")
    warnings = []
    for what in ("input_shape", "data_type", "evaluate_every", "augmentation"):
        mine, its = getattr(workload, what), getattr(proxy, what)
        if mine != its:
            warnings.append(f"the proxy's {what} is {its}, the workload's {mine}")
    if proxy.metric.name != workload.metric.name:
        warnings.append(f"the proxy's metric is {proxy.metric.name}, the workload's {workload.metric.name}")
    if proxy.optimizer != workload.optimizer:
        warnings.append("the proxy's optimizer or learning rate differs from the workload's")
    return warnings


def check_own_target(workload: Workload) -> None:
    """Check that the target is a number, since its plateau is known after training alone. Raises: WorkloadError."""
    if workload.target_share is not None:
        allowed = "a number: only the target of a proxy may be a share of its plateau"
        raise WorkloadError("target", value=f"{workload.target_share:.0%} of the way to the plateau", allowed=allowed)


def _check_samples(workload: Workload, part: str, x: Tensor, y: Tensor) -> None:
    output = workload.output_shape
    if tuple(x.shape[1:]) != workload.input_shape:
        raise WorkloadError(
            f"shape of a {part} sample", value=tuple(x.shape[1:]), allowed=f"input_shape, {workload.input_shape}"
        )
    if workload.task == "language" and x.is_floating_point():
        raise WorkloadError(
            f"type of the {part} inputs", value=str(x.dtype), allowed="whole numbers for a language task"
        )
    if workload.task == "regression":
        if math.prod(y.shape[1:]) != math.prod(output):
            raise WorkloadError(
                f"shape of a {part} target", value=tuple(y.shape[1:]), allowed=f"the model's output, {output}"
            )
        return
    if y.is_floating_point() or tuple(y.shape[1:]) != output[:-1]:
        raise WorkloadError(
            f"type and shape of a {part} label",
            value=f"{y.dtype} {tuple(y.shape[1:])}",
            allowed=f"whole numbers of shape {output[:-1]}, since the model's output has the shape {output}",
        )
    _check_range(f"a label of the {part} data", y, output[-1])
    if workload.task == "language":
        _check_range(f"a character of the {part} data", x, output[-1])


def _check_range(what: str, values: Tensor, outputs: int) -> None:
    if int(values.max()) >= outputs:
        raise WorkloadError(
            what, value=int(values.max()), allowed=f"0 to {outputs - 1}, since the model has {outputs} outputs"
        )
