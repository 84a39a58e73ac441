"""Lightning under a power cap: one callback chooses the board's clocks.

    from wattune.integrations.lightning import PowerCapCallback

    trainer = Trainer(callbacks=[PowerCapCallback(10)])

The Trainer's own steps show which clocks are fastest below the cap.
"""

from __future__ import annotations

import inspect
import json
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils._pytree import tree_leaves

from wattune.cap import Over, PowerCap
from wattune.devices import Device
from wattune.errors import InputError
from wattune.goal import TIME, Goal
from wattune.integrations.framework import checked, new_session, state_of
from wattune.loop.micro_batching import samples_of, shapes
from wattune.loop.ranks.meeting import refusing
from wattune.loop.session import Session
from wattune.point import BatchShape
from wattune.records import SessionRecord
from wattune.tracking.trackers import LogTo


class PowerCapCallback(Callback):
    """Trains below ``cap_w`` watts, as fast as the board can; see ``wattune.capped`` for the arguments.

    Nothing of the Trainer, the module or the loader changes. The board stays below the cap during the sanity check and
    validations, too, and is restored afterwards. Lightning's checkpoints hold the search. ``session`` is the current
    session, ``record`` the record of the last one.

    With ``strategy="ddp"``, ``over`` says what the cap is for; rank 0 chooses for all ranks, controls their devices,
    and alone has the record. Raises: InputError.
    """

    def __init__(
        self,
        cap_w: float | str | PowerCap | None,
        *,
        goal: Goal | str = TIME,
        device: str | Device = "auto",
        over: Over = "device",
        record: str | Path | None = None,
        log_to: LogTo = None,
        seed: int = 0,
    ):
        self.session: Session | None = None
        self.record: SessionRecord | None = None
        given = {"cap_w": cap_w, "goal": goal, "device": device, "over": over, "record": record, "log_to": log_to}
        self._options = checked("the Lightning callback", **given, seed=seed)
        self._session: Session
        self._pass: Pass
        self._checkpoint: dict[str, Any] | None = None
        self._final: dict[str, Any] = {}
        self._is_open = False

    # --------------------------------------------------------------------------------------------- setup and teardown

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the Trainer. Raises: InputError for an unsupported setting."""
        if stage == "fit":
            with refusing():
                check_trainer(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the board below the cap, before anything runs on it. Raises: InputError, DeviceError."""
        with refusing():
            trainer.fit_loop.setup_data()
            if trainer.train_dataloader is None or not trainer.num_training_batches:
                return  # nothing to train on
            self._pass = Pass(trainer)
            saved = self._saved()
        model: Any = pl_module if trainer.world_size == 1 else trainer.strategy.model  # with DDP around it
        optimizer = trainer.optimizers[0]
        self.session = self._session = session = new_session(model, optimizer, self._pass.own, self._options, saved)
        session.shield.yields = True  # Lightning ends training after the batch, and saves
        self.record, self._final = None, {}
        self._is_under_way, self._is_stepped, self._is_complete = False, False, True
        self._stack = ExitStack()
        self._stack.enter_context(session)
        self._evaluation = self._stack.enter_context(ExitStack())
        self._is_open = True
        # After the counter's own hook: Lightning runs forward and backward passes within the optimizer's step.
        before = optimizer.register_step_pre_hook(lambda *_: session.run.counter.optimizing(self._is_complete))
        for hook in (before, optimizer.register_step_post_hook(lambda *_: self._stepped())):
            self._stack.callback(hook.remove)

    def _stepped(self) -> None:
        self._is_stepped = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the board, and write the record."""
        self._close(None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Restore the board after an exception, KeyboardInterrupt included."""
        self._close(exception)

    def _close(self, error: BaseException | None) -> None:
        if not self._is_open:
            return
        if isinstance(error, SIGTERMException):
            error = KeyboardInterrupt("the process got SIGTERM")
        self._is_open = False
        try:
            self._stack.__exit__(None if error is None else type(error), error, None)
        finally:
            self.record, self._final = self._session.record, self._state()  # a checkpoint may be saved afterwards

    # -------------------------------------------------------------------------------------------------------- training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how much training is left."""
        steps = trainer.estimated_stepping_batches - trainer.global_step
        if math.isfinite(steps):
            self._session.run.expect(float(steps * self._pass.own.batch))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a step with its first batch. Raises: SafetyStop, DeviceError."""
        session, own = self._session, self._pass.own
        if batch_idx % trainer.accumulate_grad_batches:
            return
        self._is_under_way, self._is_stepped, self._is_complete = True, False, False
        self._samples, self._done = self._pass.samples_from(batch_idx, own.batch), 0
        session.begin_step(self._samples, key=shapes(batch) if session.run.counter.counts else None, data=batch)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Separate the optimizer's work from the work of the passes."""
        self._is_complete = True
        self._session.run.counter.optimizing(True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the step with its last batch. Raises: like the session."""
        session, own = self._session, self._pass
        if not self._is_under_way:
            return
        self._done += samples_of(batch) if own.samples is None else own.samples_from(batch_idx, own.own.micro)
        if (batch_idx + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch:
            return
        self._is_under_way = False
        is_usual = self._done == self._samples or not own.is_even
        session.end_step(stepped=self._is_stepped and is_usual)
        session.run.samples += self._done - self._samples

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the pass, complete or not."""
        if self._is_under_way:
            self._is_under_way = False
            self._session.drop_step()
        self._session.passes += trainer.is_last_batch

    # ------------------------------------------------------------------------------------------------------ evaluation

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin an evaluation, whose power is not known in advance. Raises: SafetyStop, DeviceError."""
        if self._is_open:
            self._evaluation.enter_context(self._session.evaluation())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Return to the operating point of training. Raises: SafetyStop, DeviceError."""
        if self._is_open:
            self._evaluation.close()

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The search, time and energy so far, for Lightning's checkpoints."""
        return self._state() if self._is_open else self._final

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from ``state_dict`` when the next run begins."""
        self._checkpoint = state_dict

    def _state(self) -> dict[str, Any]:
        return {"session": json.dumps(state_of(self._session))}

    def _saved(self) -> dict[str, Any] | None:
        """State of the search in the checkpoint, if there is one."""
        checkpoint, self._checkpoint = self._checkpoint, None
        if not checkpoint:
            return None
        saved: dict[str, Any] = json.loads(checkpoint["session"])
        return saved


class Pass:
    """The batches of a pass, as the user's loader has them. Raises: InputError for several loaders.

    ``own``: the samples of an optimizer step and of a batch. ``is_even``: all batches but the last have the same size;
    otherwise ``own`` has their mean. ``samples``: of the whole pass, None if nobody knows.
    """

    def __init__(self, trainer: Trainer):
        loaders = tree_leaves(trainer.train_dataloader)
        if len(loaders) > 1:
            raise InputError("several training loaders", value=len(loaders), allowed="one loader")
        loader: Any = loaders[0]
        size = getattr(loader, "batch_size", None)
        self.is_even = size is not None
        self.samples: int | None = None
        try:
            if size is None:
                size = max(1, round(len(loader.dataset) / len(loader)))
            else:
                self.samples = int(min(len(loader.sampler), trainer.num_training_batches * size))
        except (AttributeError, TypeError, NotImplementedError):
            size = size or 1
        self.own = BatchShape(size * trainer.accumulate_grad_batches, size)

    def samples_from(self, batch: int, size: int) -> int:
        """Number of samples that the pass has from this batch on, ``size`` at most."""
        return size if self.samples is None else min(size, self.samples - batch * self.own.micro)


def check_trainer(trainer: Any, module: LightningModule) -> None:
    """Check that PowerCapCallback supports the Trainer's settings. Raises: InputError."""
    if not module.automatic_optimization:
        hint = "use automatic optimization, or wattune.capped in a loop of your own"
        what = "PowerCapCallback cannot see the steps of manual optimization"
        raise InputError(what, value=type(module).__name__, hint=hint)
    strategy = trainer.strategy
    if strategy.handles_gradient_accumulation:
        what = "PowerCapCallback does not support a strategy that accumulates gradients itself"
        raise InputError(what, value=type(strategy).__name__)
    if trainer.world_size > 1 and not isinstance(strategy, DDPStrategy):
        what = f"PowerCapCallback does not support this strategy for {trainer.world_size} processes"
        raise InputError(what, value=type(strategy).__name__, allowed='strategy="ddp"')
    if trainer.world_size > 1 and strategy._start_method != "popen":
        what = "PowerCapCallback does not return from processes that Lightning forks or spawns"
        raise InputError(what, value=f"ddp_{strategy._start_method}", allowed='strategy="ddp", or torchrun')
    for other in trainer.callbacks:
        if isinstance(other, (GradientAccumulationScheduler, StochasticWeightAveraging)):
            raise InputError("a callback that changes the batches per step", value=type(other).__name__)
        if isinstance(other, (BatchSizeFinder, LearningRateFinder)):
            hint = "use lightning.pytorch.tuner.Tuner with a Trainer without PowerCapCallback"
            raise InputError("a finder would run steps without a cap", value=type(other).__name__, hint=hint)
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        allowed = "training_step(batch, batch_idx)"
        raise InputError("training_step(dataloader_iter) fetches its own batches", allowed=allowed)
