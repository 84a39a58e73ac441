"""Training with a Transformers ``Trainer`` under a power cap: ``attach(trainer, device="auto", cap_w=10)``.

The Trainer's own loop runs as configured. Only the device's clock changes, between two optimizer steps, and the number
of rows in a micro-batch (see ``micro_batch_passes``).
"""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from wattune.cap import OVER, Over, PowerCap
from wattune.devices import Device, open_device
from wattune.errors import InputError, SafetyStop
from wattune.files import read_json, write_json
from wattune.goal import TIME, Goal
from wattune.integrations.row_groups import Inputs
from wattune.integrations.trainer_ranks import Place, evaluation_run, limit_of, trainer_run
from wattune.integrations.trainer_run import TrainerRun
from wattune.integrations.trainer_setup import check_trainer
from wattune.integrations.trainer_steps import TrainerSteps
from wattune.online.interrupts import Shield
from wattune.online.ranks.meeting import refusing
from wattune.online.request import session_goal
from wattune.online.session import Session, SessionOptions
from wattune.online.session_cap import constant_cap
from wattune.online.step_counter import StepWorkCounter
from wattune.point import Knobs, OperatingPoint
from wattune.power.capped_run import CappedRun
from wattune.power.limiter import check_limit
from wattune.records import SessionRecord
from wattune.tracking.trackers import LogTo, trackers_of

STATE_NAME = "wattune.json"
"""File in the Trainer's checkpoint for a later ``train(resume_from_checkpoint=...)``."""


def attach(
    trainer: Trainer,
    *,
    device: str | Device = "auto",
    cap_w: float | str | PowerCap | None,
    over: Over = "device",
    goal: Goal | str = TIME,
    record: str | os.PathLike[str] | None = None,
    log_to: LogTo = None,
    seed: int = 0,
) -> Capped:
    """Hold ``trainer.train()``, ``evaluate()`` and ``predict()`` below ``cap_w`` watts; train as fast as that allows.

    The recipe stays: each optimizer step takes ``per_device_train_batch_size * gradient_accumulation_steps`` rows, in
    the order of the Trainer's own loader. Clock and micro-batch are chosen while it trains. ``cap_w``,
    ``goal``, ``device``, ``record`` and ``log_to`` are as in ``wattune.capped``. Call it once, when the Trainer is
    made.

    In several processes (``torchrun``, ``accelerate launch``) every rank calls it. Rank 0 chooses for all, controls
    all devices, and alone has the record. ``over``: what the cap is for, as in ``wattune.capped``.

    Raises: InputError for a Trainer that shards its model or chooses its batch size itself; DeviceError.
    """
    with refusing():
        if any(isinstance(callback, Capped) for callback in trainer.callback_handler.callbacks):
            raise InputError("attach() was called before for this Trainer", hint="call it once")
        check_trainer(trainer)
        if over not in OVER:
            raise InputError("over", value=over, allowed=", ".join(OVER))
        cap, asked_goal = constant_cap(cap_w, "attach()"), session_goal(goal)
        listeners = trackers_of(log_to)
    is_alone = trainer.args.world_size == 1
    options = SessionOptions(cap, asked_goal, over=None if is_alone else over, seed=seed, listeners=listeners)
    if is_alone:
        board = open_device(device, seed=seed) if isinstance(device, str) else device
        if board is not device:
            weakref.finalize(trainer, board.close)
        check_limit(board, cap.max_temp_c)
        limit_of(options, board)
        device = board
    capped = Capped(trainer, device, options, path=record)
    trainer.add_callback(capped)
    return capped


