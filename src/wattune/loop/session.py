"""Power-capped training in the user's own loop."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from typing_extensions import Self

from wattune.algorithms import memory_errors
from wattune.cap_source import check_scale
from wattune.devices import Device
from wattune.errors import InputError, OutOfDeviceMemory, OutputError, SafetyStop, SensorError, WattuneError
from wattune.files import Held, set_aside
from wattune.loop.division import DivisionCheck
from wattune.loop.interrupts import Ended, Shield
from wattune.loop.micro_batching import Batch
from wattune.loop.optimizer_step import OptimizerStepper, trained
from wattune.loop.ranks.agreement import Ranks
from wattune.loop.rate_watch import RateWatch
from wattune.loop.request import Request
from wattune.loop.session_checkpoint import check_savable, save_session
from wattune.loop.session_record import explanation, session_record
from wattune.loop.session_run import SessionRun
from wattune.loop.update_feed import UpdateFeed, logger
from wattune.loop.user_loop import UserLoop
from wattune.point import BatchShape, OperatingPoint
from wattune.records import SessionRecord
from wattune.records.session import SessionEnding

_in_use: list[Device] = []
"""Devices of open sessions: an opened device could be given to two of them."""


class Progress(NamedTuple):
    """Samples of a pass that were trained on, and of the whole pass: None if the loader does not tell."""

    samples: int
    total: int | None


class Batches(Iterator[Batch]):
    """The batches of a pass; its length is the number of batches left if their size stays as it is."""

    def __init__(self, batches: Iterator[Batch], left: Callable[[], int]):
        self._batches = batches
        self._left = left

    def __next__(self) -> Batch:
        return next(self._batches)

    def __len__(self) -> int:
        return self._left()


class Session:
    """A context in which the user's own loop trains below a cap; made by ``wattune.capped``.

    ``batches`` gives one pass over the loader's data set, and ``backward`` replaces ``loss.backward()``,
    ``optimizer.step()`` and ``optimizer.zero_grad()``. Loops that fetch and step themselves bracket each optimizer
    step with ``begin_step`` and ``end_step`` instead, and use the batch size and micro-batch size of ``row``. In a job
    of several ranks, all of them do so at the same place of their loops, and get the same rows.
    """

    def __init__(self, run: SessionRun, asked: Request, ranks: Ranks | None = None):
        self.run = run
        self.asked = asked
        self.recipe = recipe = asked.recipe
        self.sample_model = asked.sample_model
        self.optimizer = optimizer = asked.optimizer
        self.batch_source = asked.batch_source
        self.ranks = ranks
        """The other processes of the job, if there are any."""
        self.record: SessionRecord | None = None
        """The record, once the session is over."""
        self.ended: SessionEnding = "finished"
        self.reason: str | None = None
        self.loop: UserLoop | None = None
        self._stepper: OptimizerStepper | None = None
        self.rate_watch: RateWatch | None = None
        """The watch on losses at higher learning rates than the user's, if they may be used."""
        if recipe.may_rise and (ranks is None or asked.batch_source is not None):
            memory_bytes, give_up = run.device.memory_bytes, self._give_up_raising
            self.rate_watch = RateWatch(run.model, optimizer, recipe, memory_bytes, give_up, asked.sync.mean)
        # Of a job's processes each gets the signal, and those that wait for another one cannot answer.
        self.shield = Shield(ends=ranks is None)
        if asked.batch_source is not None:
            self._stepper = OptimizerStepper(asked, run.counter)
            is_whole = run.start == BatchShape(recipe.batch_size, recipe.batch_size)
            division = None
            if asked.divides or (asked.moving is not None and not is_whole):
                # Ranks prove at the same step, and parts that the user asks for before they are used.
                at_once = ranks is not None or not is_whole
                division = DivisionCheck(run.model, list(trained(optimizer)), at_once=at_once)
            self.loop = UserLoop(run, asked, self._stepper, self.rate_watch, division, self.shield)
            if ranks is not None and asked.batch_source.samples_per_pass is None:
                self.loop.is_end = partial(ranks.is_end_of_pass, asked.sync, asked.given.even)
        self._feed = UpdateFeed(self, asked.listeners)
        self._passes = 0
        self._claims = ExitStack()
        self._is_open = self._in_pass = self._is_broken = False
        self._agreed: BatchShape | None = None
        self._resumed = asked.resumed

    # -------------------------------------------------------------------------------------------------------- context

    def __enter__(self) -> Self:
        self.run.on_point, self.run.on_look = self._feed.point, self._feed.look
        path = self.asked.checkpoint
        if path is not None and self.ranks is None:  # others know nothing of a pause, and save at the end of a pass
            self.run.on_pause = lambda: save_session(self, path)
        try:
            with ExitStack() as claims:
                claims.enter_context(self.shield)
                if self.asked.closes:
                    claims.callback(self.run.device.close)
                claims.enter_context(_claimed(self.run.device))
                if path is not None:
                    self._claim_checkpoint(path, claims)
                    check_savable(self)
                if self._resumed is not None:
                    self._resumed.load(self)
                    if not self.recipe.may_rise:
                        self.sample_model.leave_out_above(self.recipe.batch_size)
                self.run.__enter__()
                self._claims = claims.pop_all()
        except BaseException as error:
            if self.ranks is not None and (problem := self.ranks.cannot_begin(error)) is not None:
                raise problem from error
            raise
        self.recipe.open()
        if self._stepper is not None:
            self._stepper.open()
            self.asked.sync.open()
        self._is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None and self.ranks is not None:
            try:
                self.ranks.come_to("the end of its session", is_last=True)
            except BaseException as late:
                self.__exit__(type(late), late, late.__traceback__)
                raise
        self._is_open = False
        self.shield.hold()  # a second signal must not cost the checkpoint
        if self.ranks is not None:
            self.ranks.channel.leave()
        if error is not None:
            safety, stopped = isinstance(error, SafetyStop), isinstance(error, KeyboardInterrupt)
            self.ended = "stopped for safety" if safety else "interrupted" if stopped else "failed"
            self.reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        not_restored: WattuneError | None = None
        try:
            self.run.__exit__(kind, error, trace)  # the board first: the rest may fail
        except WattuneError as late:
            not_restored = late
        finally:
            lost = None if self.ranks is None else self.ranks.channel.end(error)
            if not_restored is not None and lost is None:  # else it is told beside the loss
                _warn_at_end(not_restored)
            self.recipe.close()
            if self._stepper is not None:
                self._stepper.close()
                self.asked.sync.close()
            with self._claims:
                self._leave()
        if isinstance(error, Ended):
            error.pass_on()
        if lost is not None:
            raise lost from (error if not_restored is None else not_restored)
        if error is not None and self.loop is not None and self.loop.pending is not None:
            _explain_shortage(error, self.loop.pending.samples)

    def _give_up_raising(self, reason: str) -> None:
        text = f"batch sizes above {self.recipe.batch_size} are left out: their learning rate is higher; {reason}"
        self.run.note(text)
        logger.warning("%s", text)
        self.sample_model.leave_out_above(self.recipe.batch_size)
        self.run.relative(self.sample_model.relative)
        self.run.controller.choose()

    def _claim_checkpoint(self, path: Path, claims: ExitStack) -> None:
        if self.ranks is not None and not self.ranks.is_leader:
            return
        claims.callback(Held(path).release)
        if self._resumed is None and path.exists():
            warnings.warn(f"the checkpoint of an earlier session is kept in {set_aside(path)}", stacklevel=4)

    def _leave(self) -> None:
        if (path := self.asked.checkpoint) is not None:
            try:
                save_session(self, path)
            except WattuneError as error:  # training is over, and what follows the session is to run
                _warn_at_end(error)
        if self.ranks is None or self.ranks.is_leader:
            self._feed.end()
        self.record = self._new_record()
        if self.record is not None and self.asked.record is not None:
            try:
                self.record.save(self.asked.record)
            except OutputError as error:
                _warn_at_end(error, "the session's record is not saved, but in `session.record`: ")
        if self.record is not None and self.record.cap_w is not None and self.ended == "finished":
            above, readings = self.record.readings_above_cap or 0, self.record.readings or 0
            if 2 * above > readings:
                said = f"{above} of {readings} readings exceeded the cap of {self.record.cap_w:.4g} W"
                warnings.warn(f"{said}; raise it, or train smaller batches", stacklevel=4)
            try:
                check_scale(self.asked.cap, self.record.power_peak_w)
            except InputError as error:  # only now is it known what a real board draws
                warnings.warn(str(error), stacklevel=4)

    def _new_record(self) -> SessionRecord | None:
        with suppress(SensorError):  # a session without any reading has no record
            return session_record(self)
        return None

    @property
    def is_over(self) -> bool:
        """True after the session's end."""
        return self.run.steps > 0 and not self._is_open

    # ------------------------------------------------------------------------------------------------------- the loop

    def batches(self) -> Batches:
        """One pass over the data set in micro-batches, with each sample once; its last step may be smaller.

        Raises, with the first batch: InputError for batches that cannot be trained on as the loop would; SafetyStop,
        DeviceError.
        """
        return Batches(self._pass(), self._batches_left)

    def _batches_left(self) -> int:
        progress = self.progress
        if progress.total is None:
            raise TypeError("the loader's number of samples is not known")
        row = self.run.row if self._is_open else BatchShape(self.recipe.batch_size, self.recipe.batch_size)
        steps, rest = divmod(progress.total - progress.samples, row.batch)
        return steps * len(self.run.parts(row.batch, row.micro)) + (len(self.run.parts(rest, row.micro)) if rest else 0)

    @property
    def progress(self) -> Progress:
        """Samples of the present pass that this rank has trained on, and those of a whole pass: for a progress bar."""
        done = 0 if self.loop is None or self._is_broken else self.loop.position
        return Progress(done, None if self.batch_source is None else self.batch_source.trained_per_pass)

    def _pass(self) -> Iterator[Batch]:
        self._check_open()
        self._end_broken_pass()
        if self.batch_source is None or self.loop is None:
            raise InputError("the session has no loader", hint="use begin_step and end_step")
        if self._in_pass:
            raise InputError("a pass is under way", hint="end it before the next session.batches()")
        if self.ranks is not None:
            self.ranks.come_to(f"the begin of pass {self._passes + 1}")
        self._in_pass = True
        try:
            self.recipe.begin_pass()
            resumed, self._resumed = self._resumed, None
            if resumed is not None:
                resumed.start(self)
            else:
                self.loop.position = 0
                self.loop.remember()
                self.batch_source.start()
            yield from self.loop.batches()
            self._end_pass()
        except GeneratorExit:  # the loop broke out of the pass, or ended by an error
            self._is_broken = True
            raise
        finally:
            self._in_pass = False

    @property
    def passes(self) -> int:
        """Number of passes over the data set, each complete or ended by a ``break`` of the loop."""
        if self._is_open and sys.exc_info()[0] is None:  # an error may have ended it, after which it is resumed
            self._end_broken_pass()
        return self._passes

    @passes.setter
    def passes(self, value: int) -> None:
        self._passes = value

    def _end_broken_pass(self) -> None:
        if self._is_broken:
            self._is_broken = False
            self.recipe.stepped(0 if self.loop is None else self.loop.position, is_end=True)
            self._end_pass()

    def _end_pass(self) -> None:
        assert self.loop is not None
        assert self.batch_source is not None
        self._passes, self.loop.position = self._passes + 1, 0
        self.batch_source.end_pass()
        if self.asked.checkpoint is not None:
            self.loop.remember()
            try:
                with self._busy():
                    save_session(self, self.asked.checkpoint)
            except OutputError as error:
                warnings.warn(f"the checkpoint is not saved, and training continues without: {error}", stacklevel=2)

    def backward(self, loss: Tensor) -> None:
        """Backpropagate the mean loss of the present batch; after the last one of a step, the optimizer steps.

        Raises: SafetyStop, InputError, DeviceError.
        """
        self._check_open()
        if self.loop is None:
            raise InputError("the session has no loader", hint="use begin_step and end_step")
        self.loop.backward(loss)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Context of an evaluation, which stays below the cap. Raises: SafetyStop, DeviceError."""
        self._check_open()
        with self._busy(), self.run.evaluation():
            yield

    # --------------------------------------------------------------------------------------- loops that step themselves

    @property
    def row(self) -> BatchShape:
        """Batch size of the next optimizer step, and micro-batch size of its forward passes.

        In a job of several ranks it is the same on all of them, and stays until the step has ended; it may wait for
        rank 0. Raises: SafetyStop, RankLost, DeviceError, all of them in such a job alone.
        """
        if self.ranks is None or self.loop is not None or not self._is_open:
            return self.run.row
        if self._agreed is None:
            self._agreed = self.run.next_step().wanted
        return self._agreed

    def begin_step(
        self, samples: int | None = None, row: BatchShape | None = None, *, key: Hashable = None, data: Any = None
    ) -> None:
        """Begin an optimizer step, before its first forward pass; see ``SessionRun.begin``.

        ``row``: the row of the step, if not ``self.row`` (for batches that were fetched before it changed).
        """
        self._check_open()
        row = self.row if row is None else row
        self.run.begin(row, row.batch if samples is None else samples, key, data)

    def end_step(self, *, stepped: bool = True) -> None:
        """End the step; ``stepped`` is False if gradient scaling skipped it. Raises: SafetyStop, DeviceError."""
        self._agreed = None
        self.run.end(stepped=stepped)

    def drop_step(self) -> None:
        """Drop the step under way, which will not be completed."""
        self._agreed = None
        self.run.drop()

    # ---------------------------------------------------------------------------------------------------------- state

    @property
    def point(self) -> OperatingPoint:
        """The operating point of training at present."""
        return OperatingPoint(self.run.controller.current.shape, self.run.capped.limiter.knobs)

    @property
    def samples(self) -> int:
        """Number of samples that were trained on, by all ranks."""
        return self.run.samples * self.size

    @property
    def size(self) -> int:
        """Number of ranks: 1 without other processes."""
        return 1 if self.ranks is None else self.ranks.size

    def on_ranks(self, batch_size: int) -> str:
        """The ranks and the global batch size, in words that follow a batch size; empty without other processes."""
        return "" if self.size == 1 else f" on each of {self.size} ranks (global batch size {self.size * batch_size})"

    def explain(self) -> str:
        """Explain the choice of the point."""
        return explanation(self)

    def _busy(self) -> AbstractContextManager[None]:
        """Context in which no other rank counts how long this one takes."""
        return nullcontext() if self.ranks is None else self.ranks.channel.busy()

    def _check_open(self) -> None:
        if not self._is_open:
            raise InputError("the session is not open", hint="with wattune.capped(...) as session:")


@contextmanager
def _claimed(device: Device) -> Iterator[None]:
    """Context in which no other session of this process may use a device."""
    if any(device is one for one in _in_use):
        raise InputError("another session holds this device", value=device.name, hint="end that session first")
    _in_use.append(device)
    try:
        yield
    finally:
        _in_use[:] = [one for one in _in_use if one is not device]


def _warn_at_end(error: WattuneError, what: str = "the session has ended, but ") -> None:
    """Warn of an error after training: raised, it would keep the user's program from what it does with the model."""
    warnings.warn(f"{what}{error}", stacklevel=4)


def _explain_shortage(error: BaseException, samples: int) -> None:
    """Explain an error of the user's own code that is a shortage of memory. Raises: OutOfDeviceMemory."""
    try:
        with memory_errors(f"a pass of {samples} samples"):
            raise MemoryError if isinstance(error, MemoryError) else RuntimeError(str(error))
    except OutOfDeviceMemory as short:
        hint = "give wattune.capped(micro_batch_size=...) a size that fits; the batch size stays the same"
        raise OutOfDeviceMemory(f"{short}; {hint}") from error
    except RuntimeError:
        return  # the context raises the user's own error
