"""Power-capped training in the user's own loop."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import Self

from wattune.algorithms import shortage_said
from wattune.cap import PowerCap
from wattune.errors import InputError, OutOfDeviceMemory, SafetyStop, SensorError, WattuneError
from wattune.online.batch_source import BatchSource
from wattune.online.micro_batching import Batch
from wattune.online.optimizer_step import OptimizerStepper
from wattune.online.prefetch import Prefetcher
from wattune.online.recipe import Recipe
from wattune.online.sample_model import SampleModel
from wattune.online.session_checkpoint import SessionCheckpoint, keep
from wattune.online.session_record import explained, session_record
from wattune.online.session_run import SessionRun
from wattune.online.user_loop import UserLoop
from wattune.point import OperatingPoint
from wattune.records import SessionRecord
from wattune.records.session import SessionEnding
from wattune.search.search import Row


@dataclass
class SessionOptions:
    """Arguments of a session that go into its record and its files."""

    cap: PowerCap
    seed: int = 0
    checkpoint: Path | None = None
    record: Path | None = None
    closes: bool = False
    loader: Any = field(default=None, repr=False)


class Session:
    """A context in which the user's own loop trains below a cap; made by ``wattune.capped``.

    ``batches`` gives one pass over the loader's data set, and ``backward`` takes the place of ``loss.backward()``,
    ``optimizer.step()`` and ``optimizer.zero_grad()``. Loops that fetch and step themselves bracket each optimizer
    step with ``begin_step`` and ``end_step`` instead, and make it as ``row`` says.
    """

    def __init__(
        self,
        run: SessionRun,
        recipe: Recipe,
        sample_model: SampleModel,
        optimizer: Optimizer,
        batch_source: BatchSource | None,
        options: SessionOptions,
        *,
        scaler: torch.amp.GradScaler | None = None,
        before_step: Callable[[], None] | None = None,
        kept: SessionCheckpoint | None = None,
    ):
        self.run = run
        self.recipe = recipe
        self.sample_model = sample_model
        self.optimizer = optimizer
        self.scaler = scaler
        self.options = options
        self.batch_source = batch_source
        self.passes = 0
        """Passes over the data set that are complete."""
        self.record: SessionRecord | None = None
        """What this session was, once it is over."""
        self.ended: SessionEnding = "finished"
        self.reason: str | None = None
        self.loop: UserLoop | None = None
        self._stepper: OptimizerStepper | None = None
        if batch_source is not None:
            self._stepper = OptimizerStepper(
                optimizer, recipe, sample_model, run.counter, scaler=scaler, before_step=before_step
            )
            self.loop = UserLoop(run, Prefetcher(batch_source, run), self._stepper, recipe, sample_model)
            self.loop.remembers = options.checkpoint is not None
        self._is_open = self._in_pass = False
        self._kept = kept

    # -------------------------------------------------------------------------------------------------------- context

    def __enter__(self) -> Self:
        self.run.on_row = lambda row: self.recipe.use(row.batch_size)
        try:
            if self._kept is not None:
                self._kept.load(self)
            self.run.__enter__()
        except BaseException:
            self._close_device()
            raise
        self.recipe.open()
        if self._stepper is not None and self.loop is not None:
            self._stepper.open()
            self.loop.shield.__enter__()
        self._is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._is_open = False
        if error is not None:
            safety, stopped = isinstance(error, SafetyStop), isinstance(error, KeyboardInterrupt)
            self.ended = "stopped for safety" if safety else "interrupted" if stopped else "failed"
            self.reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        try:
            self.run.__exit__(kind, error, trace)  # the board first: what follows may fail
        finally:
            self.recipe.close()
            if self._stepper is not None and self.loop is not None:
                self._stepper.close()
                self.loop.shield.__exit__()
            try:
                self._leave()
            except WattuneError:
                if error is None:
                    raise  # else what went wrong first is what the user has to know
            finally:
                self._close_device()
        if error is not None and self.loop is not None and self.loop.pending is not None:
            _say_shortage(error, self.loop.pending.samples)

    def _close_device(self) -> None:
        if self.options.closes:
            self.run.device.close()

    def _leave(self) -> None:
        if self.options.checkpoint is not None:
            keep(self, self.options.checkpoint)
        with suppress(SensorError):  # a session without a single reading has no record
            self.record = session_record(self)
        if self.record is not None and self.options.record is not None:
            self.record.save(self.options.record)

    # ------------------------------------------------------------------------------------------------------- the loop

    def batches(self) -> Iterator[Batch]:
        """One pass over the data set: micro-batches, each sample once; the last step of a pass may be smaller.

        Raises: SafetyStop; InputError for what cannot be trained as the loop would; DeviceError.
        """
        self._check_open()
        if self.batch_source is None or self.loop is None:
            raise InputError("the session was made without a loader", hint="use begin_step and end_step")
        if self._in_pass:
            raise InputError("a pass is under way already", hint="one session.batches() after the other")
        self._in_pass = True
        try:
            self.recipe.begin_pass()
            kept, self._kept = self._kept, None
            if kept is not None:
                kept.start(self)
            else:
                self.loop.position = 0
                self.loop.remember()
                self.batch_source.start()
            yield from self.loop.batches()
            self.passes, self.loop.position = self.passes + 1, 0
            if self.options.checkpoint is not None:
                self.loop.remember()
                keep(self, self.options.checkpoint)
        finally:
            self._in_pass = False

    def backward(self, loss: Tensor) -> None:
        """Backpropagate the mean loss of the present batch; with the last one of a step, the optimizer steps.

        Raises: SafetyStop, InputError, DeviceError.
        """
        self._check_open()
        if self.loop is None:
            raise InputError("the session was made without a loader", hint="use begin_step and end_step")
        self.loop.backward(loss)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Around an evaluation: it stays below the cap, and takes its time on a simulated board. Raises: SafetyStop."""
        self._check_open()
        with self.run.evaluation():
            yield

    # ------------------------------------------------------------------------------------------------ somebody's loop

    @property
    def row(self) -> Row:
        """What the next step should be made of: samples of the step, and of one forward pass."""
        return self.run.row

    def begin_step(
        self, samples: int | None = None, row: Row | None = None, *, key: Hashable = None, data: Any = None
    ) -> None:
        """An optimizer step begins, before its first forward pass; see ``SessionRun.begin``.

        ``row`` is what the step is made of where that is not ``self.row`` (batches fetched before it changed).
        """
        self._check_open()
        row = self.run.row if row is None else row
        self.run.begin(row, row.batch_size if samples is None else samples, key, data)

    def end_step(self, *, stepped: bool = True) -> None:
        """The optimizer stepped; False where it skipped, as gradient scaling does. Raises: SafetyStop, DeviceError."""
        self.run.end(stepped=stepped)

    def drop_step(self) -> None:
        """The step under way will not be finished."""
        self.run.drop()

    # ---------------------------------------------------------------------------------------------------------- state

    @property
    def point(self) -> OperatingPoint:
        """What training runs at now."""
        explorer = self.run.explorer
        return explorer.place(explorer.current._replace(knobs=self.run.capped.limiter.knobs))

    @property
    def samples(self) -> int:
        """How many were trained on."""
        return self.run.samples

    def explain(self) -> str:
        """What was chosen, from what, and what knowing more would be worth."""
        return explained(self)

    def _check_open(self) -> None:
        if not self._is_open:
            raise InputError("the session is not open", hint="with wattune.capped(...) as session:")


def _say_shortage(error: BaseException, samples: int) -> None:
    """Raises: OutOfDeviceMemory where that is what the user's own code failed of."""
    try:
        with shortage_said(f"a pass of {samples} samples"):
            raise MemoryError if isinstance(error, MemoryError) else RuntimeError(str(error))
    except OutOfDeviceMemory as short:
        hint = "give wattune.capped(micro_batch_size=...) a size that fits; the batch size stays the same"
        raise OutOfDeviceMemory(f"{short}; {hint}") from error
    except RuntimeError:
        return  # the user's own error comes out of the context by itself
