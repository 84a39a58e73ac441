"""Checks of a Lightning Trainer, and the replacement of its loader."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.loggers import Logger, MLFlowLogger
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource

from wattune.errors import InputError
from wattune.online import Session
from wattune.online.fit_check import FitCheck
from wattune.tracking.trackers import LogTo


class LoaderSource(_DataLoaderSource):
    """Lightning's source of the user's loader, with ``replace`` applied to the loader."""

    def __init__(self, source: _DataLoaderSource, replace: Callable[[Any], Any]):
        super().__init__(source.instance, source.name)
        self._replace = replace

    def dataloader(self) -> Any:
        """The replacement of the user's loader."""
        return self._replace(super().dataloader())


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
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise InputError(
            "training_step(dataloader_iter) fetches its own batches", allowed="training_step(batch, batch_idx)"
        )


def in_run_of(loggers: Iterable[Logger], log_to: LogTo) -> LogTo:
    """``log_to`` with "mlflow" as the run of Lightning's own logger for it, which is never MLflow's active run."""
    logger = next((one for one in loggers if isinstance(one, MLFlowLogger)), None)
    wanted: list[Any] = list(log_to) if isinstance(log_to, (list, tuple)) else [log_to]
    if logger is None or "mlflow" not in wanted:
        return log_to
    from wattune.tracking.mlflow_run import MlflowRun

    return [MlflowRun(logger.experiment, logger.run_id or "") if one == "mlflow" else one for one in wanted]


def set_fit_check(session: Session, module: LightningModule, largest: int) -> None:
    """Check larger micro-batches with the module that ``training_step`` calls: usually the only child that holds all
    weights, not the LightningModule itself."""
    weights = {id(p) for p in module.parameters() if p.requires_grad}
    children = [child for child in module.children() if weights <= {id(p) for p in child.parameters()}]
    if len(children) == 1:
        run = session.run
        run.fit_check = FitCheck(run.device, children[0], largest, session.optimizer)
