"""A workload: a model, its data, how to train it, and when training is done."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from wattune.errors import WorkloadError
from wattune.workloads.data import Augmentation, Data, DataSource, Half, Loaders, Order, load, prepare
from wattune.workloads.metrics import LOSSES, METRICS, Metric
from wattune.workloads.model import Model, state_hash, structure_hash
from wattune.workloads.optimizers import OptimizerRule
from wattune.workloads.values import choice, number, plateau_share, whole, whole_numbers
from wattune.workloads.workload_checks import check, check_proxy, output_shape

DATA_TYPES = ("fp32", "tf32", "fp16", "bf16")
"""Data types that a step can compute in."""

DEFAULTS = {
    "classification": ("cross_entropy", "accuracy"),
    "language": ("cross_entropy", "character_accuracy"),
    "regression": ("mse", "loss"),
}
"""Task -> its default loss and metric."""

EVALUATION_BATCH = 256

SPLIT = "split"
"""Name of the proxy that is a half of the workload's own data."""


class Loss(Protocol):
    """(output, target) -> mean over the batch, a scalar; a number if it is a black box."""

    def __call__(self, output: Tensor, target: Tensor) -> Tensor | float: ...  # noqa: D102


class OptimizerOf(Protocol):
    """(model, batch size) -> an optimizer of the trainable parameters."""

    def __call__(self, model: nn.Module, batch_size: int) -> torch.optim.Optimizer: ...  # noqa: D102


