"""What of a Lightning training can be honoured, and where its loader is taken from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler, StochasticWeightAveraging
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource

from wattune.errors import InputError
from wattune.session import Session
from wattune.session.trial import Trial


class Source(_DataLoaderSource):
    """Where Lightning takes the user's loader from; ``take`` makes something else of it."""

    def __init__(self, source: _DataLoaderSource, take: Callable[[Any], Any]):
        super().__init__(source.instance, source.name)
        self._take = take

    def dataloader(self) -> Any:
        """What ``take`` made of the user's loader."""
        return self._take(super().dataloader())


def check(trainer: Any, module: LightningModule) -> None:
    """Raises: InputError for what cannot be honoured."""
    if not module.automatic_optimization:
        raise InputError(
            "manual optimization: PowerCap cannot see what is a step there",
            value=type(module).__name__,
            hint="use automatic optimization, or wattune.capped in a loop of your own",
        )
    if trainer.world_size > 1:
        raise InputError("PowerCap holds one device", value=f"{trainer.world_size} processes", allowed="devices=1")
    if trainer.strategy.handles_gradient_accumulation:
        raise InputError("a strategy that accumulates gradients itself", value=type(trainer.strategy).__name__)
    for other in trainer.callbacks:
        if isinstance(other, (GradientAccumulationScheduler, StochasticWeightAveraging)):
            raise InputError("this callback chooses how many batches make a step, too", value=type(other).__name__)
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise InputError("training_step(dataloader_iter) fetches for itself", allowed="training_step(batch, batch_idx)")


def try_with(session: Session, module: LightningModule, largest: int) -> None:
    """Try larger micro-batches with what ``training_step`` calls: rarely the LightningModule, mostly its one part."""
    weights = {id(p) for p in module.parameters() if p.requires_grad}
    holds = [child for child in module.children() if weights <= {id(p) for p in child.parameters()}]
    if len(holds) == 1:
        governor = session.governor
        governor.trial = Trial(governor.device, holds[0], largest, session.optimizer)
