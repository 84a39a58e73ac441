"""Training with a Transformers ``Trainer`` under a power cap: ``attach(trainer, device="auto", cap_w=10)``.

The Trainer's own loop runs as configured. A callback brackets its steps, and chooses the device's settings.
"""

from __future__ import annotations

import atexit
import math
import sys
from collections.abc import Iterator, Sized
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from typing_extensions import Self

from wattune.cap import Over, PowerCap
from wattune.devices import Device
from wattune.errors import InputError, SafetyStop
from wattune.goal import TIME, Goal
from wattune.integrations.framework import checked, leads, new_session, state_of
from wattune.loop.ranks.meeting import refusing
from wattune.loop.session import Session
from wattune.point import BatchShape
from wattune.records import SessionRecord
from wattune.tracking.trackers import LogTo

STATE_NAME = "wattune"
"""Entry in the ``stateful_callbacks`` of the Trainer's state, for a later ``train(resume_from_checkpoint=...)``."""


def attach(
    trainer: Trainer,
    *,
    device: str | Device = "auto",
    cap_w: float | str | PowerCap | None,
    over: Over = "device",
    goal: Goal | str = TIME,
    record: str | Path | None = None,
    log_to: LogTo = None,
    seed: int = 0,
) -> Capped:
    """Hold ``trainer.train()`` and the evaluations in it below ``cap_w`` watts; train as fast as that allows.

    All arguments of the Trainer stay, the sizes of its batches included. The other arguments are as in
    ``wattune.capped``. Call it once, when the Trainer is made, and use what it returns as a context in which the
    Trainer is called: an error then restores the board.

    In several processes (``torchrun``, ``accelerate launch``) every rank calls it. Rank 0 chooses the settings for all,
    and alone has the record; each rank sets its own device.

    Raises: InputError for a Trainer that shards its model or chooses its batch size itself.
    """
    with refusing():
        if any(isinstance(callback, Capped) for callback in trainer.callback_handler.callbacks):
            raise InputError("attach() was called before for this Trainer", hint="call it once")
        check_trainer(trainer)
        given = {"cap_w": cap_w, "goal": goal, "device": device, "over": over, "record": record, "log_to": log_to}
        made = Capped(trainer, checked("attach()", **given, seed=seed))
    trainer.add_callback(made)
    return made


