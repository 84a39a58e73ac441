"""Training with a Transformers ``Trainer`` under a power cap: ``attach(trainer, device="auto", cap_w=10)``.

``attach`` chooses the micro-batch size by trial steps, before the Trainer makes its loader, and sets it once. The
Trainer's own loop then runs as configured, and a callback brackets its steps: only the device's settings still change.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback
from typing_extensions import Self

from wattune.cap import Over, PowerCap
from wattune.devices import Device, open_device
from wattune.errors import InputError, SafetyStop
from wattune.goal import TIME, Goal
from wattune.integrations.trial_passes import TrialPasses, no_division, other_shapes, uncounted
from wattune.loop import Session, capped
from wattune.loop.loop_run import OwnShape
from wattune.loop.probing import is_long_enough, probe
from wattune.loop.ranks.channel import FRAMEWORK_TIMEOUT_S
from wattune.loop.ranks.meeting import refusing
from wattune.loop.request import check_device, session_goal
from wattune.loop.rng_state import undisturbed, undrawn
from wattune.loop.session_cap import constant_cap, opened_profile
from wattune.point import BatchShape
from wattune.records import ProfileTable, SessionRecord
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
    profile: ProfileTable | str | Path | None = None,
    record: str | Path | None = None,
    log_to: LogTo = None,
    seed: int = 0,
) -> Capped:
    """Hold ``trainer.train()`` and the evaluations in it below ``cap_w`` watts; train as fast as that allows.

    The recipe stays: each optimizer step takes ``per_device_train_batch_size * gradient_accumulation_steps`` rows, in
    the order of the Trainer's own loader. These two arguments are set here once, to the fastest division of the step,
    by trial steps that take up to 2 % of the expected time. Settings of the device are chosen while it trains.
    ``profile``: a profile, or the record of an earlier session, that makes the trial steps unnecessary. ``cap_w``,
    ``goal``, ``device``, ``record`` and ``log_to`` are as in ``wattune.capped``. Call it once, when the Trainer is
    made, and use what it returns as a context in which the Trainer is called: an error then restores the board.

    In several processes (``torchrun``, ``accelerate launch``) every rank calls it. The two arguments stay, rank 0
    chooses the settings for all, controls all devices, and alone has the record. ``over``: what the cap is for, as in
    ``wattune.capped``.

    Raises: InputError for a Trainer that shards its model or chooses its batch size itself; SafetyStop, DeviceError.
    """
    with refusing():
        if any(isinstance(callback, Capped) for callback in trainer.callback_handler.callbacks):
            raise InputError("attach() was called before for this Trainer", hint="call it once")
        check_trainer(trainer)
        check_device(device)
        cap, asked_goal, table = constant_cap(cap_w, "attach()"), session_goal(goal), opened_profile(profile)
    is_alone = trainer.args.world_size == 1
    if is_alone and isinstance(device, str):
        device = open_device(device, seed=seed)
        weakref.finalize(trainer, device.close)
    options = {
        "device": device,
        "cap_w": cap,
        "over": over,
        "goal": asked_goal,
        "record": record,
        "log_to": log_to,
        "seed": seed,
    }
    made = Capped(trainer, options)
    made.divide(table)
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
        self._trials: TrialPasses | None = None
        self._notes: list[str] = []
        self._state: dict[str, Any] | None = None  # of the trials, for the training
        self._last: Session | None = None
        self._divided: OwnShape | None = None
        self._stop: SafetyStop | None = None
        self._evaluation = ExitStack()
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
        self._evaluation.__exit__(None if error is None else type(error), error, None)
        if session is not None:
            session.__exit__(None if error is None else type(error), error, None)
            self._last, self.record = session, session.record

    def _new_session(self, optimizer: Any, state: dict[str, Any] | None, **changes: Any) -> Session:
        """A session that continues from the ``state`` of an earlier one, if it was on the same devices."""
        trainer, own, alone = self._trainer, self._own, self._trainer.args.world_size == 1
        with refusing():
            # Accelerate prepares a model once, and for an evaluation without DistributedDataParallel.
            if not alone and trainer.model_wrapped is trainer.model:
                raise InputError(
                    "the Trainer does not average its gradients over the processes",
                    value=type(trainer.model).__name__,
                    hint="call evaluate() and predict() after train(), not before it",
                )
        session = capped(
            model=trainer.model if alone else trainer.model_wrapped,
            optimizer=optimizer,
            keep_recipe=True,
            batch_size=own.batch,
            micro_batch_size=own.micro,
            rank_timeout_s=FRAMEWORK_TIMEOUT_S,
            **{**self._options, **changes},
        )
        if state is not None and _leads(session):
            if (state.get("ranks", 1), state["name"]) == (session.size, session.run.device.name):
                session.run.load_state_dict(state)
            else:
                session.run.note("the checkpoint is of other devices: the search, time and energy start over")
        return session

    def explain(self) -> str:
        """Explain the choice of the point of the present run, or of the last one. Raises: InputError before any."""
        session = self.session or self._last
        if session is None:
            raise InputError("nothing was trained yet", hint="call it during or after train()")
        return session.explain()

    # ----------------------------------------------------------------------------------------------------- the division

    def divide(self, table: ProfileTable | None) -> None:
        """Choose the division of an optimizer step, and set the Trainer's arguments to it."""
        args, own = self._trainer.args, self._own
        if args.world_size > 1:
            self._notes.append("with several processes, the sizes stay yours, and clocks alone are chosen")
            return
        try:
            micro = self._chosen(own, table).micro
        except SafetyStop:  # which training will say, too, after a checkpoint
            return
        if micro != own.micro:
            args.per_device_train_batch_size, args.gradient_accumulation_steps = micro, own.batch // micro
            self._trainer._train_batch_size = micro  # the Trainer's copy, which its loader is made with

    @property
    def _own(self) -> BatchShape:
        args = self._trainer.args
        return BatchShape(args.train_batch_size * args.gradient_accumulation_steps, args.train_batch_size)

    def _chosen(self, own: BatchShape, table: ProfileTable | None) -> BatchShape:
        trainer, args, device = self._trainer, self._trainer.args, self._options["device"]
        with uncounted(trainer), ExitStack() as stack:
            if (why := no_division(trainer, own)) is not None:
                self._notes.append(f"the micro-batch size stays at {own.micro}: {why}")
                return own
            with undisturbed():
                loader = trainer.get_train_dataloader()
            stack.enter_context(undrawn(loader.dataset, loader.collate_fn))
            self._trials = trials = TrialPasses(trainer, loader, own)
            others, note = other_shapes(own, trainer.model, shares_memory=device.shares_memory)
            self._notes += [] if note is None else [note]
            steps = args.max_steps if args.max_steps > 0 else args.num_train_epochs * trials.steps_per_pass
            known = () if table is None else [one for one in table.measured if one.point.shape in (own, *others)]
            if not others or not (known or is_long_enough(steps)):
                return own
            trainer.create_optimizer()
            with self._new_session(trainer.optimizer, None, record=None, log_to=None) as session:
                run = session.run
                search: Any = run.explorer.search
                search.samples_left = float(steps * own.batch)
                for row in search.rows:
                    if row not in (own, *others):
                        run.explorer.leave_out(row)
                shape = probe(session, trials.usual, steps=steps, proof=trials.proof, known=known)
                self._notes += run.notes
                self._divided = run.own
                self._state = {**run.state_dict(), "device": None, "notes": []}
            return shape

    # -------------------------------------------------------------------------------------------------- begin and end

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take control of the board, at its lowest clock."""
        self.__exit__(None, None, None)
        steps = max(1, state.max_steps - state.global_step)
        self._stop = None
        saved, self._state = state.stateful_callbacks.get(STATE_NAME, self._state), None
        with self._closing():
            session = self._new_session(self._trainer.optimizer, saved)
            run = session.run
            run.own = self._divided
            session.__enter__()
            self.session = session
            atexit.register(self._exit)
            if _leads(session):
                run.keep_only(self._own)
                search: Any = run.explorer.search
                search.samples_left = float(steps * self._own.batch)
            for note in self._notes:
                run.note(note)
            if (step := _measured_step(state)) != state.global_step:
                run.note(f"the checkpoint of step {state.global_step} has measurements up to step {step} alone")
        if args.eval_on_start:
            self._begin_evaluation()

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
            own = self._own
            samples = min(own.batch, self._trainer.current_gradient_accumulation_steps * own.micro)
            if self._trials is not None:
                steps = self._trials.steps_per_pass
                samples = min(samples, self._trials.rows - state.global_step % steps * own.batch)
            varies = self._trials is None or self._trials.varies
            session.begin_step(samples, key=state.global_step if varies else None)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the step. Raises: RankLost, DeviceError."""
        if self.session is not None and self._stop is None:
            with self._closing():
                self.session.end_step(stepped=not self._trainer.accelerator.optimizer_step_was_skipped)
        self._before_saving(state, control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Drop a step that another callback ended early."""
        if self.session is not None:
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
        if session is not None and _leads(session):
            own = {"ranks": session.size, "at_step": state.global_step}
            state.stateful_callbacks[STATE_NAME] = {**session.run.state_dict(), **own}

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


def _leads(session: Session) -> bool:
    return session.ranks is None or session.ranks.is_leader


def _measured_step(state: Any) -> int:
    """Step whose measurements a checkpoint has, 0 without any; an earlier version did not save the step."""
    saved = state.stateful_callbacks.get(STATE_NAME)
    step: int = 0 if saved is None else saved.get("at_step", state.global_step)
    return step


def check_trainer(trainer: Any) -> None:
    """Check that ``attach`` supports the Trainer's settings. Raises: InputError."""
    args = trainer.args
    if (sharing := _unsupported_sharing(trainer)) is not None:
        raise InputError(
            "a Trainer whose processes or GPUs share their work in another way than by DistributedDataParallel",
            value=sharing,
            allowed="one device, or one process for each under torchrun or accelerate launch",
        )
    if args.auto_find_batch_size:
        raise InputError(
            "auto_find_batch_size",
            value=True,
            allowed="False",
            hint="wattune chooses the micro-batch size and keeps the recipe",
        )


def _unsupported_sharing(trainer: Any) -> str | None:
    mode = trainer.args.parallel_mode.value
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "DeepSpeed" if trainer.is_deepspeed_enabled else "FSDP"
    if getattr(trainer, "is_distributed_loading_by_transformers", False):
        return "tensor parallelism"
    if getattr(trainer.accelerator, "parallelism_config", None) is not None:
        return "a parallelism_config"
    return None if mode in ("not_parallel", "distributed") else "nn.DataParallel" if mode == "not_distributed" else mode
