"""Training with a Transformers ``Trainer`` under a power cap: ``attach(trainer, device="auto", cap_w=10)``.

``attach`` chooses the micro-batch size by trial steps, before the Trainer makes its loader, and sets it once. The
Trainer's own loop then runs as configured, and a callback brackets its steps: only the device's settings still change.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset
from transformers import Trainer, TrainerCallback
from typing_extensions import Self

from wattune.cap import OVER, Over, PowerCap
from wattune.devices import Device, open_device
from wattune.errors import DeviceError, InputError, SafetyStop
from wattune.goal import TIME, Goal
from wattune.integrations.trainer_sessions import Place, check_trainer, evaluation_run, limit_of, new_session
from wattune.integrations.trial_passes import TrialPasses, micro_batch_sizes, rows_of_pass, uncounted
from wattune.online.optimizer_step import Overflows
from wattune.online.probing import is_long_enough, probe
from wattune.online.ranks.meeting import refused, refusing
from wattune.online.request import check_file, session_goal
from wattune.online.rng_state import undisturbed, undrawn
from wattune.online.session import Session, SessionOptions
from wattune.online.session_cap import constant_cap, opened_profile
from wattune.online.step_counter import StepWorkCounter
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.power.limiter import check_limit
from wattune.records import ProfileTable, SessionRecord
from wattune.search.search import OwnRecipe
from wattune.tracking.trackers import LogTo, trackers_of

STATE_NAME = "wattune"
"""Entry in the ``stateful_callbacks`` of the Trainer's state, for a later ``train(resume_from_checkpoint=...)``."""

FIXED = "the loader does not follow the arguments"


def attach(
    trainer: Trainer,
    *,
    device: str | Device = "auto",
    cap_w: float | str | PowerCap | None,
    over: Over = "device",
    goal: Goal | str = TIME,
    profile: ProfileTable | str | Path | None = None,
    record: str | os.PathLike[str] | None = None,
    log_to: LogTo = None,
    seed: int = 0,
) -> Capped:
    """Hold ``trainer.train()``, ``evaluate()`` and ``predict()`` below ``cap_w`` watts; train as fast as that allows.

    The recipe stays: each optimizer step takes ``per_device_train_batch_size * gradient_accumulation_steps`` rows, in
    the order of the Trainer's own loader. These two arguments are set here once, to the fastest division of the step,
    by trial steps that take up to 2 % of the expected time. Settings of the device are chosen while it trains.
    ``profile``: a profile, or the record of an earlier session, that makes the trial steps unnecessary. ``cap_w``,
    ``goal``, ``device``, ``record`` and ``log_to`` are as in ``wattune.capped``. Call it once, when the Trainer is
    made, and use what it returns as a context in which the Trainer is called: an error then restores the board.

    In several processes (``torchrun``, ``accelerate launch``) every rank calls it. Rank 0 chooses for all, controls
    all devices, and alone has the record. ``over``: what the cap is for, as in ``wattune.capped``.

    Raises: InputError for a Trainer that shards its model or chooses its batch size itself; SafetyStop, DeviceError.
    """
    with refusing():
        if any(isinstance(callback, Capped) for callback in trainer.callback_handler.callbacks):
            raise InputError("attach() was called before for this Trainer", hint="call it once")
        check_trainer(trainer)
        if over not in OVER:
            raise InputError("over", value=over, allowed=", ".join(OVER))
        cap, asked_goal = constant_cap(cap_w, "attach()"), session_goal(goal)
        listeners, table = trackers_of(log_to), opened_profile(profile)
        file = None if record is None else Path(record).absolute()
        if file is not None:
            check_file(file)
    is_alone = trainer.args.world_size == 1
    options = SessionOptions(
        cap, asked_goal, over=None if is_alone else over, seed=seed, record=file, listeners=listeners
    )
    if is_alone:
        board = open_device(device, seed=seed) if isinstance(device, str) else device
        if board is not device:
            weakref.finalize(trainer, board.close)
        check_limit(board, cap.max_temp_c)
        limit_of(options, board)
        device = board
    capped = Capped(trainer, device, options)
    capped.divide(table)
    trainer.add_callback(capped)
    return capped


