"""The one training loop: steps, evaluations and checkpoints on a device, under the guard and the meter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from wattune.algorithms import Batch, Progressed, TrainingAlgorithm, learn, shortage_said
from wattune.devices import Device, Meter, MeterFigures, Setting
from wattune.errors import DeviceError, SafetyStop
from wattune.records import (
    BoardEvent,
    Ending,
    Evaluation,
    ExactFigures,
    FirstTenthSeen,
    GuardEvent,
    OperatingPoint,
    Plan,
    PointChange,
    PowerSample,
    StepWork,
)
from wattune.training.drift import DriftWatch
from wattune.training.gradients import GradientWatch
from wattune.training.guard import Guard
from wattune.training.tenth import TenthWatch
from wattune.training.watch import Watch
from wattune.workloads import Workload

Progress = Callable[[int, int, str], None]

WRITE_BYTES_PER_S = 10e6
"""Rate at which a simulated board writes checkpoints: the slowest that an SD card of class 10 or UHS class 1 may be.

Source: SD Association, speed class 10 and UHS speed grade 1 (minimum sequential write of 10 MB/s).
"""


@dataclass(frozen=True)
class Task:
    """What the loop needs of a training.

    ``step_work`` is that of one optimizer step, ``evaluation_works`` those of the parts of one evaluation;
    ``batches`` from a number of samples on; ``evaluate`` gives the metric of the model. ``checkpoint_bytes`` is what
    a checkpoint takes on a simulated board's storage, None where none is written.
    """

    workload: Workload
    plan: Plan
    algorithm: TrainingAlgorithm
    step_work: StepWork
    evaluation_works: tuple[StepWork, ...]
    batches: Callable[[int], Iterable[Batch]]
    evaluate: Callable[[nn.Module], float]
    budget_samples: int
    checkpoint_bytes: Callable[[], int | None] = lambda: None
    max_temp_c: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What a training took on the device, and how it ended."""

    ended: Ending
    samples: int
    evaluations: tuple[Evaluation, ...]
    figures: MeterFigures
    guard: tuple[GuardEvent, ...]
    trace: tuple[PowerSample, ...]
    exact: ExactFigures | None
    reason: str | None = None
    temperature_max_c: float | None = None
    board_events: tuple[BoardEvent, ...] = ()
    replanned: tuple[PointChange, ...] = ()
    first_tenth: FirstTenthSeen | None = None


