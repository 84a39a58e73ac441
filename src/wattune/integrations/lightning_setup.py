"""Checks of a Lightning Trainer, and trial passes of its module."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from wattune.errors import InputError
from wattune.integrations.lightning_loader import FitLoader
from wattune.online.micro_batching import even
from wattune.point import BatchShape


def check_trainer(trainer: Any, module: LightningModule) -> None:
    """Check that PowerCapCallback supports the Trainer's settings. Raises: InputError."""
    if not module.automatic_optimization:
        raise InputError(
            "PowerCapCallback cannot see the steps of manual optimization",
            value=type(module).__name__,
            hint="use automatic optimization, or wattune.capped in a loop of your own",
        )
    strategy = trainer.strategy
    if strategy.handles_gradient_accumulation:
        raise InputError(
            "PowerCapCallback does not support a strategy that accumulates gradients itself",
            value=type(strategy).__name__,
        )
    if trainer.world_size > 1 and not isinstance(strategy, DDPStrategy):
        raise InputError(
            f"PowerCapCallback does not support this strategy for {trainer.world_size} processes",
            value=type(strategy).__name__,
            allowed='strategy="ddp"',
        )
    if trainer.world_size > 1 and strategy._start_method != "popen":
        raise InputError(
            "PowerCapCallback does not return from processes that Lightning forks or spawns",
            value=f"ddp_{strategy._start_method}",
            allowed='strategy="ddp", or torchrun',
        )
    for other in trainer.callbacks:
        if isinstance(other, (GradientAccumulationScheduler, StochasticWeightAveraging)):
            raise InputError("a callback that also changes the batches per step", value=type(other).__name__)
        if isinstance(other, (BatchSizeFinder, LearningRateFinder)):
            hint = "use lightning.pytorch.tuner.Tuner with a Trainer without PowerCapCallback"
            raise InputError("a finder would run steps without a cap", value=type(other).__name__, hint=hint)
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise InputError(
            "training_step(dataloader_iter) fetches its own batches", allowed="training_step(batch, batch_idx)"
        )


class Trials:
    """Passes of ``training_step`` over random samples of the data set."""

    def __init__(self, trainer: Any, module: LightningModule, loader: FitLoader):
        self._trainer, self._module, self._loader = trainer, module, loader
        parameters = inspect.signature(module.training_step).parameters
        self._rest = (0,) if len(parameters) > 1 or "args" in parameters else ()
        self._samples: list[Any] = []
        self._shape: BatchShape | None = None
        self._batches: list[tuple[Any, int]] = []

    @contextmanager
    def without_trace(self) -> Iterator[None]:
        """Context in which modules count on copies of their attributes, such as metrics, and nothing is logged."""
        trainer, own = self._trainer, self._module
        inside, loggers = vars(LightningModule()).keys(), trainer.loggers
        modules = {one: {**vars(one), "_buffers": dict(one._buffers)} for one in own.modules()}
        shared = [trainer, trainer.datamodule, *modules, *own.parameters(), *own.buffers(), *trainer.optimizers]
        memo = {id(one): one for one in shared}
        try:
            for one, attributes in modules.items():
                vars(one).update(
                    {name: copy.deepcopy(value, memo) for name, value in attributes.items() if name not in inside}
                )
            vars(own).update(log=lambda *_, **__: None, log_dict=lambda *_, **__: None)
            trainer.loggers = [DummyLogger() for _ in loggers]
            yield
        finally:
            trainer.loggers = loggers
            for one, attributes in modules.items():
                vars(one).clear()
                vars(one).update(attributes)

    def passes(self, shape: BatchShape) -> None:
        """Forward and backward passes of one optimizer step. Raises: SIGTERMException once Lightning got the signal."""
        if self._trainer.received_sigterm:
            raise SIGTERMException
        if shape != self._shape:
            self._prepare(shape)
        for batch, size in self._batches:
            torch.autograd.backward(self._loss(batch) * (size / shape.batch))

    def _prepare(self, shape: BatchShape) -> None:
        self._samples = self._samples or self._loader.draw(shape.batch)
        self._shape, self._batches, begin = shape, [], 0
        for size in even(*shape):
            batch = self._loader.loader.collate_fn(self._samples[begin : begin + size])
            self._batches.append((self._trainer.precision_plugin.convert_input(batch), size))
            begin += size

    def _loss(self, batch: Any) -> Tensor:
        strategy = self._trainer.strategy
        batch = self._module._on_before_batch_transfer(batch, dataloader_idx=0)
        outputs = strategy.training_step(strategy.batch_to_device(batch, dataloader_idx=0), *self._rest)
        loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, Tensor):  # None skips a batch
            raise TypeError(f"training_step returned {type(loss).__name__}, not the loss as a tensor")
        return loss