class Capped(TrainerCallback):
    """The callback that ``attach`` returns: it keeps the board under the cap while the Trainer trains or evaluates.

    ``record``: the record of the last run on the board, also if it was interrupted; rank 0 alone has it.
    """

    def __init__(
        self,
        trainer: Any,
        place: Place,
        options: SessionOptions,
        *,
        path: str | os.PathLike[str] | None,
    ):
        self.record: SessionRecord | None = None
        self._trainer = trainer
        self.device = None if isinstance(place, str) or options.over is not None else place
        """The device, if this process is alone."""
        self._place, self._options, self._path = place, options, path
        self._training: TrainerSteps | None = None
        self._explanation: str | None = None
        self._shield = Shield()
        self._resume_from: str | None = None
        self._reached = Knobs()
        self._is_torn = self._is_first = self._evaluates = False
        self._originals: dict[str, Any] = {}
        for name in ("train", "evaluate", "predict"):
            self._originals[name] = getattr(trainer, name)
        trainer.train = self._train
        trainer.evaluate = partial(self._evaluate, "evaluate")
        trainer.predict = partial(self._evaluate, "predict")

    @property
    def session(self) -> Session | None:
        """The current session; None outside of training."""
        return None if self._training is None else self._training.session

    @property
    def point(self) -> OperatingPoint | None:
        """Current rows of an optimizer step and of a micro-batch, and the clock; None outside of training."""
        return None if self._training is None else self._training.session.point

    def explain(self) -> str:
        """Explain the choice of the point of the present run, or of the last one. Raises: InputError before any."""
        if self._training is not None:
            return self._training.session.explain()
        if self._explanation is None:
            raise InputError("nothing was trained yet", hint="call it during or after train()")
        return self._explanation

    # -------------------------------------------------------------------------------------------------- begin and end

    def _train(self, *arguments: Any, **options: Any) -> Any:
        self._resume_from = _checkpoint(self._trainer, *arguments, **options)
        try:
            with ExitStack() as stack:
                self._stack = stack
                stack.enter_context(self._shield)
                try:
                    return self._originals["train"](*arguments, **options)
                except (KeyboardInterrupt, SafetyStop) as error:
                    if self.device is not None or isinstance(
                        error, SafetyStop
                    ):  # which stops all ranks at the same step
                        self._save_checkpoint()
                    raise
        finally:
            self._finish()

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take control of the board, at its lowest clock."""
        trainer = self._trainer
        loader, state = others.get("train_dataloader"), None
        if self._resume_from is not None and (file := Path(self._resume_from) / STATE_NAME).exists():
            state = read_json(file)
        options = replace(self._options, loader=loader)
        training: TrainerSteps
        if self.device is not None:
            training = run = TrainerRun(trainer, self.device, loader, options, limit_of(options, self.device))
            if state is not None:
                run.load_state_dict(state)
        else:
            training = trainer_run(trainer, self._place, loader, options, state)
        self._stack.enter_context(training)
        self._training = training
        for name, method in (
            ("training_step", self._training_step),
            ("get_batch_samples", self._get_batch_samples),
            ("log", self._log),
        ):
            self._originals[name] = getattr(trainer, name)
            setattr(trainer, name, method)
        self._originals["backward"] = trainer.accelerator.backward
        trainer.accelerator.backward = training.passes.backward

    def _finish(self) -> None:
        """Restore the Trainer's methods, and write the record."""
        training, self._training = self._training, None
        if training is None:
            return
        for name in ("training_step", "get_batch_samples", "log"):
            setattr(self._trainer, name, self._originals[name])
        self._trainer.accelerator.backward = self._originals["backward"]
        self._explanation = training.session.explain()
        self.record = None
        if isinstance(training, TrainerRun):
            self._reached = Knobs(training.run.capped.limiter.state_dict()["reached"])
            self.record = training.record()
        if self.record is not None and self._path is not None:
            self.record.save(Path(self._path))

    def _save_checkpoint(self) -> None:
        """Save a checkpoint of the Trainer's own, after the last complete step."""
        training, trainer = self._training, self._trainer
        if training is None or self._is_torn:
            return
        training.drop()
        trainer.model.zero_grad()
        trainer._save_checkpoint(trainer.model_wrapped, None)
        self.on_save(trainer.args, trainer.state, trainer.control)

    # ----------------------------------------------------------------------------------------------- the Trainer's loop

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Note that the loader starts a new pass."""
        self._is_first = True

    def _get_batch_samples(self, *arguments: Any, **options: Any) -> Any:
        training = self._training
        assert training is not None
        device = training.device
        begun_s = device.now_s()
        samples = self._originals["get_batch_samples"](*arguments, **options)
        training.fetched(samples[0], device.now_s() - begun_s, first=self._is_first)
        self._is_first = False
        return samples

    def _training_step(self, model: nn.Module, inputs: Inputs, *others: Any) -> Tensor:
        training = self._training
        assert training is not None
        training.begin(model, *others)
        return training.passes.training_step(model, inputs, *others)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Defer interrupts until the step is complete."""
        self._shield.hold()
        self._is_torn = True

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the step. Raises: SafetyStop, DeviceError; a deferred KeyboardInterrupt."""
        self._is_torn = False
        if self._training is not None:
            self._training.end(stepped=not self._trainer.accelerator.optimizer_step_was_skipped)
        self._shield.release()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Drop a step that another callback ended early."""
        if self._training is not None:
            self._training.drop()
            self._training.session.passes = int(state.epoch or 0)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Add the state of the search to the Trainer's checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if isinstance(self._training, TrainerRun) and folder.is_dir():
            write_json(folder / STATE_NAME, self._training.state_dict())

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take in that training has ended."""
        if self._training is not None:
            self._training.finish()

    def _log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
        training = self._training
        if training is not None and ("loss" in logs or "train_runtime" in logs):
            logs.update(training.log_values(total="train_runtime" in logs))
        self._originals["log"](logs, *arguments, **options)

    # ------------------------------------------------------------------------------------------------------- evaluation

    def _evaluate(self, name: str, *arguments: Any, **options: Any) -> Any:
        original = self._originals[name]
        if self._evaluates:  # one evaluation for each of several data sets
            return original(*arguments, **options)
        self._evaluates = True
        try:
            if self._training is not None:
                with self._training.session.evaluation():
                    return original(*arguments, **options)
            return self._alone(original, *arguments, **options)
        finally:
            self._evaluates = False

    def _alone(self, original: Any, *arguments: Any, **options: Any) -> Any:
        """Evaluate outside of training: at the setting that kept evaluations under the cap, else at the lowest."""
        if (device := self.device) is None:
            with evaluation_run(self._trainer, self._place, self._options, self._reached) as job:
                return (
                    original(*arguments, **options)
                    if job is None
                    else self._evaluated(job, original, *arguments, **options)
                )
        limit = limit_of(self._options, device)
        lowest = Knobs() if limit.limit_w is None else device.safest
        with CappedRun(device, limit, self._reached or lowest) as run:
            run.start()
            return self._evaluated(run, original, *arguments, **options)

    def _evaluated(self, run: CappedRun, original: Any, *arguments: Any, **options: Any) -> Any:
        device = run.device
        counter = StepWorkCounter(self._trainer.model, None, counts=not device.executes_steps)
        counter.begin("evaluation")
        try:
            metrics = original(*arguments, **options)
            if counter.counts:
                with device.step(counter.end(1, 1)):
                    pass
        finally:
            counter.close()
        run.check()
        return metrics


def _checkpoint(trainer: Any, resume_from_checkpoint: str | bool | None = None, *_: Any, **__: Any) -> str | None:
    """The folder that the Trainer will resume from, by the Trainer's own rule."""
    if resume_from_checkpoint is True:
        folder: str | None = get_last_checkpoint(trainer.args.output_dir)  # type: ignore[no-untyped-call]
        return folder
    return str(resume_from_checkpoint) if resume_from_checkpoint else None