class Capped(TrainerCallback):
    """The callback that ``attach`` returns: it keeps the board under the cap while the Trainer trains.

    It is a context, too, whose end restores the board whatever has happened inside; without one, an error of the
    training leaves the board under the cap until the Trainer is called again or the process ends. ``session``: the
    current one, None outside of training. ``record``: of the last training; rank 0 alone has it.
    """

    def __init__(self, trainer: Any, options: dict[str, Any]):
        self.record: SessionRecord | None = None
        self.session: Session | None = None
        self._trainer, self._options = trainer, options
        self._last: Session | None = None
        self._stop: SafetyStop | None = None
        self._stack = self._evaluation = ExitStack()
        self._sets_left = 0  # to evaluate

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._end(error or RuntimeError("train() was left by an error"))

    def _exit(self) -> None:
        """End the session when the program ends, by an error or not."""
        self.__exit__(None, getattr(sys, "last_value", None), None)

    def _end(self, error: BaseException | None) -> None:
        """Restore the board, and end the session, if there is one."""
        atexit.unregister(self._exit)
        session, self.session = self.session, None
        if session is None:
            return
        try:
            self._stack.__exit__(None if error is None else type(error), error, None)
        finally:
            self._last, self.record = session, session.record

    def explain(self) -> str:
        """Explain the choice of the point of the present run, or of the last one. Raises: InputError before any."""
        session = self.session or self._last
        if session is None:
            raise InputError("nothing was trained yet", hint="call it during or after train()")
        return session.explain()

    # -------------------------------------------------------------------------------------------------- begin and end

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take control of the board, at its lowest clock."""
        self.__exit__(None, None, None)
        self._stop = None
        trainer, is_alone = self._trainer, args.world_size == 1
        with self._closing():
            with refusing():
                # Accelerate prepares a model once, and for an evaluation without DistributedDataParallel.
                if not is_alone and trainer.model_wrapped is trainer.model:
                    what = "the Trainer does not average its gradients over the processes"
                    hint = "call evaluate() and predict() after train(), not before it"
                    raise InputError(what, value=type(trainer.model).__name__, hint=hint)
            model = trainer.model if is_alone else trainer.model_wrapped
            saved = state.stateful_callbacks.get(STATE_NAME)
            session = new_session(model, trainer.optimizer, self._own, self._options, saved)
            self._stack = ExitStack()
            self.session = self._stack.enter_context(session)
            self._evaluation = self._stack.enter_context(ExitStack())
            atexit.register(self._exit)
            session.run.expect(float((state.max_steps - state.global_step) * self._own.batch))
            step = 0 if saved is None else saved["at_step"]
            if step != state.global_step:
                session.run.note(f"the checkpoint of step {state.global_step} has measurements up to step {step} alone")
        if args.eval_on_start:
            self._begin_evaluation()

    @property
    def _own(self) -> BatchShape:
        args = self._trainer.args
        return BatchShape(args.train_batch_size * args.gradient_accumulation_steps, args.train_batch_size)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the session. Raises: SafetyStop if it has ended the training."""
        self._end(self._stop)
        if self._stop is not None:
            raise self._stop

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Context of what this callback does: its own errors end the session, and a SafetyStop ends the training with a
        checkpoint."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, SafetyStop) or self.session is None:
                self._end(error)
                raise
            self._stop = error
            self._trainer.control.should_training_stop = True

    # ----------------------------------------------------------------------------------------------- the Trainer's loop

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin a step. Raises: RankLost, DeviceError."""
        session = self.session
        if session is None or self._stop is not None:
            return
        with self._closing():
            self._evaluation.close()
            # Rows may have any lengths, so that the work of each step is counted on a device that does not execute it.
            session.begin_step(self._samples(state.global_step, others["train_dataloader"]), key=state.global_step)

    def _samples(self, step: int, loader: Any) -> int:
        """Samples of this process in the next step; the last step of a pass may be smaller."""
        own, parts = self._own, self._trainer.current_gradient_accumulation_steps
        sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        if self._trainer.args.world_size > 1 or not isinstance(sampler, Sized):
            return int(min(own.batch, parts * own.micro))
        begin = step % math.ceil(len(loader) * own.micro / own.batch) * own.batch
        return int(min(parts * own.micro, len(sampler) - begin))

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the step. Raises: RankLost, DeviceError."""
        if self.session is not None and self._stop is None:
            with self._closing():
                self.session.end_step(stepped=not self._trainer.accelerator.optimizer_step_was_skipped)
        self._before_saving(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Drop a step that another callback ended early."""
        if self.session is not None:
            with self._closing():
                self._evaluation.close()  # if another callback took it back
            self.session.drop_step()
            self.session.passes = int(state.epoch or 0)
        self._before_saving(state, control)

    def _before_saving(self, state: Any, control: Any) -> None:
        """Put the state of the search into the Trainer's state, and begin the evaluation that the Trainer runs next: no
        callback says when it begins."""
        session = self.session
        if session is None:
            return
        if self._stop is not None:
            session.drop_step()
            control.should_save = control.should_training_stop = True
        if control.should_save:
            self._put_state(state)
        if control.should_evaluate:
            self._begin_evaluation()

    def _put_state(self, state: Any) -> None:
        session = self.session
        if session is not None and leads(session):
            state.stateful_callbacks[STATE_NAME] = {**state_of(session), "at_step": state.global_step}

    # ------------------------------------------------------------------------------------------------------- evaluation

    def _begin_evaluation(self) -> None:
        with self._closing():
            if self.session is not None and self._stop is None:
                sets = self._trainer.eval_dataset
                self._sets_left = len(sets) if isinstance(sets, dict) else 1
                self._evaluation.enter_context(self.session.evaluation())

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End an evaluation after its last set. Raises: DeviceError."""
        self._sets_left -= 1
        if self._sets_left > 0:
            return
        with self._closing():
            self._evaluation.close()
        if args.save_strategy == "best":  # the Trainer decides after this whether to save
            self._put_state(state)


def check_trainer(trainer: Any) -> None:
    """Check that ``attach`` supports the Trainer's settings. Raises: InputError."""
    args = trainer.args
    if (sharing := _unsupported_sharing(trainer)) is not None:
        what = "a Trainer whose processes or GPUs share their work in another way than by DistributedDataParallel"
        allowed = "one device, or one process for each under torchrun or accelerate launch"
        raise InputError(what, value=sharing, allowed=allowed)
    if args.auto_find_batch_size:
        hint = "set per_device_train_batch_size to a size that fits"
        raise InputError("auto_find_batch_size", value=True, allowed="False", hint=hint)


def _unsupported_sharing(trainer: Any) -> str | None:
    mode = trainer.args.parallel_mode.value
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "DeepSpeed" if trainer.is_deepspeed_enabled else "FSDP"
    if getattr(trainer, "is_distributed_loading_by_transformers", False):
        return "tensor parallelism"
    if getattr(trainer.accelerator, "parallelism_config", None) is not None:
        return "a parallelism_config"
    return None if mode in ("not_parallel", "distributed") else "nn.DataParallel" if mode == "not_distributed" else mode
