"""The run of a session on a board: steps of the user's own loop inside one capped run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from typing_extensions import Self

from wattune.cap import SensorLimit
from wattune.cap_source import check_scale
from wattune.devices import Device
from wattune.errors import InputError, OutOfDeviceMemory, SafetyStop
from wattune.loop.batch_shapes import rows as rows_of
from wattune.loop.controller import AnySearch, StepController
from wattune.loop.division import Verdict
from wattune.loop.fit_check import FitCheck
from wattune.loop.loop_run import LoopRun, NextStep
from wattune.loop.ranks.agreement import Ranks
from wattune.loop.session_cap import planned_settings
from wattune.loop.setting_ladder import SettingLadder
from wattune.loop.step_counter import StepWorkCounter
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.power.cap_follower import CapFollower
from wattune.power.capped_run import CappedRun
from wattune.power.monitor import LOOK_EVERY_S
from wattune.records import PointRecord
from wattune.search.policy import SESSION, SESSION_BY_CURVE
from wattune.search.search import Search
from wattune.search.staged import StagedSearch

if TYPE_CHECKING:
    from wattune.loop.request import Request

CHECK_EVERY_S = 0.1
"""Shortest time between two checks, at the begin of steps, that the run is below its limit and the sensor responds."""


SYNCHRONISE_EVERY = 16
"""Number of steps from one synchronisation with a GPU to the next."""

KEEPS = "so batch size and micro-batch size stay yours, and clocks alone are chosen"


class Sync:
    """Synchronises with a GPU, which computes asynchronously, at one of ``SYNCHRONISE_EVERY`` steps, to time them."""

    def __init__(self) -> None:
        self._is_synchronised = True
        self._steps = 0

    def end(self, *, always: bool) -> bool:
        """End a step. Returns: True if both its ends were synchronised, so that its time is its own."""
        before, self._is_synchronised = self._is_synchronised, always or self._steps % SYNCHRONISE_EVERY < 2
        self._steps += 1
        if self._is_synchronised:
            torch.cuda.synchronize()
        return before and self._is_synchronised


class SessionRun(LoopRun):
    """A context in which ``begin`` and ``end`` bracket the steps of a loop, at the points that a search chooses.

    The device is at its safest setting when the context begins, and afterwards as it was before. ``ranks``: this rank
    chooses for others as well. Under a cap that changes, ``limit`` is that of the highest, a ``SettingLadder`` chooses
    the setting, and steps begin only while the cap lets them (``CappedRun.hold``).

    Raises: InputError for a cap or a profile that the device cannot be held below or has not.
    """

    controller: StepController

    def __init__(self, device: Device, asked: Request, ranks: Ranks | None = None):
        moving = asked.moving
        if moving is None:
            device.select([knob.name for knob in device.offered])
        else:
            device.only_knob("a session under a cap that changes", hint="give a constant cap")
        check_scale(moving or asked.cap, device.highest_w)
        self.limit = limit = asked.cap.at_sensor(device.supply, device.sensor.window_s)
        start, self._known = planned_settings(asked, device)
        if moving is not None and asked.resumed is not None:
            start = asked.resumed.shape or start  # chosen once
        super().__init__(asked, start)
        self.device, self._asked = device, asked
        self.changes: list[dict[str, Any]] = []
        """Points of training in their order, as JSON values of ``PointChange``."""
        self.counter = StepWorkCounter(self.model, asked.optimizer, counts=not device.executes_steps)
        self.fit_check = FitCheck(device, self.model, start.micro, asked.optimizer)
        # A model in shards cannot run on this rank alone, so that no trial says what fits.
        self.compares_gradients = not asked.sync.is_sharded
        self._ranks, self._step_s = ranks, 0.0
        self._yield_to = asked.given.yield_to
        self._keeps_shape = False
        first = limit if moving is None else replace(limit, limit_w=None)  # the follower finds its own
        self.capped = CappedRun(device, first, device.safest, on_reading=self._read)
        if moving is not None:
            self.capped.follow(
                CapFollower(
                    self.capped,
                    moving,
                    self._setting_under,
                    supply=device.supply,
                    averaging_s=device.sensor.window_s,
                    on_move=self._moved,
                    on_rest=(lambda: None) if ranks is None else ranks.channel.check,
                )
            )
        self._follows = moving is not None
        for text in () if moving is None else moving.assumed:
            self.note(text)
        self._was_moved = False  # by the cap since the last step began, so that the step does not count
        self._evaluates_under: SensorLimit | None = None
        self._evaluation_s = 0.0  # that the last one took
        self._stack = ExitStack()
        self._step: Any = None
        self._sync = Sync() if self.on_cuda else None
        self._kind: Any = None
        self._idle_since_s: float | None = None
        self._look_s = self._check_s = 0.0
        self._state: dict[str, Any] | None = None

    # -------------------------------------------------------------------------------------------------------- context

    def __enter__(self) -> Self:
        norm = next((m for m in self.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)), None)
        if self._asked.keep and norm is not None and not self.keeps_row:
            text = (
                f"the model has {type(norm).__name__}, whose statistics are those of a micro-batch: training in "
                "micro-batches differs slightly from the plain loop"
            )
            warnings.warn(text, stacklevel=3)
            self.note(text)
        with ExitStack() as stack:
            for observer in (self.counter, self.fit_check) if self.compares_gradients else (self.counter,):
                stack.callback(observer.close)
                observer.open()
            capped, state = stack.enter_context(self.capped), self._state
            self.controller = StepController(
                self.device,
                capped.limiter,
                self._new_search,
                self.start,
                fits=self.fits,
                changed=self._changed,
            )
            if state is not None:
                self.samples, self.steps = state["samples"], state["steps"]
                self.changes, self.notes = list(state["changes"]), dict.fromkeys(state["notes"])
                self.times.load_state_dict(state["times"])
                self.controller.load_state_dict(state["explorer"])
            capped.start(state, keep_setting=True)
            self.controller.choose()
            if self._ranks is not None:
                self._ranks.on_rebalance = self.controller.measure_again
                stack.callback(self._ranks.timer.close)
                self._ranks.timer.open()
            stack.enter_context(capped.following())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.drop()
        self._stack.__exit__(kind, error, trace)

    def _new_search(self, usable: Callable[[BatchShape], bool]) -> AnySearch:
        """Make the search, over all settings and the rows for which ``usable`` is true."""
        asked, device, limit = self._asked, self.device, self.limit
        if self._follows:
            return SettingLadder(self.start, device, self._known)

        def search_of(rows: Sequence[BatchShape], settings: Sequence[Knobs]) -> Search:
            search = Search(
                rows,
                settings,
                cap_w=limit.limit_w,
                start=asked.start if asked.start in rows else rows[0],
                margin_w=limit.margin_w,
                **device.sensor.searched,
                cap_window_s=limit.window_s,
                manner=SESSION if asked.curve is None else SESSION_BY_CURVE,
                goal=asked.goal,
            )
            search.relative(asked.sample_model.relative)
            return search

        rows = [] if self.keeps_row else [row for row in rows_of(asked.sizes, asked.start) if usable(row)]
        rows = rows or [asked.start]
        if len(device.knobs) > 1:
            return StagedSearch(search_of, rows, device.combinations(), asked.start if asked.start in rows else rows[0])
        return search_of(rows, device.combinations())

    # ---------------------------------------------------------------------------------------------------------- steps

    def next_step(self) -> NextStep:
        """The step that the controller wants next; with other ranks, the one that all of them take."""
        if self._ranks is None:
            return self._wanted()
        self._ranks.channel.reach(1)  # a pause may take longer than others would wait for a rank's own work
        if not self._follows:
            return self._ranks.next_step(self._wanted, self._step_s)
        try:
            self._hold_step()  # before the others begin: they wait for this agreement meanwhile
        except (SafetyStop, InputError) as stop:
            self._ranks.stop = stop
        return self._ranks.next_step(self._wanted, 0.0)  # for one step, since the next one may have to wait

    def _wanted(self) -> NextStep:
        controller = self.controller
        return NextStep(controller.wanted.shape, controller.current.shape, controller.probing, controller.is_measuring)

    @property
    def paused_s(self) -> float | None:
        """Seconds of pauses under a cap that changes, and for other work; None if there can be none."""
        return self.capped.paused_s if self._follows or self._yield_to is not None else None

    @property
    def row(self) -> BatchShape:
        """The row that the next step should have."""
        return self.controller.wanted.shape

    def begin(self, row: BatchShape, samples: int, key: Hashable = None, data: Any = None) -> None:
        """See ``LoopRun``."""
        if self._ranks is not None:
            self._ranks.channel.reach(2)
        if self._yield_to is not None:
            if self.on_cuda:
                torch.cuda.synchronize()  # passes are only queued until then
            self.capped.wait_while(self._yield_to)
        if self._ranks is None and self._follows:
            self._hold_step()
        now_s = self.device.now_s()
        if now_s >= self._check_s:
            self._check_s = now_s + CHECK_EVERY_S
            self.check()
        idle_s = 0.0 if self._idle_since_s is None else now_s - self._idle_since_s
        if self._follows:
            with self.capped.settled() as limit:
                self._choose_under(limit)
                self.controller.begin(row, idle_s)
        else:
            self.controller.begin(row, idle_s)
        kind = row, samples, len(self.changes)
        if kind != self._kind or self.controller.probing:
            self._use(*kind)
        self._row, self._samples, self._is_whole = row, samples, True
        if self.counter.counts:
            self.counter.begin((row, samples, key), data)
        if self.device.executes_steps:
            self._step = self.device.step(self._work)
            self._step.__enter__()
        self._begun_s, self._copied_s = self.device.now_s(), self.times.copying_s
        if self._ranks is not None:
            self._ranks.timer.begin()

    def end(self, *, stepped: bool = True, usual: bool = True) -> None:
        """See ``LoopRun``."""
        device, row, samples = self.device, self._row, self._samples
        if self._ranks is not None:
            self._ranks.end_step()
        is_timed = self._sync is None or self._sync.end(always=self.controller.probing)
        if device.executes_steps:
            step, self._step = self._step, None
            step.__exit__(None, None, None)
        else:
            work = self.counter.end(samples, min(samples, row.micro), keep=stepped)
            try:
                with device.step(work):
                    pass
            except OutOfDeviceMemory as error:  # the step ran on this computer all the same, and its samples count
                if row == self.start:
                    raise
                self.note(f"batch size {row.batch} in micro-batches of {row.micro} is left out: {error}")
                self.controller.leave_out(row)
        self._idle_since_s = now_s = device.now_s()
        seconds = now_s - self._begun_s - (self.times.copying_s - self._copied_s)
        self.samples += samples
        self.steps += 1
        self._step_s = seconds
        self.times.compute_s += max(0.0, seconds)
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_EVERY_S
            self.capped.monitor.look(self.capped.meter.elapsed_s)
            self.on_look()
        counts = stepped and usual and is_timed and self._is_whole and samples == row.batch
        if not self._was_moved:
            self.controller.end(row, seconds if counts else None, now_s)
        if self.counter.counts:  # on real time the next step begins at once, and with the same check
            self.check()
        if self._ranks is not None:
            self._ranks.channel.reach(0)

    # ------------------------------------------------------------------------------------------------ caps that change

    def _hold_step(self) -> None:
        ladder = self.controller.search
        known_s = ladder.step_s(self.controller.wanted.knobs) if isinstance(ladder, SettingLadder) else None
        self.capped.hold(max(self._step_s, known_s or 0.0), on_pause=self.on_pause)

    def _choose_under(self, limit: SensorLimit | None) -> None:
        """Choose the point again if the cap wants another setting."""
        ladder = self.controller.search
        if not isinstance(ladder, SettingLadder):
            return
        ladder.limit = limit
        if self._was_moved or ladder.setting(limit) != self.controller.wanted.knobs:
            self._was_moved = False
            self.controller.choose()

    def _setting_under(self, limit: SensorLimit) -> Knobs | None:
        """The setting that the cap may raise to, or has to lower to."""
        ladder = self.controller.search
        assert isinstance(ladder, SettingLadder)
        knobs = ladder.setting(limit)
        if knobs is not None and self._evaluates_under not in (None, limit):
            return self.device.safest  # the power of evaluations is not known
        return knobs

    def _moved(self, knobs: Knobs) -> None:
        self._was_moved = True

    def _read(self, time_s: float, power_w: float) -> None:
        self.controller.window.reading(self.device.now_s(), power_w)

    def check(self) -> None:
        """End the run if it cannot stay below its limit; with other ranks, at the next step on all of them.

        With other ranks, a cap below all that was ever measured is invalid input. Raises: SafetyStop in one process;
        DeviceError.
        """
        try:
            self.capped.check()
        except SafetyStop as stop:
            if self._ranks is None:
                raise
            lowest_w = None if self.controller.cells or self._state is not None else self.capped.limiter.lowest_w
            self._ranks.stop = stop  # raised on all ranks at the same step
            if lowest_w is not None:
                self._ranks.stop = InputError(
                    "the cap is below what training draws at the lowest settings",
                    value=f"{self.limit.limit_w:g} W",
                    allowed=f"above {lowest_w:.4g} W",
                )

    def drop(self) -> None:
        """See ``LoopRun``."""
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
        self.capped.hold(self._evaluation_s)
        with self.capped.settled() as limit:
            self._evaluates_under = limit
        begun_s = self.device.now_s()
        try:
            with self._evaluated():
                yield
        finally:
            self._evaluates_under, self._evaluation_s = None, self.device.now_s() - begun_s
        if self.controller.mixes_pauses:
            self.note(
                "evaluations come more often than the power sensor needs to show training alone "
                f"({self.device.sensor.settle_s:.2g} s): points are measured with the evaluations in between"
            )

    @contextmanager
    def _evaluated(self) -> Iterator[None]:
        self.check()
        self._is_whole = False  # the step under way, if there is one
        self.controller.begin_evaluation()
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
        self.check()

    # ------------------------------------------------------------------------------------------------- what is possible

    def fits(self, row: BatchShape) -> bool:
        """Check whether steps of this row can be trained, by a trial at the safest setting if that is not known.

        Raises: DeviceError.
        """
        if not self.can_split and row.micro < row.batch:
            return False
        # The user has named the batch sizes, so that they may be used whatever the loss.
        is_named = self._asked.given.batch_sizes is not None and row.micro == row.batch
        if self._keeps_shape and row != self.start and not is_named:
            return False
        if (self.limit.limit_w is not None or self._follows) and not self.fit_check.is_known(row):
            self.controller.to_safest()
        with nullcontext() if self._ranks is None else self._ranks.channel.busy():
            fits = self.fit_check.fits(row, self.counter)
        for size, reason in self.fit_check.failures.items():
            self.note(f"micro-batches of {size} are left out: {reason}")
        return fits

    def judge_division(self, verdict: Verdict) -> None:
        """Keep the user's own row if the gradient of parts is another one. Raises: InputError if that row has parts."""
        if verdict.result in ("equal", "unknown"):
            return
        if verdict.is_equal:
            self.note("the loss draws random numbers: the gradient of a batch in parts is the same on average alone")
            return
        if math.isnan(verdict.difference):
            self.note(f"gradients were zero or not finite, and cannot tell whether a batch may be divided, {KEEPS}")
        else:
            text = f"the gradient of a batch in parts is off by {100 * verdict.difference:.2g} %"
            if self.start.micro < self.start.batch or self._follows:
                whole = "whole batches, with the loader's batch size and without micro_batch_size="
                raise InputError(text, value=f"parts of {self.start.micro} samples", allowed=whole)
            self.note(f"{text}, {KEEPS}")
            warnings.warn(f"{text}, {KEEPS}", stacklevel=4)
        self._keeps_shape = True
        self.controller.leave_out_unfit()

    def expect(self, samples: float) -> None:
        """See ``LoopRun``."""
        search = self.controller.search
        if not isinstance(search, SettingLadder):
            search.samples_left = samples

    def relative(self, known: dict[int, tuple[float, float]]) -> None:
        """See ``LoopRun``."""
        self.controller.search.relative(known)
        self.controller.choose_again()

    def _use(self, row: BatchShape, samples: int, changes: int) -> None:
        """Prepare for steps of a new kind; steps of the same kind skip this unless a point is being probed."""
        self._kind = row, samples, changes
        self.recipe.use(row.batch)
        self.fit_check.known.add(row.micro)
        self._work = self.counter.placeholder(samples, row.micro)

    def _changed(self, point: OperatingPoint, reason: str) -> None:
        place = PointRecord.model_validate(point).model_dump()
        time_s = max(0.0, self.capped.meter.elapsed_s)
        self.changes.append({"samples": self.samples, "time_s": time_s, "point": place, "why": reason})
        self.on_point(point, reason)

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """See ``LoopRun``."""
        return {
            **self.capped.state_dict(),
            "name": self.device.name,
            "samples": self.samples,
            "steps": self.steps,
            "changes": self.changes,
            "notes": list(self.notes),
            "explorer": self.controller.state_dict(),
            "times": self.times.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``LoopRun``."""
        self._state = state