class Loop:
    """A training under way on a device that is at the plan's setting.

    ``keep`` gets, after each evaluation and where training is stopped for safety, what a later loop needs as ``kept``
    to go on from there: JSON values, everything but the algorithm's state.
    """

    def __init__(
        self,
        device: Device,
        setting: Setting,
        task: Task,
        *,
        keep: Callable[[dict[str, Any]], None] | None = None,
        kept: dict[str, Any] | None = None,
        progress: Progress | None = None,
        on_evaluation: Callable[[Evaluation, float | None], None] | None = None,
    ):
        cap_w = task.plan.cap_w
        self.device, self.setting, self.task = device, setting, task
        self.keep, self.progress, self.on_evaluation = keep, progress, on_evaluation
        self.samples = 0
        self.evaluations: list[Evaluation] = []
        if not kept:
            # What the sensor still holds of the time before is no part of this training, nor the guard's business.
            device.wait(device.sensor.settle_s)
        elif kept["device"] is not None:
            device.load_state_dict(kept["device"])
        self.guard = Guard(device, setting, cap_w, task.max_temp_c)
        self.watch = Watch(device)
        self.drift = DriftWatch(device, task.plan, task.budget_samples)
        self.tenth = TenthWatch(task.plan, task.workload.target)
        self.gradients = GradientWatch(task.algorithm.module, task.plan, self.tenth.samples)
        self.replanned: list[PointChange] = []
        self._moves = 0  # of the guard, as of the last evaluation
        self.meter = Meter(device, cap_w=cap_w, on_reading=self._read, on_lost=self._lost)
        self.truth = device.truth(cap_w)
        if kept:
            self.samples = kept["samples"]
            self.evaluations = [Evaluation(**evaluation) for evaluation in kept["evaluations"]]
            self.guard.load_state_dict(kept["guard"])
            self.meter.load_state_dict(kept["meter"])
            self.watch.load_state_dict(kept["watch"])
            self.drift.load_state_dict(kept["drift"])
            if "tenth" in kept:  # which a checkpoint of an older version has not
                self.tenth.load_state_dict(kept["tenth"])
                self.gradients.load_state_dict(kept["gradients"])
            self.replanned = [PointChange(**change) for change in kept["replanned"]]
            self._moves = kept["moves"]
            if self.truth is not None:
                self.truth.load_state_dict(kept["truth"])

    def run(self) -> Outcome:
        """Train until the target, the end of the budget, a metric or a loss that is not finite, or a safety stop.

        Raises: DeviceError, also of a sensor that never gave a reading; InputError.
        """
        task, diverged, reason = self.task, False, None
        with self.meter:
            try:
                if not self._reached():
                    for at in learn(
                        task.algorithm,
                        task.batches(self.samples),
                        task.evaluate,
                        budget_samples=task.budget_samples,
                        evaluate_every=task.workload.evaluate_every,
                        start_samples=self.samples,
                        around_step=self._step,
                        around_evaluation=self._evaluation,
                    ):
                        if at.loss is None or not math.isfinite(at.metric):
                            diverged = True
                            break
                        self._evaluated(at)
                        if self._reached():
                            break
            except SafetyStop as stop:
                reason = str(stop)
                # Whoever goes on from here has seen to the reason.
                self._keep({"stopped": False, "over_s": 0.0})
            self.watch.look(self.meter.elapsed_s)
        ended: Ending = "budget used up"
        if self._reached():
            ended = "target reached"
        elif reason is not None:
            ended = "stopped for safety"
        elif diverged:
            ended = "diverged"
        return Outcome(
            ended=ended,
            samples=self.samples,
            evaluations=tuple(self.evaluations),
            figures=self.meter.figures(),
            guard=self.guard.events,
            trace=_with_settings(self.meter.trace, self._settings(), task.plan.point.setting),
            exact=None if self.truth is None else self.truth.figures(),
            reason=reason if ended == "stopped for safety" else None,
            temperature_max_c=self.watch.temperature_max_c,
            board_events=self.watch.events,
            replanned=tuple(self.replanned),
            first_tenth=self.tenth.seen,
        )

    def _read(self, time_s: float, power_w: float) -> None:
        self.guard(time_s, power_w)
        self.drift(power_w)

    @contextmanager
    def _step(self) -> Iterator[None]:
        if self.guard.failure is not None:
            raise self.guard.failure  # on real time it happened in the thread that samples, which ended there
        if (lost := self.meter.lost) is not None:
            raise SafetyStop(f"the power sensor gave no reading any more, so training would have gone on blind: {lost}")
        if self.guard.stopped:
            raise SafetyStop(self.guard.reason)
        self.watch.look(self.meter.elapsed_s)
        with self.gradients.step(self.samples), self.drift.step(), self.device.step(self.task.step_work):
            yield
        self.samples += self.task.plan.batch_size

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        works = self.task.evaluation_works
        if self.device.executes_steps:
            with shortage_said("an evaluation"), self.device.step(works[0]):
                yield
            return
        # Where nothing runs on the device, the parts of the evaluation pass one after the other.
        for work in works:
            with self.device.step(work):
                pass
        yield

    def _evaluated(self, at: Progressed) -> None:
        # A training that is shorter than the sensor's first reading has no figures yet.
        figures = self.meter.figures() if self.guard.has_read else None
        time_s, energy_j = (figures.time_s, figures.energy_j) if figures else (None, None)
        self.evaluations.append(
            Evaluation(samples=at.samples, metric=at.metric, time_s=time_s, energy_j=energy_j, loss=at.loss)
        )
        self.tenth.look(self.evaluations, self.gradients.estimate(), self.gradients.why_not)
        self._plan_again()
        size = self.task.checkpoint_bytes()
        if size is not None and not self.device.executes_steps:
            self.device.wait(size / WRITE_BYTES_PER_S)
        self._keep()
        if self.on_evaluation is not None:
            self.on_evaluation(self.evaluations[-1], self.guard.power_w)
        if self.progress is not None:
            self.progress(at.samples, self.task.budget_samples, _line(self.task.workload, self.evaluations[-1]))

    def _plan_again(self) -> None:
        """Where steps take or draw something else than the plan says, go on at the setting that then is the best."""
        moved = self._moves
        self._moves = len(self.guard.events)
        if self._moves != moved or self.setting.value != self.guard.top:
            self.drift.forget(self.samples)  # some of it was at another setting than the plan's
            return
        drift = self.drift.look(self.samples)
        if drift is None or not drift.is_stale:
            return
        point, setting = self.task.plan.point, self.drift.follow(drift)
        if setting is None:
            self.watch.note(self.meter.elapsed_s, "plan stale", f"{drift}")
            return
        self.guard.move(setting)
        place = {**point.model_dump(), str(self.device.actuator): setting}
        self.replanned.append(
            PointChange(
                samples=self.samples, time_s=self.meter.elapsed_s, point=OperatingPoint(**place), why=str(drift)
            )
        )

    def _settings(self) -> list[tuple[float, float | None]]:
        """When the setting was changed, and to what."""
        changes = [(event.time_s, event.setting) for event in self.guard.events if event.action != "at lowest"]
        return sorted([*changes, *((change.time_s, change.point.setting) for change in self.replanned)])

    def _keep(self, guard: dict[str, Any] | None = None) -> None:
        if self.keep is None:
            return
        self.keep(
            {
                "samples": self.samples,
                "evaluations": [evaluation.model_dump() for evaluation in self.evaluations],
                "device": self.device.state_dict(),
                "guard": {**self.guard.state_dict(), **(guard or {})},
                "meter": self.meter.state_dict(),
                "watch": self.watch.state_dict(),
                "drift": self.drift.state_dict(),
                "tenth": self.tenth.state_dict(),
                "gradients": self.gradients.state_dict(),
                "replanned": [change.model_dump() for change in self.replanned],
                "moves": self._moves,
                "truth": None if self.truth is None else self.truth.state_dict(),
            }
        )

    def _lost(self, error: DeviceError) -> None:
        # At once, from wherever the sensor was given up: a step or an evaluation under way may take long.
        text = f"no reading of {self.device.sensor.rail}: {error}"
        lowest = self.device.settings[0] if self.device.settings else None
        try:
            if self.setting.value is not None and lowest is not None:
                self.setting.change(lowest)
                text += f"; set to the lowest, {lowest:g}"
        except DeviceError as another:
            text += f"; could not be set to the lowest: {another}"
        self.watch.note(self.meter.elapsed_s, "sensor lost", text)

    def _reached(self) -> bool:
        workload = self.task.workload
        if workload.target is None or not self.evaluations:
            return False
        return workload.metric.reached(self.evaluations[-1].metric, workload.target)


def _line(workload: Workload, evaluation: Evaluation) -> str:
    text = f"{workload.metric.name} {evaluation.metric:.4g}"
    if workload.target is not None:
        text += f" (target {workload.target:.4g})"
    if evaluation.time_s is not None and evaluation.energy_j is not None:
        text += f" after {evaluation.time_s:.1f} s and {evaluation.energy_j:.0f} J on the device"
    return text


def _with_settings(
    trace: Iterable[tuple[float, float]], changes: Sequence[tuple[float, float | None]], planned: float | None
) -> tuple[PowerSample, ...]:
    # The setting that was in force when the reading was taken: that of the last change before it.
    samples, setting, following = [], planned, 0
    for time_s, power_w in trace:
        while following < len(changes) and changes[following][0] < time_s:
            setting = changes[following][1]
            following += 1
        samples.append(PowerSample(time_s=time_s, power_w=power_w, setting=setting))
    return tuple(samples)
