"""Lightning under a power cap: one callback chooses how a batch is divided, and the board's clocks.

    from wattune.integrations.lightning import PowerCapCallback

    trainer = Trainer(callbacks=[PowerCapCallback(10)])

Trial passes before the first step choose the size of the loader's batches and ``accumulate_grad_batches``. Both are set
once. From then on the Trainer's own steps choose the clocks, and the board stays below the cap.
"""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from wattune.cap import Over, PowerCap
from wattune.devices import Device
from wattune.errors import WattuneError
from wattune.goal import TIME, Goal
from wattune.integrations.lightning_setup import FitLoader, Trials, check_trainer, count_again
from wattune.loop import Session, capped
from wattune.loop.batch_shapes import rows as rows_of
from wattune.loop.loop_run import OwnShape
from wattune.loop.micro_batching import samples_of, shapes
from wattune.loop.probing import probe
from wattune.loop.ranks.channel import FRAMEWORK_TIMEOUT_S
from wattune.loop.ranks.meeting import refusing
from wattune.loop.request import session_goal
from wattune.loop.rng_state import states
from wattune.loop.session_cap import constant_cap, opened_profile
from wattune.loop.session_run import run_state
from wattune.point import BatchShape
from wattune.records import ProfileTable, SessionRecord
from wattune.tracking.trackers import LogTo


