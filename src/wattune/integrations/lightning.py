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
from torch import Tensor

from wattune.cap import Over, PowerCap
from wattune.devices import Device
from wattune.errors import InputError, SensorError, WattuneError
from wattune.goal import TIME, Goal
from wattune.integrations.lightning_loader import FitLoader
from wattune.integrations.lightning_setup import Trials, check_callbacks, check_trainer
from wattune.online import Session, capped
from wattune.online.batch_shapes import rows as rows_of
from wattune.online.micro_batching import shapes
from wattune.online.probing import probe
from wattune.online.ranks.channel import FRAMEWORK_TIMEOUT_S
from wattune.online.ranks.meeting import refusing
from wattune.online.request import session_goal
from wattune.online.rng_state import states
from wattune.online.session_cap import constant_cap, opened_profile
from wattune.online.session_run import run_state
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.records import ProfileTable, SessionRecord
from wattune.search.search import OwnRecipe
from wattune.tracking.trackers import LogTo


class PowerCapCallback(Callback):
    """Trains below ``cap_w`` watts, as fast as the board can; see ``wattune.capped`` for the arguments.

    The batch size of the user's recipe, the loader's times ``accumulate_grad_batches``, stays. ``profile``: a profile,
    or the record's table of an earlier session, to choose by without trial passes. The board stays below the cap during
    the sanity check and validations, too, and is restored afterwards. Lightning's checkpoints hold the search and the
    sizes. Lightning's own loggers get power, energy and the point, with or without ``log_to``. ``session`` is the
    current session, ``record`` the record of the last one.

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
            self._before = self._random()

    def _random(self) -> list[Tensor]:
        return states(self._trainer.fit_loop._data_source.instance)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the board below the cap, before anything runs on it. Raises: InputError, DeviceError."""
        loop, ranks = self._trainer.fit_loop, trainer.world_size
        with refusing():
            check_callbacks(trainer)
            if trainer.train_dataloader is None:  # otherwise configure_optimizers has asked for its length
                self._before = self._random()
            loop.setup_data()
            if trainer.train_dataloader is None or not trainer.num_training_batches:
                return  # nothing to train on
            self._loader = loader = FitLoader(trainer, trainer.accumulate_grad_batches)
            self._combined = loop._combined_loader
            self._table = opened_profile(self._profile)
            self._check_checkpoint(ranks)
        model: Any = pl_module if ranks == 1 else self._trainer.strategy.model  # with DDP around it
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
        session.options.loader = loader.loader
        session.shield.yields = True  # Lightning ends training after the batch, and saves
        self.record, self._final, self._shape, self._last_log = None, {}, None, (0.0, 0.0)
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

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Restore the board if ``on_fit_end`` was not called."""
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
        """Choose the sizes, and set them. Raises: SafetyStop, DeviceError."""
        is_known = self._shape is not None and self._loader.allows(self._shape)
        self._use_only(self._shape if is_known else self._chosen(pl_module))
        self._loader.resume(self._trainer.fit_loop.epoch_loop, self._shape)
        self._loader.use(self._trainer, self._shape, before=self._before)

    def _use_only(self, shape: BatchShape) -> None:
        self._shape = shape
        if self._session.ranks is None or self._session.ranks.is_leader:
            self._session.run.keep_only(shape)

    def _chosen(self, module: LightningModule) -> BatchShape:
        trainer, loader, run = self._trainer, self._loader, self._session.run
        rows = rows_of([loader.start.batch], loader.start)
        refused = [row for row in rows if not loader.allows(row)]
        if loader.fixed is not None:
            run.note(f"the loader's batches stay as they are: {loader.fixed}")
        elif self._session.size > 1:
            run.note("with several processes, the sizes stay yours, and clocks alone are chosen")
        elif trainer.ckpt_path is not None:  # it counts batches of the user's size
            run.note("the checkpoint is of training without PowerCapCallback, whose sizes stay")
        elif len(refused) < len(rows) - 1:
            for row in refused:
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

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the sizes again, since Lightning may have remade the loader."""
        combined, loader = self._trainer.fit_loop._combined_loader, self._loader
        if combined is not self._combined:
            self._combined = combined
            self._loader = loader = FitLoader(trainer, loader.start.batch // loader.batch_size)
        if not loader.allows(self._shape):
            self._use_only(loader.start)
        loader.use(self._trainer, self._shape, before=None)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a step with its first batch. Raises: SafetyStop, DeviceError."""
        session, shape = self._session, self._shape
        self._factor = self._loader.factor(shape, batch_idx)
        if batch_idx % trainer.accumulate_grad_batches:
            return
        self._is_under_way, self._is_stepped, self._is_complete = True, False, False
        self._samples, self._done = self._loader.samples_of_step(shape, batch_idx), 0
        session.begin_step(self._samples, key=shapes(batch) if session.run.counter.counts else None, data=batch)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Weight the batches of a step that is not whole."""
        factor = self._factor
        if factor != 1.0 and loss.requires_grad:
            loss.register_hook(lambda gradient: gradient * factor)  # type: ignore[no-untyped-call]

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
        session = self._session
        if not self._is_under_way:
            return
        self._done += self._loader.samples_of_batch(batch, self._shape, batch_idx)
        if (batch_idx + 1) % trainer.accumulate_grad_batches and not trainer.is_last_batch:
            return
        self._is_under_way = False
        is_usual = self._done == self._samples or not self._loader.is_even
        session.end_step(stepped=self._is_stepped and is_usual)
        session.run.samples += self._done - self._samples
        if trainer.loggers and trainer.global_step % self._trainer.log_every_n_steps == 0:
            self._log(session)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the pass, complete or not."""
        if self._is_under_way:
            self._is_under_way = False
            self._session.drop_step()
        self._session.passes += trainer.is_last_batch
        self._loader.reset(self._trainer)  # Lightning may read them to remake the loader

    def _log(self, session: Session) -> None:
        if not self._trainer.is_global_zero:
            return  # as Lightning's own loggers do
        try:
            figures = session.run.capped.meter.figures()
        except SensorError:  # no reading yet
            return
        values = {f"wattune/{name}": float(value) for name, value in session.point.fields().items()}
        values["wattune/energy_j"] = figures.energy_j
        time_s, energy_j = self._last_log
        if figures.time_s > time_s:
            values["wattune/power_w"] = (figures.energy_j - energy_j) / (figures.time_s - time_s)
        self._last_log = figures.time_s, figures.energy_j
        for logger in self._trainer.loggers:
            # Beside Lightning's own values of the same step, which it numbers from 0.
            logger.log_metrics(values, step=self._trainer.global_step - 1)

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
        own = session.run.own_recipe
        values = {
            "recipe": {"device": session.run.device.name, "batch_size": session.recipe.batch_size},
            "ranks": session.size,
            "run": session.run.state_dict(),
            "passes": session.passes,
            "shape": self._shape,
            "own": None if own is None else [dict(own.point.knobs), own.step_s, own.is_measured],
        }
        return {"session": json.dumps(values)}

    def _check_checkpoint(self, ranks: int) -> None:
        before = json.loads(self._checkpoint["session"]).get("ranks", 1) if self._checkpoint else ranks
        if before != ranks:  # whose parts of an epoch are others
            raise InputError(
                "the checkpoint is of another number of processes",
                value=f"{before}, not {ranks}",
                hint="resume with as many processes, or load the weights alone",
            )

    def _restore(self, session: Session) -> None:
        checkpoint, self._checkpoint = self._checkpoint, None
        if not checkpoint:
            return
        values: dict[str, Any] = json.loads(checkpoint["session"])
        session.passes, before, run = values["passes"], values["recipe"], session.run
        # Earlier versions could also train with other batch sizes than the recipe's.
        is_same = before["batch_size"] == session.recipe.batch_size and before.get("keep", True)
        if is_same and values.get("shape") is not None:  # of any board, since all ranks have to know the same
            self._shape = BatchShape(*values["shape"])
        if is_same and session.ranks is not None and not session.ranks.is_leader:
            run.samples, run.steps = values["run"]["samples"], values["run"]["steps"]
        elif is_same and before["device"] == run.device.name:
            run.load_state_dict(run_state(values))
            run.is_divided = self._shape not in (None, run.start)
            if run.is_divided and values.get("own") is not None:  # the search no longer knows the user's own sizes
                knobs, step_s, is_measured = values["own"]
                run.own_recipe = OwnRecipe(OperatingPoint(run.start, Knobs(knobs)), step_s, is_measured)
        else:
            run.note("the checkpoint is of another board or recipe, so the search was restarted")
