"""The board under a training of somebody else's making: metered and guarded, step by step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from wattune.devices import Device, Meter
from wattune.errors import DeviceError, InputError, OutOfDeviceMemory, SafetyStop
from wattune.online.diary import Diary
from wattune.online.evaluation import evaluation
from wattune.online.explorer import Explorer
from wattune.online.fit_check import FitCheck
from wattune.online.keeper import Keeper
from wattune.online.micro_batching import can_split
from wattune.online.step_counter import StepWorkCounter
from wattune.online.step_timing import Sync, Times
from wattune.power.limiter import check_limit
from wattune.power.monitor import LOOK_EVERY_S, BoardMonitor
from wattune.search.search import Point, Row, Search

PARTS = "keeper", "prober", "meter", "watch", "times"
"""What of a governor has a state of its own."""

ASK_EVERY_S = 0.1
"""Steps ask no more often whether the limits can be kept and the sensor still reads."""


class Governor(Diary):
    """A context in which a device is kept below its cap while ``begin`` and ``end`` bracket the steps of a training.

    The device is at its lowest setting when the context begins, and afterwards as it was found. ``search`` makes the
    search that decides at which points training goes on, without the rows it is given. Whose loop the steps are in
    makes no difference.
    """

    def __init__(
        self,
        device: Device,
        model: nn.Module,
        optimizer: Optimizer | None,
        search: Callable[[set[Row]], Search],
        start: Row,
        *,
        cap_w: float | None,
        max_temp_c: float | None = None,
    ):
        super().__init__()
        check_limit(device, max_temp_c)
        self.device = device
        self.cap_w, self.max_temp_c = cap_w, max_temp_c
        self.samples = 0
        self.steps = 0
        self.checked = False
        """Whether a batch was looked at by ``check_parts``."""
        self.can_split = True
        self.on_row: Callable[[Row], None] = lambda row: None
        """Called with what the steps are made of from now on, also where only the setting has changed."""
        self.times = Times()
        self.model = model
        self.book = StepWorkCounter(model, optimizer, counts=not device.executes_steps)
        self.trial = FitCheck(device, model, start.micro_batch_size, optimizer)
        self.watch = BoardMonitor(device)
        self.on_cuda = next(model.parameters()).device.type == "cuda"
        self._search, self._start = search, start
        self._stack = ExitStack()
        self._step: Any = None
        self._has_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        self._sync = Sync() if self.on_cuda else None
        self._kind: Any = None
        self._idle_since_s: float | None = None
        self._look_s = 0.0
        self._ask_s = 0.0
        self._kept: dict[str, Any] | None = None

    # -------------------------------------------------------------------------------------------------------- context

    def __enter__(self) -> Governor:
        device, stack = self.device, self._stack
        lowest = device.settings[0] if device.settings else None
        try:
            for seeing in (self.book, self.trial):
                stack.callback(seeing.close)
                seeing.open()
            setting = stack.enter_context(device.at(lowest))
            if self.cap_w is not None or self.max_temp_c is not None:
                device.arm_guard(self.cap_w, self.max_temp_c)
            kept = self._kept
            if kept is None or kept["device"] is None:
                # What the sensor still holds of the time before is no part of this training.
                device.wait(device.sensor.settle_s)
            else:
                device.load_state_dict(kept["device"])
                if lowest is not None:
                    setting.change(lowest)
            self.keeper = Keeper(device, setting, self.cap_w, self.max_temp_c)
            self.prober = Explorer(
                device, self.keeper, self._search, self._start, fits=self.fits, changed=self._changed
            )
            self.meter = Meter(device, cap_w=self.cap_w, on_reading=self.keeper, on_lost=self._lost)
            self.truth = device.ground_truth(self.cap_w)
            if kept is not None:
                self._resume(kept)
            stack.enter_context(self.meter)
            self.prober.choose()
        except BaseException:
            stack.close()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.drop()
        self._stack.__exit__(kind, error, trace)

    def check(self) -> None:
        """Raises: SafetyStop where the limits cannot be kept or nobody sees the power; DeviceError."""
        if self.keeper.failure is not None:
            raise self.keeper.failure
        if (lost := self.meter.lost) is not None:
            raise SafetyStop(f"the power sensor gave no reading any more, so training would have gone on blind: {lost}")
        if (reason := self.keeper.stopped) is not None:
            raise SafetyStop(reason)

    # ---------------------------------------------------------------------------------------------------------- steps

    @property
    def row(self) -> Row:
        """What the next step should be made of."""
        return self.prober.wanted.row

    def begin(self, row: Row, samples: int, key: Hashable = None, data: Any = None) -> None:
        """A step begins, before its first forward pass: made like ``row``, of so many samples.

        ``key``: steps with equal keys, rows and samples do the same operations. ``data``: what lies in the device's
        memory as inputs. Raises: SafetyStop, DeviceError.
        """
        now_s = self.device.now_s()
        if now_s >= self._ask_s:
            self._ask_s = now_s + ASK_EVERY_S
            self.check()
        self.prober.begin(row, 0.0 if self._idle_since_s is None else now_s - self._idle_since_s)
        kind = row, samples, len(self.changes)
        if kind != self._kind or self.prober.probing:
            self._use(*kind)
        self._row, self._samples, self._is_whole = row, samples, True
        if self.book.counts:
            self.book.begin((row, samples, key), data)
        if self.device.executes_steps:
            self._step = self.device.step(self._plain)
            self._step.__enter__()
        self._begun_s, self._copied_s = self.device.now_s(), self.times.copying_s

    def end(self, *, stepped: bool = True, usual: bool = True) -> None:
        """The step is over; ``stepped``: the optimizer changed the parameters; ``usual``: its time is that of others.

        Raises: SafetyStop, OutOfDeviceMemory, DeviceError.
        """
        device, row, samples = self.device, self._row, self._samples
        measured = self._sync is None or self._sync.end(always=self.prober.probing)
        if device.executes_steps:
            step, self._step = self._step, None
            step.__exit__(None, None, None)
        else:
            work = self.book.end(samples, min(samples, row.micro_batch_size), keep=stepped)
            try:
                with device.step(work):
                    pass
            except OutOfDeviceMemory as error:  # the step was run here all the same, and its samples count
                if row == self._start:
                    raise
                self.trial.too_large[row] = str(error)
                self.prober.leave_out(row)
        self._idle_since_s = now_s = device.now_s()
        seconds = now_s - self._begun_s - (self.times.copying_s - self._copied_s)
        self.samples += samples
        self.steps += 1
        self.times.step(max(0.0, seconds), ordinary=not self.prober.probing)
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_EVERY_S
            self.watch.look(self.meter.elapsed_s)
        counts = stepped and usual and measured and self._is_whole and samples == row.batch_size
        self.prober.stepped(row, seconds if counts else None, now_s)
        if self.book.counts:  # on real time the next step begins at once, and with the same question
            self.check()

    def drop(self) -> None:
        """Give up the step under way, if there is one: its samples do not count."""
        self.book.drop()
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Around an evaluation: it stays below the cap, and takes its time on a simulated board. Raises: SafetyStop."""
        self.check()
        self._is_whole = False  # the step under way, if there is one
        with evaluation(self.device, self.keeper, self.book, on_cuda=self.on_cuda):
            yield
        self.check()
        if self.prober.mixes_evaluations:
            self.note(
                "evaluations come more often than the power sensor needs to show training alone "
                f"({self.device.sensor.settle_s:.2g} s): points are measured with the evaluations in between"
            )

    # ------------------------------------------------------------------------------------------------ what can be done

    @property
    def may_halve(self) -> bool:
        """Whether a batch may be run in two halves to see how their gradients differ: BatchNorm would notice."""
        return self.can_split and not self._has_norm

    def check_parts(self, data: Any, samples: int, row: Row) -> None:
        """See whether batches can be cut as this row wants it. Raises: InputError where one has to be, and cannot."""
        kind = type(data).__name__
        if not self.checked:
            self.checked = True
            self.can_split = can_split(data, samples)
            if not self.can_split:
                self.note(f"batches of {kind} cannot be cut into micro-batches, so they are not")
        if not self.can_split and samples > row.micro_batch_size:
            raise InputError(
                "batches of this make cannot be cut into micro-batches",
                value=kind,
                hint="let collate_fn give tensors or lists with an entry for each sample, in tuples or dictionaries",
            )

    def relative(self, known: dict[int, tuple[float, float]]) -> None:
        """What is known of the batch sizes now (see ``Knowledge.relative``): another probe may pay."""
        self.prober.search.relative(known)
        self.prober.again()

    def fits(self, row: Row) -> bool:
        """Whether steps of this row can be trained, tried at the lowest setting where that is not known.

        Raises: DeviceError.
        """
        if not self.can_split and row.micro_batch_size < row.batch_size:
            return False
        if self.cap_w is not None and not self.trial.is_known(row) and self.keeper.value != self.keeper.lowest:
            self.keeper.move(self.keeper.lowest)
        fits = self.trial.fits(row, self.book)
        for size, why in self.trial.failures.items():
            self.note(f"micro-batches of {size} are left out: {why}")
        for (batch, micro), why in self.trial.too_large.items():
            self.note(f"batch size {batch} in micro-batches of {micro} is left out: {why}")
        return fits

    # --------------------------------------------------------------------------------------------------------- private

    def _use(self, row: Row, samples: int, changes: int) -> None:
        """What is the same for all steps of a kind, and therefore not done with each of them once nothing is probed."""
        self._kind = row, samples, changes
        self.on_row(row)
        self.trial.known.add(row.micro_batch_size)
        self._plain = self.book.plain(samples, row.micro_batch_size)

    def _changed(self, point: Point, why: str) -> None:
        self.change(self.samples, self.meter.elapsed_s, self.prober.place(point), why)

    def _lost(self, error: DeviceError) -> None:
        # At once, from wherever the sensor was given up: a step under way may take long.
        text = f"no reading of {self.device.sensor.rail}: {error}{self.keeper.lose()}"
        self.watch.note(self.meter.elapsed_s, "sensor lost", text)

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """What a later governor needs to go on from here, as JSON values."""
        parts = {name: getattr(self, name).state_dict() for name in PARTS}
        return {
            "name": self.device.name,
            "samples": self.samples,
            "steps": self.steps,
            "changes": self.changes,
            "notes": list(self.notes),
            "device": self.device.state_dict(),
            "truth": None if self.truth is None else self.truth.state_dict(),
            **parts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict`` when the context is entered."""
        self._kept = state

    def _resume(self, kept: dict[str, Any]) -> None:
        self.samples, self.steps = kept["samples"], kept["steps"]
        self.changes, self.notes = list(kept["changes"]), dict.fromkeys(kept["notes"])
        for name in PARTS:
            getattr(self, name).load_state_dict(kept[name])
        if self.truth is not None and kept["truth"] is not None:
            self.truth.load_state_dict(kept["truth"])