class PowerCapCallback(Callback):
    """Trains below ``cap_w`` watts, as fast as the board can; see ``wattune.capped`` for the arguments.

    The batch size of the user's recipe, the loader's times ``accumulate_grad_batches``, stays. ``profile``: a profile,
    or the record's table of an earlier session, to choose by without trial passes. The board stays below the cap during
    the sanity check and validations, too, and is restored afterwards. Lightning's checkpoints hold the search and the
    sizes. ``session`` is the current session, ``record`` the record of the last one.

    With ``strategy="ddp"``, batch sizes are per process, and ``over`` says what the cap is for; rank 0 chooses for all
    ranks, controls their devices, and alone has the record.
    """

    def __init__(
        self,
        cap_w: float | str | PowerCap | None,
        *,
        goal: Goal | str = TIME,
        device: str | Device = "auto",
        over: Over = "device",
        profile: ProfileTable | str | Path | None = None,
        record: str | Path | None = None,
        log_to: LogTo = None,
        seed: int = 0,
    ):
        self.session: Session | None = None
        self.record: SessionRecord | None = None
        self._profile = profile
        self._options: dict[str, Any] = {
            "device": device,
            "cap_w": constant_cap(cap_w, "the Lightning callback"),
            "over": over,
            "goal": session_goal(goal),
            "record": record,
            "log_to": log_to,
            "seed": seed,
        }
        self._trainer: Any  # its type does not know the attributes that are set from elsewhere
        self._session: Session
        self._loader: FitLoader
        self._shape: Any  # the sizes that are trained with, None before they are chosen
        self._checkpoint: dict[str, Any] | None = None
        self._final: dict[str, Any] = {}
        self._is_open = False

    # --------------------------------------------------------------------------------------------- setup and teardown

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the Trainer. Raises: InputError for an unsupported setting."""
        if stage == "fit":
            with refusing():
                check_trainer(trainer, pl_module)
            self._trainer = trainer
            self._before = states(self._trainer.fit_loop._data_source.instance)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the board below the cap, before anything runs on it. Raises: InputError, DeviceError."""
        loop = self._trainer.fit_loop
        with refusing():
            if trainer.train_dataloader is None:  # otherwise configure_optimizers has asked for its length
                self._before = states(loop._data_source.instance)
            loop.setup_data()
            if trainer.train_dataloader is None or not trainer.num_training_batches:
                return  # nothing to train on
            self._loader = loader = FitLoader(trainer, trainer.accumulate_grad_batches)
            self._table = opened_profile(self._profile)
        model: Any = pl_module if trainer.world_size == 1 else self._trainer.strategy.model  # with DDP around it
        optimizer = trainer.optimizers[0]
        self.session = self._session = session = capped(
            model=model,
            optimizer=optimizer,
            keep_recipe=True,
            batch_size=loader.start.batch,
            micro_batch_size=loader.batch_size,
            rank_timeout_s=FRAMEWORK_TIMEOUT_S,
            **self._options,
        )
        session.asked.loader = loader.loader
        session.shield.yields = True  # Lightning ends training after the batch, and saves
        self.record, self._final, self._shape = None, {}, None
        self._is_under_way, self._is_stepped, self._is_complete = False, False, True
        self._restore(session)
        self._stack = ExitStack()
        self._stack.callback(lambda: self._loader.reset(trainer))
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
        """Choose the sizes, and set them. Raises: InputError, SafetyStop, DeviceError."""
        session, loader = self._session, self._loader
        saved = self._shape
        if saved is None or not loader.allows(saved):
            self._shape = self._chosen(pl_module)
            if saved is not None:
                with refusing():
                    count_again(self._trainer.fit_loop.epoch_loop.batch_progress, saved.micro, self._shape.micro)
        if session.ranks is None or session.ranks.is_leader:
            session.run.keep_only(self._shape)
        loader.use(self._trainer, self._shape, self._before)

    def _chosen(self, module: LightningModule) -> BatchShape:
        trainer, loader, run = self._trainer, self._loader, self._session.run
        rows = rows_of([loader.start.batch], loader.start)
        allowed = [row for row in rows if loader.allows(row)]
        if loader.fixed is not None:
            run.note(f"the loader's batches stay as they are: {loader.fixed}")
        elif self._session.size > 1:
            run.note("with several processes, the sizes stay yours, and clocks alone are chosen")
        elif trainer.ckpt_path is not None:  # it counts batches of the user's size
            run.note("the sizes stay yours, since the checkpoint has none that fit")
        elif len(allowed) > 1:
            for row in set(rows) - set(allowed):
                run.explorer.leave_out(row)
            return self._probed(module)
        return loader.start

    def _probed(self, module: LightningModule) -> BatchShape:
        trainer, loader, session = self._trainer, self._loader, self._session
        cells = () if self._table is None else self._table.cells
        known = [one for one in cells if one.batch_size == loader.start.batch and loader.allows(one.point.shape)]
        trials, steps = Trials(trainer, module, loader), trainer.estimated_stepping_batches - trainer.global_step
        left_s = [one.time_remaining() for one in trainer.callbacks if isinstance(one, Timer)]  # also for max_time
        within_s = min((seconds for seconds in left_s if seconds is not None), default=math.inf)
        if not known and math.isinf(steps) and math.isinf(within_s):
            session.run.note("the sizes stay yours, since nobody knows how long the training takes")
            return loader.start
        try:
            with trials.without_trace():
                return probe(session, trials.passes, steps=steps, within_s=within_s, known=known)
        except WattuneError:
            raise
        except Exception as error:  # noqa: BLE001 - the user's own module may raise anything, here or in training alone
            session.drop_step()
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            session.run.note(
                f"the sizes stay yours, since training_step cannot be tried: {type(error).__name__}: {text}"
            )
            return loader.start

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a step with its first batch. Raises: SafetyStop, DeviceError."""
        session, shape = self._session, self._shape
        if batch_idx % trainer.accumulate_grad_batches:
            return
        self._is_under_way, self._is_stepped, self._is_complete = True, False, False
        self._samples, self._done = self._loader.samples_from(batch_idx * shape.micro, shape.batch), 0
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
        session, loader, micro = self._session, self._loader, self._shape.micro
        if not self._is_under_way:
            return
        self._done += samples_of(batch) if loader.samples is None else loader.samples_from(batch_idx * micro, micro)
        if (batch_idx + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch:
            return
        self._is_under_way = False
        is_usual = self._done == self._samples or not loader.is_even
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
        """The search, time and energy so far, and the sizes; for Lightning's checkpoints."""
        return self._state() if self._is_open else self._final

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from ``state_dict`` when the next run begins."""
        self._checkpoint = state_dict

    def _state(self) -> dict[str, Any]:
        session = self._session
        values = {
            "recipe": {"device": session.run.device.name, "batch_size": session.recipe.batch_size},
            "ranks": session.size,
            "run": session.run.state_dict(),
            "passes": session.passes,
            "shape": self._shape,
            "own": session.run.own,
        }
        return {"session": json.dumps(values)}

    def _restore(self, session: Session) -> None:
        checkpoint, self._checkpoint = self._checkpoint, None
        if not checkpoint:
            return
        values: dict[str, Any] = json.loads(checkpoint["session"])
        session.passes, before, run = values["passes"], values["recipe"], session.run
        # Other processes have other parts of a pass.
        is_same = (values.get("ranks", 1), before["batch_size"]) == (session.size, session.recipe.batch_size)
        if is_same and values.get("shape") is not None:  # of any board, since all ranks have to know the same
            self._shape = BatchShape(*values["shape"])
        if is_same and session.ranks is not None and not session.ranks.is_leader:
            run.samples, run.steps = values["run"]["samples"], values["run"]["steps"]
        elif is_same and before["device"] == run.device.name:
            run.load_state_dict(run_state(values))
            own = values.get("own")
            if own is not None and len(own) == 2:  # earlier versions kept something else
                run.own = OwnShape(BatchShape(*own[0]), own[1])
        else:
            run.note("the checkpoint is of another board, recipe or number of processes, so the search was restarted")