class Capped(TrainerCallback):
    """The callback that ``attach`` returns: it keeps the board under the cap while the Trainer trains or evaluates.

    It is a context, too, whose end restores the board whatever has happened inside; without one, an error of the
    training leaves the board under the cap until the Trainer is called again or the process ends. ``session``: the
    current one, None outside of training. ``record``: of the last training; rank 0 alone has it.
    """

    def __init__(self, trainer: Any, place: Place, options: SessionOptions):
        self.record: SessionRecord | None = None
        self.session: Session | None = None
        self.device = place if not isinstance(place, str) and options.over is None else None
        """The device, if this process is alone."""
        self._trainer, self._place, self._options = trainer, place, options
        self._trials: TrialPasses | None = None
        self._notes: list[str] = []
        self._state: dict[str, Any] | None = None
        self._own_recipe: OwnRecipe | None = None
        self._is_divided = False
        self._explanation: str | None = None
        self._stop: SafetyStop | None = None
        self._reached = Knobs()
        self._evaluation, self._evaluates, self._watched = ExitStack(), False, None
        self._interrupts, self._overflows = Interrupts(), Overflows()
        self._last_log, self._averages = (0.0, 0.0), True
        self._since_s: float | None = None
        self._watch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """Restore the board, and end the session of a training that has not reached its end, because of ``error``."""
        if error is None and self.session is not None:
            error = RuntimeError("train() was left by an error")
        self._end(error)

    def _exit(self) -> None:
        """End the session when the program ends, with the error of ``train()`` if that ends the program."""
        error = getattr(sys, "last_value", None)
        trains = error is not None and any(
            frame.f_code is Trainer.train.__code__ for frame, _ in walk_tb(error.__traceback__)
        )
        self.close(error if trains else None)

    def _end(self, error: BaseException | None) -> None:
        atexit.unregister(self._exit)
        self._interrupts.close()
        session, self.session = self.session, None
        self._evaluates = False
        self._evaluation.__exit__(None if error is None else type(error), error, None)
        if session is None:
            return
        session.__exit__(None if error is None else type(error), error, None)
        self._explanation, self.record = session.explain(), session.record
        if _leads(session):
            self._reached = Knobs(session.run.capped.limiter.state_dict()["reached"])

    @property
    def point(self) -> OperatingPoint | None:
        """Current rows of an optimizer step and of a micro-batch, and the clock; None outside of training."""
        return None if self.session is None else self.session.point

    def explain(self) -> str:
        """Explain the choice of the point of the present run, or of the last one. Raises: InputError before any."""
        if self.session is not None:
            return self.session.explain()
        if self._explanation is None:
            raise InputError("nothing was trained yet", hint="call it during or after train()")
        return self._explanation

    # ----------------------------------------------------------------------------------------------------- the division

    def divide(self, table: ProfileTable | None) -> None:
        """Choose the division of an optimizer step, on rank 0 for all, and set the Trainer's arguments to it."""
        args, own = self._trainer.args, self._own
        answer: list[Any] = [own, own.micro, None]
        if args.process_index == 0:
            try:
                answer[1] = self._chosen(own, table).micro
            except SafetyStop:  # which training will say, too, after a checkpoint
                pass
            except (DeviceError, InputError) as error:
                if args.world_size == 1:
                    raise
                answer[2] = str(error)
        if args.world_size > 1:
            dist.broadcast_object_list(answer, src=0)
            if answer[2] is not None:
                raise refused(args.process_index, InputError(answer[2]))
        if answer[0] == own and answer[1] != own.micro:  # training refuses ranks whose own differ
            self._set(own.batch, answer[1])
            if _loader(self._trainer)[1] != answer[1]:
                self._set(own.batch, own.micro)
                self._notes.append(f"the micro-batch size stays at {own.micro}: {FIXED}")
        self._is_divided = self._own != own

    @property
    def _own(self) -> BatchShape:
        args = self._trainer.args
        return BatchShape(args.train_batch_size * args.gradient_accumulation_steps, args.train_batch_size)

    def _set(self, batch: int, micro: int) -> None:
        args = self._trainer.args
        args.per_device_train_batch_size, args.gradient_accumulation_steps = micro, batch // micro
        self._trainer._train_batch_size = args.train_batch_size  # the Trainer's copy, which its loader is made with

    def _chosen(self, own: BatchShape, table: ProfileTable | None) -> BatchShape:
        trainer, args, options = self._trainer, self._trainer.args, self._options
        self._averages = args.average_tokens_across_devices
        with uncounted(trainer), ExitStack() as stack:
            why = self._no_division(own, stack)
            if why is None and self._trials is not None:
                device = self.device
                if device is None:
                    device = open_device(str(self._place), seed=options.seed)
                    stack.callback(device.close)
                sizes, note = micro_batch_sizes(own, trainer.model, shares_memory=device.shares_memory)
                rows, passes = [BatchShape(own.batch, size) for size in sizes], self._trials
                self._notes += [] if note is None else [note]
                steps = args.max_steps if args.max_steps > 0 else args.num_train_epochs * passes.steps_per_pass
                known = () if table is None else [cell for cell in table.measured if cell.point.shape in rows]
                if len(rows) > 1 and (known or is_long_enough(steps)):
                    trainer.create_optimizer()
                    quiet = replace(options, over=None, record=None, listeners=(), loader=None)
                    with new_session(trainer, device, quiet, own, rows, steps=steps) as session:
                        shape = probe(session, passes.usual, steps=steps, proof=passes.proof, known=known)
                        self._notes += session.run.notes
                        self._own_recipe = session.run.own_recipe
                        if self.device is not None:
                            self._state = {**session.run.state_dict(), "device": None, "notes": []}
                    return shape
            if why is not None:
                self._notes.append(f"the micro-batch size stays at {own.micro}: {why}")
        return own

    def _no_division(self, own: BatchShape, stack: ExitStack) -> str | None:
        """The reason why a step cannot be divided in another way; None if it may be, by ``self._trials``."""
        args = self._trainer.args
        if args.world_size > 1:
            if self._options.over != "device" or not isinstance(self._place, str):
                return "processes that share a cap do not try others"
            if not self._averages:
                return "rows of other lengths would share a process"
        loader, size = _loader(self._trainer)
        if size != own.micro:
            return FIXED
        if isinstance(loader.dataset, IterableDataset):
            return "the rows of a stream cannot be drawn twice"
        pass_rows = rows_of_pass(loader)
        if pass_rows is None:
            return "the sampler does not say how many rows it draws in a pass"
        uneven = pass_rows % (own.batch * args.world_size)
        if uneven and (args.dataloader_drop_last or args.world_size > 1):
            return "the last step of a pass would take other rows"
        stack.enter_context(undrawn(loader.dataset, loader.collate_fn))
        self._trials = TrialPasses(self._trainer, loader, own, pass_rows)
        return None

    # -------------------------------------------------------------------------------------------------- begin and end

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Take control of the board, at its lowest clock."""
        self.close()
        self._watch()
        options, shape = replace(self._options, loader=others.get("train_dataloader")), self._own
        steps = max(1, state.max_steps - state.global_step)
        self._stop, self._overflows, self._since_s = None, Overflows(), None
        self._last_log = 0.0, 0.0
        saved, self._state = state.stateful_callbacks.get(STATE_NAME, self._state), None
        with self._closing():
            session = new_session(
                self._trainer, self.device or self._place, options, shape, [shape], steps=steps, state=saved
            )
            session.run.is_divided, session.run.own_recipe = self._is_divided, self._own_recipe
            if self.device is not None:  # an interrupt of several processes ends all of them at once
                self._interrupts.open()  # before the session, which takes the signal where nobody else has
            session.__enter__()
            self.session = session
            atexit.register(self._exit)
            for note in self._notes:
                session.run.note(note)
            if args.fp16 and not getattr(self._trainer.accelerator, "native_amp", True):
                session.run.note("fp16 was asked for, and Transformers trains in fp32 on this processor")

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the session. Raises: SafetyStop or KeyboardInterrupt if one of them has ended the training."""
        error = self._stop or (KeyboardInterrupt() if self._interrupts.is_pending else None)
        self._end(error)
        if error is not None:
            raise error

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Context of what this callback does: its own errors end the session, and a SafetyStop ends the training with a
        checkpoint."""
        try:
            yield
        except BaseException as error:
            if not isinstance(error, SafetyStop) or self.session is None:
                self.close(error)
                raise
            self._stop = error
            self._trainer.control.should_training_stop = True

    # ----------------------------------------------------------------------------------------------- the Trainer's loop

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Note that the loader starts a new pass."""
        self._waits()

    def _waits(self) -> None:
        """Note that what comes next is a wait for data."""
        self._since_s = None if self.session is None else self.session.run.device.now_s()

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Begin a step. Raises: RankLost, DeviceError."""
        session = self.session
        if session is None or self._stop is not None:
            return
        with self._closing():
            self._end_evaluation()
            run, own = session.run, self._own
            if self._since_s is not None:
                run.times.waiting_s += run.device.now_s() - self._since_s
            samples = min(own.batch, self._trainer.current_gradient_accumulation_steps * own.micro)
            if self._trials is not None and args.world_size == 1:
                steps = self._trials.steps_per_pass
                samples = min(samples, self._trials.rows - state.global_step % steps * own.batch)
            varies = self._trials is None or self._trials.varies
            session.begin_step(samples, row=session.row, key=state.global_step if varies else None)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End the step. Raises: InputError, DeviceError."""
        session, skipped = self.session, self._trainer.accelerator.optimizer_step_was_skipped
        if session is not None and self._stop is None:
            with self._closing():
                session.end_step(stepped=not skipped)
                self._overflows.count(skipped=skipped)
        elif session is not None:
            session.drop_step()
        if self._stop is not None or self._interrupts.is_pending:
            control.should_save = control.should_training_stop = True
        self._save_state(state, control)
        self._waits()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Drop a step that another callback ended early."""
        if self.session is not None:
            self.session.drop_step()
            self.session.passes = int(state.epoch or 0)
        control.should_save |= self._stop is not None  # which may end a step between two of its micro-batches
        self._save_state(state, control)

    def _save_state(self, state: Any, control: Any) -> None:
        """Put the state of the search into the Trainer's state if a checkpoint is saved next."""
        session = self.session
        if session is not None and control.should_save and _leads(session):
            state.stateful_callbacks[STATE_NAME] = {**session.run.state_dict(), "ranks": session.size}

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Do not count the time as a wait for data."""
        self._waits()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Add power, energy and the operating point to rows that have a loss: the mean power since the row before. The
        last row has mean and peak of the whole."""
        session, is_last = self.session, "train_runtime" in (logs or {})
        if session is None or not logs or not (is_last or "loss" in logs) or not _leads(session):
            return
        run = session.run
        try:
            figures = run.capped.meter.figures()
        except DeviceError:  # before the sensor's first reading, or the sensor is lost
            return
        time_s, energy_j = (0.0, 0.0) if is_last else self._last_log
        self._last_log = figures.time_s, figures.energy_j
        values = {"micro_batch_size": self._own.micro, "energy_j": round(figures.energy_j, 3)}
        if figures.time_s > time_s:
            values["power_mean_w"] = round((figures.energy_j - energy_j) / (figures.time_s - time_s), 3)
        if is_last:
            values["power_peak_w"] = round(figures.power_peak_w, 3)
        values.update(run.capped.limiter.knobs)
        logs.update(values)
        state.log_history[-1].update(values)
        self._waits()

    # ------------------------------------------------------------------------------------------------------- evaluation

    def _watch(self) -> None:
        """Watch the Trainer's model for evaluations, whose begin no callback tells."""
        model = self._trainer.model
        if self._watched is not model:
            self._watched = model
            model.register_forward_pre_hook(torch.compiler.disable(self._on_forward))  # type: ignore[no-untyped-call]

    def _on_forward(self, model: Any, *_: Any) -> None:
        evaluates = not model.training and not torch.is_grad_enabled()
        if evaluates and not self._evaluates:
            self._evaluates = True
            with self._closing():
                self._evaluation.enter_context(self._alone() if self.session is None else self.session.evaluation())
        elif not evaluates:
            self._end_evaluation()

    def _end_evaluation(self) -> None:
        self._evaluates = False
        with self._closing():
            self._evaluation.close()

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """End an evaluation. Raises: DeviceError; outside of training, SafetyStop."""
        self._end_evaluation()
        self._waits()

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **others: Any) -> None:
        """End a prediction. Raises: DeviceError; outside of training, SafetyStop."""
        self._end_evaluation()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Evaluate outside of training: at the setting that kept evaluations under the cap, else at the lowest."""
        with evaluation_run(self._trainer, self.device or self._place, self._options, self._reached) as run:
            if run is None:  # rank 0 holds the boards
                yield
                return
            counter = StepWorkCounter(self._trainer.model, None, counts=not run.device.executes_steps)
            counter.begin("evaluation")
            try:
                yield
                if counter.counts:
                    with run.device.step(counter.end(1, 1)):
                        pass
            finally:
                counter.close()
            run.check()


def _leads(session: Session) -> bool:
    return session.ranks is None or session.ranks.is_leader


def _loader(trainer: Any) -> tuple[Any, int | None]:
    """The Trainer's loader, and the batch size that it has."""
    with undisturbed():
        loader = trainer.get_train_dataloader()
    return loader, getattr(getattr(loader, "batch_sampler", None), "batch_size", None)


class Interrupts:
    """Ctrl-C while a Trainer trains: ``is_pending`` once it was pressed. A second one ends the training at once.

    It has no effect outside the main thread, or if SIGINT already has another handler.
    """

    def __init__(self) -> None:
        self.is_pending = self._is_set = False

    def open(self) -> None:
        """Take over the signal, until ``close``."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._is_set = True

    def close(self) -> None:
        """Restore the signal."""
        if self._is_set:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.is_pending = self._is_set = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        trains = any(one.f_code is Trainer.train.__code__ for one, _ in walk_stack(frame))
        if self.is_pending or not trains:  # an error has ended the training
            self.close()
            signal.default_int_handler(number, frame)
        self.is_pending = True
