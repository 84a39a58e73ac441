"""Training with a Transformers ``Trainer`` under a power cap: ``attach(trainer, device="auto", cap_w=10)``.

The Trainer's own loop goes on as it was set up; what changes is the device's clock, between two of its optimizer steps,
and how many rows there are in a micro-batch (see ``passes``).
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

from wattune.devices import Device, Meter, open_device
from wattune.errors import InputError, RecordError, SafetyStop
from wattune.files import read_json, write_json
from wattune.integrations.regrouping import Inputs
from wattune.integrations.trained import Training
from wattune.planning.sides import module_cap
from wattune.records import CapSide, OperatingPoint, SessionRecord
from wattune.session.interrupts import Shield
from wattune.session.session import Options, Session
from wattune.session.work import WorkBook
from wattune.training.guard import Guard, check_limit

STATE_NAME = "wattune.json"
"""What a checkpoint of the Trainer holds for a later ``train(resume_from_checkpoint=...)``."""

STEPPING_BACKWARD = ("lomo", "adalomo")
"""Optimizers that step while they backpropagate, so that no gradient can be added up."""


def attach(
    trainer: Trainer,
    *,
    device: str | Device = "auto",
    cap_w: float | None,
    cap_side: CapSide = "module",
    margin_w: float = 0.0,
    max_temp_c: float | None = None,
    record: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> Capped:
    """Hold ``trainer.train()``, ``evaluate()`` and ``predict()`` below ``cap_w`` watts; train as fast as that allows.

    The recipe stays: each optimizer step takes ``per_device_train_batch_size * gradient_accumulation_steps`` rows, in
    the order of the Trainer's own loader. Clock and micro-batch are chosen while it trains. ``device``, ``cap_side``,
    ``margin_w``, ``max_temp_c`` and ``record`` are those of ``wattune.capped``. Call it once, when the Trainer is made.

    Raises: InputError for a Trainer that spans several processes or GPUs or chooses its batch size itself; DeviceError.
    """
    _check(trainer)
    opened = open_device(device, seed=seed) if isinstance(device, str) else device
    if opened is not device:
        weakref.finalize(trainer, opened.close)
    check_limit(opened, max_temp_c)
    limit_w = module_cap(cap_w, cap_side, opened.supply)
    options = Options(
        supply_cap_w=cap_w if cap_side == "supply" else None, cap_side=cap_side, margin_w=margin_w, seed=seed
    )
    capped = Capped(trainer, opened, options, cap_w=limit_w, max_temp_c=max_temp_c, path=record)
    trainer.add_callback(capped)
    return capped


def _check(trainer: Any) -> None:
    args = trainer.args
    if any(isinstance(callback, Capped) for callback in trainer.callback_handler.callbacks):
        raise InputError("attach() was called for this Trainer before", hint="call it once")
    if args.parallel_mode.value != "not_parallel" or trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise InputError(
            "a Trainer that spans several processes or GPUs", value=args.parallel_mode.value, allowed="one device"
        )
    if args.auto_find_batch_size:
        raise InputError(
            "auto_find_batch_size", value=True, allowed="False", hint="the micro-batch is chosen here, the recipe stays"
        )
    name = getattr(args.optim, "value", args.optim)
    if name in STEPPING_BACKWARD:
        raise InputError("an optimizer that steps while it backpropagates", value=name, hint="choose another optim=")


class Capped(TrainerCallback):
    """What ``attach`` gives: a callback that holds the board while the Trainer trains or evaluates.

    ``record``: what the last training was on the board, also where it was interrupted.
    """

    def __init__(
        self,
        trainer: Any,
        device: Device,
        options: Options,
        *,
        cap_w: float | None,
        max_temp_c: float | None,
        path: str | os.PathLike[str] | None,
    ):
        self.device = device
        self.cap_w, self.max_temp_c = cap_w, max_temp_c
        self.record: SessionRecord | None = None
        self._trainer = trainer
        self._options, self._path = options, path
        self._training: Training | None = None
        self._shield = Shield()
        self._resume_from: str | None = None
        self._reached: float | None = None
        self._is_torn = self._is_first = self._evaluates = False
        self._originals: dict[str, Any] = {}
        for name in ("train", "evaluate", "predict"):
            self._originals[name] = getattr(trainer, name)
        trainer.train = self._train
        trainer.evaluate = partial(self._evaluate, "evaluate")
        trainer.predict = partial(self._evaluate, "predict")

    @property
    def session(self) -> Session | None:
        """The one under way; None outside of a training."""
        return None if self._training is None else self._training.session

    @property
    def point(self) -> OperatingPoint | None:
        """What training runs at now: rows of an optimizer step and of a micro-batch, and the clock; None outside."""
        return None if self._training is None else self._training.session.point

    def explain(self) -> str:
        """What was chosen, from what. Raises: InputError outside of a training."""
        if self._training is None:
            raise InputError("nothing is being trained", hint="the record of the last training is in `record`")
        return self._training.session.explain()

    # --------------------------------------------------------------------------------------------- around the training

    def _train(self, *arguments: Any, **options: Any) -> Any:
        self._resume_from = _checkpoint(self._trainer, *arguments, **options)
        try:
            with ExitStack() as stack:
                self._stack = stack
                stack.enter_context(self._shield)
                try:
                    return self._originals["train"](*arguments, **options)
                except (KeyboardInterrupt, SafetyStop):
                    self._keep_all()
                    raise
        finally:
            self._finish()

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take the board, at its lowest clock."""
        trainer = self._trainer
        loader = others.get("train_dataloader")
        self._options.loader = loader
        training = Training(trainer, self.device, loader, self._options, cap_w=self.cap_w, max_temp_c=self.max_temp_c)
        if self._resume_from is not None and (file := Path(self._resume_from) / STATE_NAME).exists():
            kept: Any = read_json(file)
            if kept["governor"]["name"] != self.device.name:
                raise RecordError(
                    f"{file} is of another device", value=kept["governor"]["name"], allowed=self.device.name
                )
            training.load_state_dict(kept)
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
        """The Trainer as it was; what it took on the board is in ``record``."""
        training, self._training = self._training, None
        if training is None:
            return
        for name in ("training_step", "get_batch_samples", "log"):
            setattr(self._trainer, name, self._originals[name])
        self._trainer.accelerator.backward = self._originals["backward"]
        self._reached = training.governor.keeper.state_dict()["reached"]
        self.record = training.record()
        if self.record is not None and self._path is not None:
            self.record.save(Path(self._path))

    def _keep_all(self) -> None:
        """A checkpoint of the Trainer's own, after the last whole step."""
        training, trainer = self._training, self._trainer
        if training is None or self._is_torn:
            return
        training.drop()
        trainer.model.zero_grad()
        trainer._save_checkpoint(trainer.model_wrapped, None)
        self.on_save(trainer.args, trainer.state, trainer.control)

    # ----------------------------------------------------------------------------------------------- the Trainer's loop

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The loader starts anew."""
        self._is_first = True

    def _get_batch_samples(self, *arguments: Any, **options: Any) -> Any:
        training = self._training
        assert training is not None
        begun_s = self.device.now_s()
        found = self._originals["get_batch_samples"](*arguments, **options)
        training.fetched(found[0], self.device.now_s() - begun_s, first=self._is_first)
        self._is_first = False
        return found

    def _training_step(self, model: nn.Module, inputs: Inputs, *others: Any) -> Tensor:
        training = self._training
        assert training is not None
        training.begin(model, *others)
        return training.passes.training_step(model, inputs, *others)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """An interrupt waits until the step is whole."""
        self._shield.hold()
        self._is_torn = True

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """The step is whole. Raises: SafetyStop, DeviceError; KeyboardInterrupt that waited."""
        self._is_torn = False
        if self._training is not None:
            self._training.end(stepped=not self._trainer.accelerator.optimizer_step_was_skipped)
        self._shield.release()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """A step that another callback ended early is none."""
        if self._training is not None:
            self._training.drop()
            self._training.session.passes = int(state.epoch or 0)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """What was learned of the board goes into the Trainer's checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self._training is not None and folder.is_dir():
            write_json(folder / STATE_NAME, self._training.state_dict())

    def _log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
        training = self._training
        if training is not None and ("loss" in logs or "train_runtime" in logs):
            logs.update(training.logged(total="train_runtime" in logs))
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
        """Outside of training: at the setting at which evaluations kept the cap, else at the lowest."""
        device = self.device
        lowest = device.settings[0] if device.settings and self.cap_w is not None else None
        with device.at(lowest if self._reached is None else self._reached) as setting:
            device.wait(device.sensor.settle_s)
            guard = Guard(device, setting, self.cap_w, self.max_temp_c)
            book = WorkBook(self._trainer.model, None, counts=not device.executes_steps)
            with Meter(device, cap_w=self.cap_w, on_reading=guard):
                book.begin("evaluation")
                try:
                    found = original(*arguments, **options)
                    if book.counts:
                        with device.step(book.end(1, 1)):
                            pass
                finally:
                    book.close()
            if guard.stopped:
                raise SafetyStop(guard.reason)
            return found


def _checkpoint(trainer: Any, resume_from_checkpoint: str | bool | None = None, *_: Any, **__: Any) -> str | None:
    """The folder that the Trainer will go on from, as it finds it."""
    if resume_from_checkpoint is True:
        found: str | None = get_last_checkpoint(trainer.args.output_dir)  # type: ignore[no-untyped-call]
        return found
    return str(resume_from_checkpoint) if resume_from_checkpoint else None