@dataclass(frozen=True, init=False, eq=False)
class Workload:
    """A model to train, its data, and when to stop. ``dataclasses.replace`` makes a changed copy.

    ``name``: its name in the records.
    ``model``: a module, a callable that makes one, or a ``Model`` with weights and layers to reinitialise or to freeze.
    ``data``: ``Data`` (arrays), ``Loaders``, or a callable that makes either when it is first needed.
    ``loss``: "cross_entropy", "mse", "mae" or a callable (output, target) -> mean of the batch; default: the task's.
    ``optimizer``: an ``OptimizerRule`` or a callable (model, batch_size) -> optimizer.
    ``metric``: "accuracy", "character_accuracy", "loss", "mse", "mae" or a ``Metric``; default: the task's.
    ``target``: value of the metric at which training is done; None for a workload that is only profiled. Of a proxy
    also "auto" or a text such as "90%": ``target_share``, of the way from its first metric to its plateau, if no number
    is known.
    ``budget_samples``: training samples after which a run ends without the target.
    ``evaluate_every``: samples between evaluations at every batch size; default: the largest batch size.
    ``batch_sizes``: of an optimizer step, ascending. ``batch_size``: the one that you train with today, which is kept
    unless another one is surely faster; None: there is none. ``micro_batch_sizes``: of a forward pass; empty: the same.
    ``input_shape``: of one sample; read from ``Data``, otherwise required.
    ``task``: "classification", "language" or "regression". ``data_type``: one of ``DATA_TYPES``.
    ``augmentation``: random changes of the training samples. ``host_s_per_sample``: CPU seconds to load a sample.
    ``proxy``: a workload of the same task on available data, for estimating the samples to target; or "split": the same
    workload on a random half of its own data.

    It can be sent to other processes if its callables are functions of a module.
    Raises: WorkloadError or UnknownName for invalid values. The data is read when it is needed.
    """

    name: str
    model: Model
    data: DataSource
    loss: Loss
    optimizer: OptimizerOf
    metric: Metric
    target: float | None
    target_share: float | None
    budget_samples: int
    evaluate_every: int
    batch_sizes: tuple[int, ...]
    batch_size: int | None
    micro_batch_sizes: tuple[int, ...]
    input_shape: tuple[int, ...]
    task: str
    data_type: str
    augmentation: Augmentation
    host_s_per_sample: float
    proxy: Workload | None

    def __init__(
        self,
        name: str,
        *,
        model: Model | nn.Module | Callable[[], nn.Module],
        data: DataSource,
        budget_samples: int,
        loss: str | Loss | None = None,
        optimizer: OptimizerOf | None = None,
        metric: str | Metric | None = None,
        target: float | str | None = None,
        target_share: float | None = None,
        evaluate_every: int | None = None,
        batch_sizes: Iterable[int] = (4, 8, 16, 32, 64, 128),
        batch_size: int | None = None,
        micro_batch_sizes: Iterable[int] = (),
        input_shape: Iterable[int] | None = None,
        task: str = "classification",
        data_type: str = "fp32",
        augmentation: Augmentation | None = None,
        host_s_per_sample: float = 0.0002,
        proxy: Workload | Literal["split"] | None = None,
    ):
        if not isinstance(name, str) or not name.strip():
            raise WorkloadError("name of the workload", value=name, allowed="a text")
        choice("task", task, DEFAULTS)
        choice("data type", data_type, DATA_TYPES)
        usual_loss, usual_metric = DEFAULTS[task]
        loss = usual_loss if loss is None else loss
        metric = usual_metric if metric is None else metric
        if input_shape is None and isinstance(data, Data):
            input_shape = data.train[0].shape[1:]
        if input_shape is None:
            raise WorkloadError("input_shape is missing", allowed="the shape of one sample, such as [3, 32, 32]")
        sizes = whole_numbers("batch_sizes", batch_sizes)
        if sizes != tuple(sorted(set(sizes))) or not sizes:
            raise WorkloadError("batch_sizes", value=list(sizes), allowed="at least one, ascending, each once")
        if batch_size is not None and whole("batch_size", batch_size) not in sizes:
            raise WorkloadError("batch_size", value=batch_size, allowed=f"one of batch_sizes, {list(sizes)}")
        micro = whole_numbers("micro_batch_sizes", micro_batch_sizes)
        if micro != tuple(sorted(set(micro))) or any(m > sizes[-1] for m in micro):
            raise WorkloadError("micro_batch_sizes", value=list(micro), allowed=f"ascending, at most {sizes[-1]}")
        if unused := [m for m in micro if all(size % m for size in sizes)]:
            raise WorkloadError("micro_batch_sizes", value=unused, allowed="divisors of at least one batch size")
        every = whole("evaluate_every", sizes[-1] if evaluate_every is None else evaluate_every)
        if every < sizes[-1]:
            raise WorkloadError("evaluate_every", value=every, allowed=f"at least the largest batch size, {sizes[-1]}")
        if whole("budget_samples", budget_samples) < every:
            raise WorkloadError("budget_samples", value=budget_samples, allowed=f"at least evaluate_every, {every}")
        if isinstance(target, str):
            target_share = plateau_share(target)
            target = None
        values = {
            "name": name,
            "model": model if isinstance(model, Model) else Model(model),
            "data": data,
            "loss": LOSSES[choice("loss", loss, LOSSES)] if isinstance(loss, str) else loss,
            "optimizer": OptimizerRule() if optimizer is None else optimizer,
            "metric": METRICS[choice("metric", metric, METRICS)] if isinstance(metric, str) else metric,
            "target": target,
            "target_share": None if target is not None else target_share,
            "budget_samples": budget_samples,
            "evaluate_every": every,
            "batch_sizes": sizes,
            "batch_size": batch_size,
            "micro_batch_sizes": micro,
            "input_shape": whole_numbers("input_shape", input_shape),
            "task": task,
            "data_type": data_type,
            "augmentation": Augmentation() if augmentation is None else augmentation,
            "host_s_per_sample": number("host_s_per_sample", host_s_per_sample, least=0),
            "proxy": None if isinstance(proxy, str) else proxy,
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)  # the class is frozen
        if isinstance(proxy, str):
            choice("proxy", proxy, (SPLIT,))
            half = replace(self, name=f"{name}-half", data=Half(data), batch_size=None, proxy=None)
            object.__setattr__(self, "proxy", half)
        if target is not None:
            self.metric.check_target(target)
        self.augmentation.check(self.input_shape)

    def __getstate__(self) -> dict[str, Any]:
        # Without the cached properties: another process computes them again.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    # ------------------------------------------------------------------------------------------------------- data

    @cached_property
    def loaded(self) -> Data | Loaders:
        """The data, read at the first use. Raises: WorkloadError."""
        return load(self.data)

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the model's output for one sample. Raises: WorkloadError."""
        return output_shape(self)

    @property
    def train_samples(self) -> int:
        """Number of training samples; reads the data. Raises: WorkloadError."""
        return self._counts[0]

    @property
    def test_samples(self) -> int:
        """Number of test samples; reads the data. Raises: WorkloadError."""
        return self._counts[1]

    @cached_property
    def _counts(self) -> tuple[int, int]:
        data = self.loaded
        if isinstance(data, Data):
            return len(data.train[0]), len(data.test[0])
        train = data.train(self.batch_sizes[0], 0)
        return sum(len(x) for x, _ in train), sum(len(x) for x, _ in data.test)

    def batches(self, batch_size: int, *, seed: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield training batches of exactly ``batch_size`` samples without end, from ``start`` samples into the stream.

        Order and augmentation depend on (seed, position in the stream) alone: a stream resumed at ``start`` continues
        unchanged, and with ``Data`` every batch size sees the same samples in the same order.
        Raises: WorkloadError.
        """
        whole("seed", seed, least=0)
        data = self.loaded
        if isinstance(data, Loaders):
            stream = _endless(data, batch_size, seed)
            yield from itertools.islice(stream, start // batch_size, None)
            return
        x, y = data.train
        order = Order(len(x), seed)
        for position in itertools.count(start, batch_size):
            picked = order.take(position, batch_size)
            inputs, targets = prepare(x[picked], y[picked], self.task)
            yield self.augmentation.apply(inputs, seed=seed, start=position), targets

    def test_batches(self, batch_size: int = EVALUATION_BATCH) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the test part in batches, each sample once. Raises: WorkloadError."""
        data = self.loaded
        if isinstance(data, Loaders):
            yield from data.test
            return
        x, y = data.test
        for start in range(0, len(x), batch_size):
            part = slice(start, start + batch_size)
            yield prepare(x[part], y[part], self.task)

    def example(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """Make a random batch on the CPU with the shapes and types of the data, without reading the data.

        Raises: WorkloadError if the model does not accept ``input_shape``.
        """
        draws = torch.Generator().manual_seed(0)
        output = self.output_shape  # of one sample: (classes,), (L, characters) or the shape of the target
        if self.task == "regression":
            y = torch.randn(batch_size, *output, generator=draws)
        else:
            y = torch.randint(output[-1], (batch_size, *output[:-1]), generator=draws)
        if self.task == "language":
            return torch.randint(output[-1], (batch_size, *self.input_shape), generator=draws), y
        return torch.randn(batch_size, *self.input_shape, generator=draws), y

    def evaluate(self, module: nn.Module, *, batch_size: int = EVALUATION_BATCH) -> float:
        """Compute the metric on the test part, without gradients and with ``module`` in evaluation mode.

        ``batch_size``: samples of a forward pass; the user's own loaders have their own.
        Raises: WorkloadError.
        """
        device = next(module.parameters()).device
        modes = [(part, part.training) for part in module.modules()]
        outputs, targets = [], []
        module.eval()
        try:
            with torch.no_grad():
                for x, y in self.test_batches(batch_size):
                    outputs.append(module(x.to(device)).float().cpu())
                    targets.append(y)
        finally:
            for part, training in modes:
                part.training = training
        if not outputs:
            raise WorkloadError("the test loader yielded no batch", hint="give one that can be iterated repeatedly")
        score = self.metric.score or self.loss
        return float(score(torch.cat(outputs), torch.cat(targets)))

    @property
    def is_proxy_whole(self) -> bool:
        """True if the proxy has the workload's own data, so that a proxy run is a whole training run."""
        proxy = self.proxy
        # Arrays are not compared: they may be large.
        return proxy is not None and (proxy.data is self.data or (callable(proxy.data) and proxy.data == self.data))

    @property
    def parameter_ratio(self) -> float:
        """The model's number of parameters over the proxy's. Reads neither weights nor data."""
        if self.proxy is None or self.proxy.model == self.model:
            return 1.0
        models = [replace(model, weights=None)(0) for model in (self.model, self.proxy.model)]
        own, of_proxy = (sum(parameter.numel() for parameter in model.parameters()) for model in models)
        return own / of_proxy

    # ----------------------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        """Try the data on the model. Raises: WorkloadError if shapes, types, labels or the loss do not fit."""
        check(self)

    def check_proxy(self) -> list[str]:
        """Warnings about how the proxy differs from this workload, one text each.

        Raises: WorkloadError without a proxy, or if it has another task or no target.
        """
        return check_proxy(self)

    # ----------------------------------------------------------------------------------------- fingerprints, copies

    def without_weights(self) -> Self:
        """Copy without the weights file: for profiling before the file exists."""
        proxy = None if self.proxy is None else self.proxy.without_weights()
        return replace(self, model=replace(self.model, weights=None), proxy=proxy)

    def model_fingerprint(self) -> str:
        """Fingerprint of modules, parameter shapes, and which of them train. Reads neither weights nor data."""
        return structure_hash(replace(self.model, weights=None)(0))

    def optimizer_key(self) -> str:
        """The optimizer as far as the cost of a step depends on it: its kind, not its learning rate."""
        rule = self.optimizer
        if not isinstance(rule, OptimizerRule):
            return _named(rule)
        return (
            rule.name
            + (" with momentum" if rule.momentum else "")
            + (" with weight decay" if rule.weight_decay else "")
        )

    def data_fingerprint(self) -> str:
        """Fingerprint of every value of the data; for ``Loaders``, of the first batches. Raises: WorkloadError."""
        data = self.loaded
        if isinstance(data, Loaders):
            train, test = next(self.batches(self.batch_sizes[0], seed=0)), next(self.test_batches())
        else:
            train, test = data.train, data.test
        tensors = zip(("x", "y", "x test", "y test"), (*train, *test), strict=True)
        return f"{self.train_samples}+{self.test_samples}-{state_hash(tensors)}"

    def fingerprint(self) -> str:
        """Fingerprint of everything that a learning curve depends on. Reads weights and data. Raises: WorkloadError."""
        identity: Mapping[str, object] = {
            "structure": self.model_fingerprint(),
            "weights": state_hash(self.model(0).state_dict().items()),
            "data": self.data_fingerprint(),
            "augmentation": repr(self.augmentation),
            "optimizer": repr(self.optimizer) if isinstance(self.optimizer, OptimizerRule) else _named(self.optimizer),
            "loss": _named(self.loss),
            "metric": f"{self.metric.name} {self.metric.direction} {_named(self.metric.score)}",
            "target": self.target,
            "budget_samples": self.budget_samples,
            "evaluate_every": self.evaluate_every,
            "micro_batch_sizes": self.micro_batch_sizes,
            "data_type": self.data_type,
        }
        if self.target_share is not None:
            identity = {**identity, "target_share": self.target_share}
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def _endless(loaders: Loaders, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in itertools.count():
        epoch_seed = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
        full = 0
        for x, y in loaders.train(batch_size, epoch_seed):
            if len(x) == batch_size:
                full += 1
                yield x, y
        if not full:
            raise WorkloadError("the training loader yielded no full batch", value=f"batch size {batch_size}")


def _named(thing: object) -> str:
    if isinstance(thing, partial):
        return f"{_named(thing.func)} {thing.args} {thing.keywords}"
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}:{kind.__qualname__}"
