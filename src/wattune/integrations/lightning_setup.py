"""Checks of a Lightning Trainer before a fit, its loader in batches of another size, and trial passes of its module."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sized
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
from wattune.loop.batch_source import why_fixed
from wattune.loop.micro_batching import even
from wattune.loop.rng_state import restore, states, undisturbed
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


class FitLoader:
    """The training loader of a fit. ``parts``: its batches in one optimizer step of the user's.

    ``start`` is the user's own shape. ``fixed``: the reason why the batches stay as they are, None if they need not.
    Raises: InputError for several loaders.
    """

    def __init__(self, trainer: Any, parts: int):
        loaders = trainer.fit_loop._combined_loader.flattened
        if len(loaders) > 1:
            raise InputError("several training loaders", value=len(loaders), allowed="one loader")
        self.loader: Any = loaders[0]
        own = getattr(self.loader, "batch_size", None)
        self.is_even = own is not None
        """True if all batches but the last have the same size; otherwise ``start`` has their mean size."""
        self.batch_size: int = own or self._mean_size()
        self.start = BatchShape(self.batch_size * parts, self.batch_size)
        self._batches: float = trainer.num_training_batches
        self._validates_after: Any = getattr(trainer, "val_check_interval", None)
        """Part of a pass, or batches; None if Lightning validates by the clock."""
        self.samples: int | None = None
        """Samples of a pass, None if nobody knows."""
        self.fixed = self._why_fixed(trainer)

    def _mean_size(self) -> int:
        try:
            return max(1, round(len(self.loader.dataset) / len(self.loader)))
        except (AttributeError, TypeError, NotImplementedError):
            return 1

    def _why_fixed(self, trainer: Any) -> str | None:
        reason = why_fixed(self.loader)
        if reason is not None:
            return f"{reason[0]} {reason[1]}"
        if not isinstance(self.loader.sampler, Sized) or not isinstance(self.loader.dataset, Sized):
            return "the sampler or the data set has no length"
        if hasattr(self.loader, "state_dict"):
            return "the loader has a position of its own"
        if trainer.reload_dataloaders_every_n_epochs:
            return "Lightning reloads the loader"
        self.samples = int(min(len(self.loader.sampler), self._batches * self.batch_size))
        steps_between = [one.frequency for one in trainer.lr_scheduler_configs if one.interval == "step"]
        counts = {
            "limit_train_batches": self._batches != len(self.loader),
            "val_check_interval": isinstance(self._validates_after, int),
            "the frequency of a scheduler": any(frequency != 1 for frequency in steps_between),
        }
        if (setting := next((name for name, is_set in counts.items() if is_set), None)) is not None:
            return f"{setting} counts them"
        return "the last step of a pass is smaller; use drop_last=True" if self.samples % self.start.batch else None

    def allows(self, shape: BatchShape) -> bool:
        """True if this shape trains on the same samples, and validates after as many."""
        (batch, micro), own, samples = shape, self.batch_size, self.samples
        if micro == own:
            return True
        if self.fixed is not None or samples is None or batch % micro:
            return False
        if self.loader.drop_last and len(self.loader.sampler) - samples >= micro:
            return False
        if self._validates_after is None:
            return True
        after = [max(1, int(samples // size * self._validates_after)) * size for size in (own, micro)]
        return after[0] == after[1]

    def samples_from(self, begin: int, size: int) -> int:
        """Number of samples that a pass still has from this one on, ``size`` at most."""
        return size if self.samples is None else min(size, self.samples - begin)

    def use(self, trainer: Any, shape: BatchShape, before: list[Tensor]) -> None:
        """Train in this shape, and let Lightning count its batches again. ``before``: the random state before workers
        may have fetched batches of the user's size."""
        if shape == self.start:
            return
        loop, loader, after = trainer.fit_loop, self.loader, states(self.loader)
        trainer.accumulate_grad_batches = shape.batch // shape.micro
        loader.batch_sampler.batch_size = shape.micro
        if loader.num_workers:
            restore(loader, before)
            loader._iterator = None  # persistent workers would keep their place
        source, loop._data_source.instance = loop._data_source.instance, loop._combined_loader
        loop._combined_loader = None
        loop.setup_data()
        loop._data_source.instance = source
        if not loader.num_workers:
            restore(loader, after)

    def reset(self, trainer: Any) -> None:
        """Restore the user's sizes."""
        trainer.accumulate_grad_batches = self.start.batch // self.start.micro
        if self.fixed is None:
            self.loader.batch_sampler.batch_size = self.batch_size


def count_again(progress: Any, saved: int, micro: int) -> None:
    """Count the batches of a checkpoint, of ``saved`` samples, in batches of ``micro`` samples.

    Raises: InputError for a checkpoint within one of these.
    """
    for counts in (progress.total, progress.current):
        batches, rest = divmod(counts.processed * saved, micro)
        if rest:
            raise InputError(
                "the checkpoint was saved within a batch",
                value=f"{progress.current.processed * saved} samples of a pass",
                allowed=f"whole batches of {micro}",
                hint="resume from another checkpoint, or with the settings that it was saved with",
            )
        ahead = batches - counts.processed
        for name in ("ready", "started", "processed", "completed"):  # a count may be one ahead of the next
            setattr(counts, name, getattr(counts, name) + ahead)


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
        if not self._samples:  # by their indices, so that the user's sampler draws nothing
            dataset, generator = self._loader.loader.dataset, torch.Generator().manual_seed(0)
            indices = torch.randint(len(dataset), (shape.batch,), generator=generator).tolist()
            with undisturbed():
                self._samples = [dataset[index] for index in indices]
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
