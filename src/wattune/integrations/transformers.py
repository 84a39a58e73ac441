"""Training with a Transformers ``Trainer`` under a power cap: ``attach(trainer, device="auto", cap_w=10)``.

The Trainer's own loop runs as configured. Only the device's clock changes, between two optimizer steps, and the number
of rows in a micro-batch (see ``micro_batch_passes``).
"""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from wattune.cap import PowerCap, SensorLimit
from wattune.devices import Device, open_device
from wattune.errors import InputError, RecordError, SafetyStop
from wattune.files import read_json, write_json
from wattune.goal import TIME, Goal
from wattune.integrations.row_groups import Inputs
from wattune.integrations.trainer_run import TrainerRun
from wattune.online.interrupts import Shield
from wattune.online.ranks.meeting import refusing
from wattune.online.request import session_goal
from wattune.online.session import Session, SessionOptions
from wattune.online.session_cap import constant_cap
from wattune.online.session_run import run_state
from wattune.online.step_counter import StepWorkCounter
from wattune.point import Knobs, OperatingPoint
from wattune.power.capped_run import CappedRun
from wattune.power.limiter import check_limit
from wattune.records import SessionRecord
from wattune.tracking.trackers import LogTo, trackers_of

STATE_NAME = "wattune.json"
"""File in the Trainer's checkpoint for a later ``train(resume_from_checkpoint=...)``."""

FUSED_OPTIMIZERS = ("lomo", "adalomo")
"""Optimizers that step during the backward pass, so that gradients cannot be accumulated."""


def attach(
    trainer: Trainer,
    *,
    device: str | Device = "auto",
    cap_w: float | str | PowerCap | None,
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

    Raises: InputError for a Trainer that spans several processes or GPUs or chooses its batch size itself; DeviceError.
    """
    with refusing():
        _check(trainer)
    listeners = trackers_of(log_to)
    cap, asked_goal = constant_cap(cap_w, "attach()"), session_goal(goal)
    board = open_device(device, seed=seed) if isinstance(device, str) else device
    if board is not device:
        weakref.finalize(trainer, board.close)
    check_limit(board, cap.max_temp_c)
    limit = cap.at_sensor(board.supply, board.sensor.window_s)
    capped = Capped(trainer, board, SessionOptions(cap, asked_goal, seed=seed, listeners=listeners), limit, path=record)
    trainer.add_callback(capped)
    return capped


def _check(trainer: Any) -> None:
    args = trainer.args
    if any(isinstance(callback, Capped) for callback in trainer.callback_handler.callbacks):
        raise InputError("attach() was called before for this Trainer", hint="call it once")
    if args.parallel_mode.value != "not_parallel" or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise InputError(
            "a Trainer that spans several processes or GPUs",
            value=args.parallel_mode.value,
            allowed="one device",
            hint="wattune.capped in a loop of your own, or Lightning, train in several processes",
        )
    if args.auto_find_batch_size:
        raise InputError(
            "auto_find_batch_size",
            value=True,
            allowed="False",
            hint="wattune chooses the micro-batch size and keeps the recipe",
        )
    name = getattr(args.optim, "value", args.optim)
    if name in FUSED_OPTIMIZERS:
        raise InputError("an optimizer that steps during the backward pass", value=name, hint="choose another optim=")


class Capped(TrainerCallback):
    """The callback that ``attach`` returns: it keeps the board under the cap while the Trainer trains or evaluates.

    ``record``: the record of the last run on the board, also if it was interrupted.
    """

    def __init__(
        self,
        trainer: Any,
        device: Device,
        options: SessionOptions,
        limit: SensorLimit,
        *,
        path: str | os.PathLike[str] | None,
    ):
        self.device = device
        self.limit = limit
        self.record: SessionRecord | None = None
        self._trainer = trainer
        self._options, self._path = options, path
        self._training: TrainerRun | None = None
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
        """Explain the choice of the point. Raises: InputError outside of training."""
        if self._training is None:
            raise InputError("no training in progress", hint="`record` has the record of the last run")
        return self._training.session.explain()

    # -------------------------------------------------------------------------------------------------- begin and end

    def _train(self, *arguments: Any, **options: Any) -> Any:
        self._resume_from = _checkpoint(self._trainer, *arguments, **options)
        try:
            with ExitStack() as stack:
                self._stack = stack
                stack.enter_context(self._shield)
                try:
                    return self._originals["train"](*arguments, **options)
                except (KeyboardInterrupt, SafetyStop):
                    self._save_checkpoint()
                    raise
        finally:
            self._finish()

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take control of the board, at its lowest clock."""
        trainer = self._trainer
        loader = others.get("train_dataloader")
        self._options.loader = loader
        training = TrainerRun(trainer, self.device, loader, self._options, self.limit)
        if self._resume_from is not None and (file := Path(self._resume_from) / STATE_NAME).exists():
            values: Any = read_json(file)
            if (name := run_state(values)["name"]) != self.device.name:
                raise RecordError(f"{file} is of another device", value=name, allowed=self.device.name)
            training.load_state_dict(values)
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
        begun_s = self.device.now_s()
        samples = self._originals["get_batch_samples"](*arguments, **options)
        training.fetched(samples[0], self.device.now_s() - begun_s, first=self._is_first)
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
        if self._training is not None and folder.is_dir():
            write_json(folder / STATE_NAME, self._training.state_dict())

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
        device, limit = self.device, self.limit
        lowest = Knobs() if limit.limit_w is None else device.safest
        with CappedRun(device, limit, self._reached or lowest) as run:
            run.start()
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
