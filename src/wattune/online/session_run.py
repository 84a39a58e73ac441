"""The run of a session on a board: steps of the user's own loop inside one capped run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import Self

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import InputError, OutOfDeviceMemory
from wattune.online.explorer import Explorer
from wattune.online.fit_check import FitCheck
from wattune.online.measurement_window import SensorReadings
from wattune.online.micro_batching import can_split
from wattune.online.step_counter import StepWorkCounter
from wattune.online.step_timing import StepTimes, Sync
from wattune.point import BatchShape, OperatingPoint
from wattune.power.capped_run import CappedRun
from wattune.power.monitor import LOOK_EVERY_S
from wattune.records import PointRecord
from wattune.search.search import Search

CHECK_EVERY_S = 0.1
"""Shortest time between two checks, at the begin of steps, that the run is below its limit and the sensor responds."""


class SessionRun:
    """A context in which ``begin`` and ``end`` bracket the steps of a loop, at the points that a search chooses.

    The device is at its safest setting when the context begins, and afterwards as it was before. ``search`` makes the
    search that chooses the points, without the rows that it is given; ``start`` is the user's own row.

    Raises: InputError for a temperature limit that the device cannot be held below, and for several knobs.
    """

    explorer: Explorer

    def __init__(
        self,
        device: Device,
        model: nn.Module,
        optimizer: Optimizer | None,
        search: Callable[[set[BatchShape]], Search],
        start: BatchShape,
        limit: SensorLimit,
    ):
        device.only_knob("a session", hint="profile with --strategy full and train at the plan")
        self.device, self.model, self.limit = device, model, limit
        self.samples = self.steps = 0
        self.changes: list[dict[str, Any]] = []
        """Points of training in their order, as JSON values of ``PointChange``."""
        self.notes: dict[str, None] = {}
        """Notes for the user, each of them once."""
        self.checked = False
        """True once ``check_parts`` has seen a batch."""
        self.can_split = True
        self.on_row: Callable[[BatchShape], None] = lambda row: None
        """Called with the row of the next steps whenever the row or the setting has changed."""
        self.times = StepTimes()
        self.counter = StepWorkCounter(model, optimizer, counts=not device.executes_steps)
        self.fit_check = FitCheck(device, model, start.micro, optimizer)
        self.on_cuda = next(model.parameters()).device.type == "cuda"
        self._readings = SensorReadings()
        self.capped = CappedRun(device, limit, device.safest, on_reading=self._readings.add)
        self._search, self._start = search, start
        self._stack = ExitStack()
        self._step: Any = None
        self._has_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        self._sync = Sync() if self.on_cuda else None
        self._kind: Any = None
        self._idle_since_s: float | None = None
        self._look_s = self._check_s = 0.0
        self._state: dict[str, Any] | None = None

    # -------------------------------------------------------------------------------------------------------- context

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for observer in (self.counter, self.fit_check):
                stack.callback(observer.close)
                observer.open()
            capped, state = stack.enter_context(self.capped), self._state
            self.explorer = Explorer(
                self.device,
                capped.limiter,
                self._readings,
                self._search,
                self._start,
                fits=self.fits,
                changed=self._changed,
            )
            if state is not None:
                self.samples, self.steps = state["samples"], state["steps"]
                self.changes, self.notes = list(state["changes"]), dict.fromkeys(state["notes"])
                self.times.load_state_dict(state["times"])
                self.explorer.load_state_dict(state["explorer"])
            capped.start(state, keep_setting=True)
            self.explorer.choose()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.drop()
        self._stack.__exit__(kind, error, trace)

    # ---------------------------------------------------------------------------------------------------------- steps

    @property
    def row(self) -> BatchShape:
        """The row that the next step should have."""
        return self.explorer.wanted.shape

    def begin(self, row: BatchShape, samples: int, key: Hashable = None, data: Any = None) -> None:
        """Begin a step of ``samples`` samples in micro-batches of ``row``, before its first forward pass.

        ``key``: steps with equal keys, rows and samples do the same operations. ``data``: the inputs in the device's
        memory. Raises: SafetyStop, DeviceError.
        """
        now_s = self.device.now_s()
        if now_s >= self._check_s:
            self._check_s = now_s + CHECK_EVERY_S
            self.capped.check()
        self.explorer.begin(row, 0.0 if self._idle_since_s is None else now_s - self._idle_since_s)
        kind = row, samples, len(self.changes)
        if kind != self._kind or self.explorer.probing:
            self._use(*kind)
        self._row, self._samples, self._is_whole = row, samples, True
        if self.counter.counts:
            self.counter.begin((row, samples, key), data)
        if self.device.executes_steps:
            self._step = self.device.step(self._work)
            self._step.__enter__()
        self._begun_s, self._copied_s = self.device.now_s(), self.times.copying_s

    def end(self, *, stepped: bool = True, usual: bool = True) -> None:
        """End the step; ``stepped``: the optimizer changed the parameters; ``usual``: its time is representative.

        Raises: SafetyStop, OutOfDeviceMemory, DeviceError.
        """
        device, row, samples = self.device, self._row, self._samples
        is_timed = self._sync is None or self._sync.end(always=self.explorer.probing)
        if device.executes_steps:
            step, self._step = self._step, None
            step.__exit__(None, None, None)
        else:
            work = self.counter.end(samples, min(samples, row.micro), keep=stepped)
            try:
                with device.step(work):
                    pass
            except OutOfDeviceMemory as error:  # the step ran on this computer all the same, and its samples count
                if row == self._start:
                    raise
                self.fit_check.too_large[row] = str(error)
                self.explorer.leave_out(row)
        self._idle_since_s = now_s = device.now_s()
        seconds = now_s - self._begun_s - (self.times.copying_s - self._copied_s)
        self.samples += samples
        self.steps += 1
        self.times.step(max(0.0, seconds), ordinary=not self.explorer.probing)
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_EVERY_S
            self.capped.monitor.look(self.capped.meter.elapsed_s)
        counts = stepped and usual and is_timed and self._is_whole and samples == row.batch
        self.explorer.end(row, seconds if counts else None, now_s)
        if self.counter.counts:  # on real time the next step begins at once, and with the same check
            self.capped.check()

    def drop(self) -> None:
        """Drop the step under way, if there is one: its samples do not count."""
        self.counter.drop()
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Context of an evaluation, also in the middle of a step: it stays below the cap.

        A simulated board takes the time of the operations inside. A replayed profile has training steps only, so that
        an evaluation takes no time there. Raises: SafetyStop, DeviceError.
        """
        self.capped.check()
        self._is_whole = False  # the step under way, if there is one
        self.explorer.begin_evaluation()
        self.capped.limiter.begin_evaluation()
        try:
            with self.counter.aside():
                self.counter.begin("evaluation")
                yield
                work = self.counter.end(1, 1, keep=False) if self.counter.counts else None
            if work is not None and work.flops and self.device.kind != "replayed":
                with self.device.step(work):
                    pass
            elif self.on_cuda:
                torch.cuda.synchronize()
        finally:
            self.capped.limiter.end_evaluation()
        self.capped.check()
        if self.explorer.mixes_evaluations:
            self.note(
                "evaluations come more often than the power sensor needs to show training alone "
                f"({self.device.sensor.settle_s:.2g} s): points are measured with the evaluations in between"
            )

    # ------------------------------------------------------------------------------------------------- what is possible

    @property
    def may_halve(self) -> bool:
        """True if a batch may run in two halves to compare their gradients: BatchNorm would change its statistics."""
        return self.can_split and not self._has_norm

    def check_parts(self, data: Any, samples: int, row: BatchShape) -> None:
        """Check that a batch can be split as this row needs it. Raises: InputError if it has to be, but cannot."""
        kind = type(data).__name__
        if not self.checked:
            self.checked = True
            self.can_split = can_split(data, samples)
            if not self.can_split:
                self.note(f"batches of type {kind} cannot be split, so they are trained on whole")
        if not self.can_split and samples > row.micro:
            raise InputError(
                "batches of this type cannot be split into micro-batches",
                value=kind,
                hint="let collate_fn return tensors or lists with one entry per sample, in tuples or dictionaries",
            )

    def fits(self, row: BatchShape) -> bool:
        """Check whether steps of this row can be trained, by a trial at the safest setting if that is not known.

        Raises: DeviceError.
        """
        if not self.can_split and row.micro < row.batch:
            return False
        if self.limit.limit_w is not None and not self.fit_check.is_known(row):
            self.explorer.to_safest()
        fits = self.fit_check.fits(row, self.counter)
        for size, reason in self.fit_check.failures.items():
            self.note(f"micro-batches of {size} are left out: {reason}")
        for (batch, micro), reason in self.fit_check.too_large.items():
            self.note(f"batch size {batch} in micro-batches of {micro} is left out: {reason}")
        return fits

    def relative(self, known: dict[int, tuple[float, float]]) -> None:
        """Set the relative samples (see ``SampleModel.relative``), which may make another probe worth its time."""
        self.explorer.search.relative(known)
        self.explorer.choose_again()

    def note(self, text: str) -> None:
        """Add a note for the user."""
        self.notes[text] = None

    def _use(self, row: BatchShape, samples: int, changes: int) -> None:
        """Prepare for steps of a new kind; steps of the same kind skip this unless a point is being probed."""
        self._kind = row, samples, changes
        self.on_row(row)
        self.fit_check.known.add(row.micro)
        self._work = self.counter.placeholder(samples, row.micro)

    def _changed(self, point: OperatingPoint, reason: str) -> None:
        place = PointRecord.model_validate(point).model_dump()
        time_s = max(0.0, self.capped.meter.elapsed_s)
        self.changes.append({"samples": self.samples, "time_s": time_s, "point": place, "why": reason})

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return {
            **self.capped.state_dict(),
            "name": self.device.name,
            "samples": self.samples,
            "steps": self.steps,
            "changes": self.changes,
            "notes": list(self.notes),
            "explorer": self.explorer.state_dict(),
            "times": self.times.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict`` when the context is entered."""
        self._state = state


def run_state(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The state of a ``SessionRun`` in a checkpoint, also of the form written before 0.1.0. Raises: KeyError."""
    if "run" in checkpoint:
        state: dict[str, Any] = checkpoint["run"]
        return state
    state = checkpoint["governor"]
    return {**state, "guard": state["keeper"], "explorer": state["prober"]}
