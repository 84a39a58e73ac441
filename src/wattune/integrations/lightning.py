"""Lightning under a power cap: one callback chooses batch size, micro-batches and clock while the Trainer trains.

    from wattune.integrations.lightning import PowerCapCallback

    trainer = Trainer(callbacks=[PowerCapCallback(10)])

The Trainer still fetches, accumulates, steps, validates and logs; the callback only changes how large the batches are
and how many of them make an optimizer step. Settings in batches or steps keep their meaning in samples:
``limit_train_batches``, ``max_steps``, ``val_check_interval`` and schedulers that tick with each step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from wattune.cap import Over, PowerCap
from wattune.devices import Device
from wattune.errors import InputError, SensorError
from wattune.goal import TIME, Goal
from wattune.integrations.lightning_calendar import Calendar, trainer_state
from wattune.integrations.lightning_loader import LightningBatches
from wattune.integrations.lightning_setup import LoaderSource, check_trainer, in_run_of, set_fit_check
from wattune.integrations.lightning_step import LightningStep, division, division_from
from wattune.online import Session, capped
from wattune.online.batch_shapes import batch_sizes as sizes_of
from wattune.online.ranks.meeting import refusing
from wattune.online.request import session_goal
from wattune.online.sample_model import opened_curve
from wattune.online.session_cap import constant_cap
from wattune.online.session_run import run_state
from wattune.records import SampleEfficiency, SessionRecord
from wattune.tracking.trackers import LogTo


class PowerCapCallback(Callback):
    """Trains below ``cap_w`` watts, as fast as the board can; see ``wattune.capped`` for the arguments.

    The batch size of the user's recipe is the loader's times ``accumulate_grad_batches``; ``keep_recipe`` leaves it as
    it is. The loss of ``training_step`` is taken as a mean over the samples, and weighted by their number. The board
    stays below the cap during the sanity check and validations, too, and is restored afterwards. Lightning's
    checkpoints hold the search, so that training resumes without probing again, and in the middle of an epoch with
    the remaining samples. Lightning's own loggers get power, energy and the point, with or without ``log_to``.
    ``session`` is the current session, ``record`` the record of the last one.

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
        keep_recipe: bool = False,
        efficiency: SampleEfficiency | str | Path | None = None,
        batch_sizes: Sequence[int] | None = None,
        record: str | Path | None = None,
        log_to: LogTo = None,
        seed: int = 0,
    ):
        self.session: Session | None = None
        self.record: SessionRecord | None = None
        self._keep, self._efficiency, self._batch_sizes = keep_recipe, efficiency, batch_sizes
        self._log_to = log_to
        self._options: dict[str, Any] = {
            "device": device,
            "cap_w": constant_cap(cap_w, "the Lightning callback"),
            "over": over,
            "goal": session_goal(goal),
            "record": record,
            "seed": seed,
        }
        self._trainer: Any  # its type does not know the attributes that are set from elsewhere
        self._passes: LightningBatches | None = None
        self._attached: LightningBatches | None = None
        self._calendar: Calendar | None = None
        self._source: Any = None
        self._checkpoint: dict[str, Any] | None = None
        self._final: dict[str, Any] = {}
        self._evaluation: AbstractContextManager[None] | None = None
        self._step: LightningStep | None = None
        self._open = False

    # --------------------------------------------------------------------------------------------- setup and teardown

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Insert itself between the Trainer and its loader. Raises: InputError for an unsupported setting."""
        if stage != "fit":
            return
        with refusing():
            check_trainer(trainer, pl_module)
        self._trainer, self._passes, self._attached = trainer, None, None
        self._source = trainer.fit_loop._data_source
        trainer.fit_loop._data_source = LoaderSource(self._source, self._take)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the board below the cap, before anything runs on it. Raises: InputError, DeviceError."""
        with refusing():
            trainer.fit_loop.setup_data()
            passes, optimizer, ranks = self._passes, trainer.optimizers[0], trainer.world_size
            if passes is None:
                return  # nothing to train on
            batch_size, parts = passes.batch_source.batch_size, trainer.accumulate_grad_batches
            curve, sizes = opened_curve(self._efficiency), self._batch_sizes
            model: Any = pl_module if ranks == 1 else trainer.strategy.model  # with DDP around it
            if not self._keep:
                sizes = sizes_of(batch_size * parts, sizes, curve, keep=False, samples=passes.samples, ranks=ranks)
            self._check_checkpoint(ranks)
        self.record, self._evaluation, self._final = None, None, {}
        self.session = session = capped(
            model=model,
            optimizer=optimizer,
            keep_recipe=self._keep,
            efficiency=curve,
            batch_sizes=sizes,
            batch_size=batch_size * parts,
            micro_batch_size=batch_size,
            log_to=in_run_of(trainer.loggers, self._log_to),
            **self._options,
        )
        session.options.loader = passes.loader
        set_fit_check(session, pl_module, batch_size)
        self._calendar = Calendar(trainer, batch_size, parts, moves=not self._keep)
        self._session_state = self._restore(passes)
        session.__enter__()
        self._open = True
        self._last_log, self._last_batch = (0.0, 0.0), 0
        self._step = LightningStep(session, trainer, optimizer)

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
        if self._source is not None:
            self._trainer.fit_loop._data_source, self._source = self._source, None
        if not self._open or self.session is None or self._calendar is None:
            return
        self._open = False
        exception = (None, None, None) if error is None else (type(error), error, error.__traceback__)
        try:
            self._end_evaluation(error or GeneratorExit())
        finally:
            try:
                self.session.__exit__(*exception)
            finally:
                self._give_back()

    def _give_back(self) -> None:
        assert self.session is not None
        assert self._calendar is not None
        assert self._step is not None
        self.record = self.session.record
        self._final = self._state()  # for a checkpoint that is saved afterwards
        self._step.close()
        self._calendar.give_back(self._trainer)

    def _end_evaluation(self, error: BaseException | None) -> None:
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            exception = (None, None, None) if error is None else (type(error), error, error.__traceback__)
            evaluation.__exit__(*exception)

    # -------------------------------------------------------------------------------------------------------- training

    def _take(self, loader: Any) -> LightningBatches:
        self._passes = LightningBatches(loader, keep=self._keep)
        return self._passes

    def _attach(self) -> None:
        trainer, passes, session = self._trainer, self._passes, self.session
        if self._attached is passes or passes is None or session is None or self._calendar is None:
            return
        self._attached = passes
        self._calendar.read(trainer, passes.batches, passes.samples)
        self._calendar.take_over(trainer)
        passes.attach(session, self._calendar.parts)
        fetcher: Any = trainer.fit_loop._data_fetcher
        fetcher.length = None  # it has cached the length of the first pass

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over from Lightning all counting of batches."""
        self._attach()
        state, self._session_state = self._session_state, None
        if state is not None and self._passes is not None:
            # In the middle of an epoch, Lightning reads these before it fetches.
            is_over = self._passes.samples is not None and state["position"] >= self._passes.samples
            trainer.val_check_batch = state["trainer"]["val_check_batch"]
            trainer.fit_loop.max_batches = (state["trainer"]["max_batches"] if is_over else None) or float("inf")
            trainer.fit_loop.epoch_loop.batch_progress.is_last_batch &= is_over
            self._trainer.accumulate_grad_batches = division_from(state["trainer"]["division"])

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a pass over the data set."""
        self._attach()
        passes = self._passes
        if passes is not None and self._calendar is not None:
            passes.cut(self._calendar.samples_left(trainer))
            trainer.fit_loop.max_batches = passes.expected()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Tell Lightning what to do with the micro-batch that was fetched."""
        passes, calendar, step = self._passes, self._calendar, self._step
        assert passes is not None
        assert calendar is not None
        assert step is not None
        passes.arrived()
        part = passes.part
        self._trainer.accumulate_grad_batches = division(part, batch_idx + 1)
        if part.first:
            step.begin()
            if passes.left is not None:
                self._last_batch = batch_idx + passes.left
            calendar.begin_step(trainer)
        trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = part.ends_pass
        trainer.fit_loop.max_batches = batch_idx + 1 if part.ends_pass else max(self._last_batch, batch_idx + 2)

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read the gradients of a micro-batch."""
        if self._open and self._passes is not None and self._step is not None and self._step.is_under_way:
            self._step.backward(self._passes.part, wants_norms=self._passes.wants_norms)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Read the complete gradients of a step."""
        if self._open and self._step is not None and self._step.is_under_way:
            self._step.complete(optimizer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the step if the micro-batch was its last one. Raises: like the session."""
        passes, calendar, step = self._passes, self._calendar, self._step
        assert passes is not None
        assert calendar is not None
        assert step is not None
        step.loss(outputs)
        if not passes.part.last:
            return
        passes.advance()
        step.end(passes.step_samples)
        calendar.end_step(trainer, pl_module, passes.position, passes.step_samples, is_end=passes.part.ends_pass)
        if trainer.loggers and trainer.global_step % self._trainer.log_every_n_steps == 0:
            self._log()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the pass, complete or not."""
        if self._passes is not None and self.session is not None:
            self.session.passes += self._passes.end_pass()
            if self._step is not None:
                self._step.is_under_way = False

    def _log(self) -> None:
        session = self.session
        assert session is not None
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
        if not self._open or self.session is None or self._step is None:
            return
        if self._step.is_under_way:  # validation by wall time in the middle of a step counts as part of it
            self._step.disturb()
            return
        self._evaluation = self.session.evaluation()
        self._evaluation.__enter__()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Return to the operating point of training. Raises: SafetyStop, DeviceError."""
        if self._open:
            self._end_evaluation(None)

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The search, time and energy so far, and the position in the pass; for Lightning's checkpoints."""
        return self._state() if self._open else self._final

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from ``state_dict`` when the next run begins."""
        self._checkpoint = state_dict

    def _state(self) -> dict[str, Any]:
        session, passes = self.session, self._passes
        assert session is not None
        assert passes is not None
        values = {
            "recipe": self._recipe(session),
            "rates": session.recipe.state_dict(),
            "ranks": session.size,
            "run": session.run.state_dict(),
            "knowledge": session.sample_model.state_dict(),
            "passes": session.passes,
            "position": passes.position,
            "order": passes.order,
            "samples": passes.samples,
            "trainer": trainer_state(self._trainer),
        }
        return {"session": json.dumps(values), "random": passes.random}

    def _check_checkpoint(self, ranks: int) -> None:
        if not self._checkpoint:
            return
        values: dict[str, Any] = json.loads(self._checkpoint["session"])
        before = values.get("ranks", 1)
        if before != ranks:  # whose parts of an epoch are others
            raise InputError(
                "the checkpoint is of another number of processes",
                value=f"{before}, not {ranks}",
                hint="resume with as many processes, or load the weights alone",
            )

    def _restore(self, passes: LightningBatches) -> dict[str, Any] | None:
        checkpoint, self._checkpoint = self._checkpoint, None
        session = self.session
        if not checkpoint or session is None:
            return None
        values: dict[str, Any] = json.loads(checkpoint["session"])
        rank = 0 if session.ranks is None else session.ranks.rank
        if values["samples"] == passes.samples:
            random, order = checkpoint["random"], values["order"]
            if session.size > 1:  # the order is that of rank 0's samples
                random, order = random[rank], order if rank == 0 else None
            passes.resume(values["position"], random, order)
        session.passes = values["passes"]
        here, there = self._recipe(session), values["recipe"]
        is_same = {**there, "device": None} == {**here, "device": None}
        if is_same:  # of any board, since all ranks have to know the same
            session.sample_model.load_state_dict(values["knowledge"])
            session.recipe.load_state_dict(values.get("rates", session.recipe.state_dict()))
        if is_same and rank > 0:
            session.run.samples, session.run.steps = values["run"]["samples"], values["run"]["steps"]
        elif is_same and there["device"] == here["device"]:
            session.run.load_state_dict(run_state(values))
        else:
            session.run.note("the checkpoint is of another board or recipe, so the search was restarted")
        return values

    def _recipe(self, session: Session) -> dict[str, Any]:
        recipe = session.recipe
        return {"device": session.run.device.name, "batch_size": recipe.batch_size, "keep": recipe.keep}
