"""The one training loop: steps, evaluations and checkpoints inside a capped run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from wattune.algorithms import Batch, EvaluationPoint, LossTally, Run, TrainingAlgorithm, learn, memory_errors
from wattune.cap_source import CapSource
from wattune.devices import Device
from wattune.errors import SafetyStop
from wattune.point import Knobs
from wattune.power.cap_follower import CapFollower
from wattune.power.capped_run import CappedRun, Readings
from wattune.records import (
    Ending,
    Evaluation,
    Plan,
    PowerSample,
    TrainingRecord,
    provenance,
)
from wattune.training.evaluation_log import EvaluationLog
from wattune.training.planned_settings import PlannedSettings
from wattune.training.training_record import counts_all, evaluation_works, of_the_grid, pays_after
from wattune.workloads import Workload

Progress = Callable[[int, int, str], None]

WRITE_BYTES_PER_S = 10e6
"""Rate at which a simulated board writes checkpoints: the slowest allowed for an SD card of class 10 or UHS class 1.

Source: SD Association, speed class 10 and UHS speed grade 1 (minimum sequential write of 10 MB/s).
"""


@dataclass(eq=False)
class TrainingLoop:
    """A training run on a device, at the plan's setting; under a cap that changes, at the fastest one that it allows.

    ``algorithm`` tells the work of a step and of evaluations; ``steps`` trains; ``batches`` gives the batches from a
    number of samples on; ``evaluate`` gives the metric.
    ``checkpoint_bytes`` is the size of a checkpoint on a simulated board's storage, None if none is written.
    ``cap``: a cap that changes, in place of the plan's; ``yield_to``: says, before a step, if others go first.
    ``save`` gets, after each evaluation, at the beginning of a pause and at a safety stop, the state that a later loop
    continues from as ``state``, with ``evaluations.state`` as "evaluations": JSON values, everything but the
    algorithm's state.
    """

    device: Device
    workload: Workload
    plan: Plan
    algorithm: TrainingAlgorithm
    steps: Run
    batches: Callable[[int], Iterable[Batch]]
    evaluate: Callable[[], float]
    budget_samples: int
    checkpoint_bytes: Callable[[], int | None]
    max_temp_c: float | None = None
    cap: CapSource | None = None
    yield_to: Callable[[], bool] | None = None
    save: Callable[[dict[str, Any]], None] | None = None
    state: dict[str, Any] | None = None
    progress: Progress | None = None
    on_evaluation: Callable[[Evaluation, Readings], None] | None = None

    def __post_init__(self) -> None:
        device, plan = self.device, self.plan
        self._step_work = self.algorithm.work()
        self._evaluation_works = evaluation_works(self.algorithm, device, plan.point, self.workload.test_samples)
        self.samples = 0
        self.evaluations = EvaluationLog()
        self.planned = PlannedSettings(plan)
        limit, knobs = replace(plan.limit, max_temp_c=self.max_temp_c), plan.knobs
        if self.cap is not None:
            # The follower finds its limit, and goes up from the safest setting.
            limit, knobs = replace(limit, limit_w=None), device.safest if plan.knobs else plan.knobs
        self.capped = CappedRun(device, limit, knobs)
        if self.cap is not None:
            self.capped.follow(
                CapFollower(
                    self.capped,
                    self.cap,
                    self.planned.best_under,
                    supply=plan.supply,
                    averaging_s=plan.sensor_window_s,
                )
            )
        self.tally = LossTally()
        self.evaluation_s = self.checkpoint_s = 0.0  # since the run began, or since it was resumed if that is unknown
        self._costs_known = True  # whether these two are those of the whole run
        self._evaluation_s = 0.0  # that the last evaluation took
        self._evaluated_parts = 0  # of the evaluation in progress
        self._reason: str | None = None
        self._diverged = False

    def run(self) -> None:
        """Train until the target, the end of the budget, a metric or a loss that is not finite, or a safety stop.

        Raises: DeviceError, InputError.
        """
        with self.capped as capped:
            state = self.state
            capped.start(state)
            if state:
                self._load(state)
            with capped.following():
                try:
                    if not self._reached():
                        self._train()
                except SafetyStop as stop:
                    self._reason = str(stop)
                    # A user who resumes from here has dealt with the reason.
                    self._save(regained=True)
            capped.monitor.look(capped.meter.elapsed_s)

    @property
    def ended(self) -> Ending:
        """Ending of the run."""
        if self._reached():
            return "target reached"
        if self._reason is not None:
            return "stopped for safety"
        return "diverged" if self._diverged else "budget used up"

    def record(self, *, seed: int | None, data: str | None) -> TrainingRecord:
        """The record of the run after its end, with what profiling cost against it.

        Raises: SensorError if the sensor never gave a reading.
        """
        capped, device, plan = self.capped, self.device, self.plan
        cost, ended = plan.profile_cost, self.ended
        figures = {name: value for name, value in asdict(capped.meter.figures()).items() if name != "power_std_w"}
        if plan.cap_w is None:
            figures["power_window_w"] = None
        time_s = figures["time_s"]
        left_out = {} if counts_all(device) else {"left_out": "evaluations and checkpoints, which were not recorded"}
        return TrainingRecord(
            plan=plan,
            metric=self.workload.metric.name,
            target=self.workload.target,
            reached=ended == "target reached",
            ended=ended,
            reason=self._reason if ended == "stopped for safety" else None,
            samples=self.samples,
            **figures,
            evaluations=self.evaluations.all,
            **self._costs_s,
            max_temp_c=self.max_temp_c,
            temperature_max_c=capped.monitor.temperature_max_c,
            guard=capped.limiter.events,
            board_events=capped.board_events,
            cap_intervals=capped.cap_intervals,
            paused_s=capped.paused_s if capped.follows or self.yield_to is not None else None,
            **of_the_grid(plan.schedule, capped.cap_intervals, time_s),
            trace=_with_settings(capped.meter.trace, self._settings(), plan.knobs),
            exact=None if capped.truth is None else capped.truth.figures(),
            profiling_share=cost.time_s / time_s if cost is not None and time_s else None,
            pays_after_trainings=pays_after(plan, time_s) if ended == "target reached" else None,
            provenance=provenance(
                device.kind,
                device=device.name,
                model=self.workload.model_fingerprint(),
                data=data,
                seed=seed,
                **left_out,
            ),
        )

    @property
    def _costs_s(self) -> dict[str, float | None]:
        """Seconds of all evaluations and checkpoints; None for both if those before a resumption are unknown."""
        if not self._costs_known:
            return {"evaluation_s": None, "checkpoint_s": None}
        return {"evaluation_s": self.evaluation_s, "checkpoint_s": self.checkpoint_s}

    def _train(self) -> None:
        for at in learn(
            self.steps,
            self.batches(self.samples),
            self.evaluate,
            budget_samples=self.budget_samples,
            evaluate_every=self.workload.evaluate_every,
            start_samples=self.samples,
            around_step=self._step,
            around_evaluation=self._evaluation,
            tally=self.tally,
        ):
            if at.loss is None or not math.isfinite(at.metric):
                self._diverged = True
                return
            self._evaluated(at)
            if self._reached():
                return

    @contextmanager
    def _step(self) -> Iterator[None]:
        capped = self.capped
        capped.check()
        capped.monitor.look(capped.meter.elapsed_s)
        if self.yield_to is not None:
            capped.wait_while(self.yield_to)
        # Afterwards, so that what it lets begin is not put off.
        capped.hold(self._step_s, on_pause=self._paused)
        with capped.device.step(self._step_work):
            yield
        self.samples += self.plan.batch_size

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        device, works = self.capped.device, self._evaluation_works
        if device.executes_steps:
            self.capped.hold(self._evaluation_s, on_pause=self._paused)
            begun_s = device.now_s()
            with memory_errors("an evaluation"), device.step(works[0]):
                yield
            self._evaluation_s = device.now_s() - begun_s
            self.evaluation_s += self._evaluation_s
            return
        # If nothing runs on the device, the parts of the evaluation pass one after the other.
        for work in works[self._evaluated_parts :]:
            self.capped.hold(self._step_s, on_pause=self._paused)
            begun_s = device.now_s()
            with device.step(work):
                pass
            self.evaluation_s += device.now_s() - begun_s
            self._evaluated_parts += 1
        self._evaluated_parts = 0
        yield

    def _paused(self) -> None:
        self._save()
        if self.progress is not None:
            self.progress(self.samples, self.budget_samples, f"waits: {self.capped.pause}")

    @property
    def _step_s(self) -> float:
        """Seconds that a step is expected to take at the present setting; 0 if that is unknown."""
        return self.planned.step_s(self.capped.limiter.top)

    def _evaluated(self, at: EvaluationPoint) -> None:
        capped = self.capped
        # Before the sensor's first reading there are no figures.
        figures = capped.meter.figures() if capped.limiter.has_read else None
        time_s, energy_j = (figures.time_s, figures.energy_j) if figures else (None, None)
        evaluation = Evaluation(samples=at.samples, metric=at.metric, time_s=time_s, energy_j=energy_j, loss=at.loss)
        self.evaluations.append(evaluation)
        size, begun_s = self.checkpoint_bytes(), capped.device.now_s()
        if size is not None and not capped.device.executes_steps:
            capped.device.wait(size / WRITE_BYTES_PER_S)
            self.checkpoint_s += capped.device.now_s() - begun_s
        self._save()
        if capped.device.executes_steps:
            self.checkpoint_s += capped.device.now_s() - begun_s
        if self.on_evaluation is not None:
            self.on_evaluation(evaluation, capped.readings())
        if self.progress is not None:
            line = _line(self.workload, evaluation) + self._power() + self._left(at.samples)
            self.progress(at.samples, self.budget_samples, line)

    def _power(self) -> str:
        """The power of the newest reading, beside the cap, and the setting that draws it."""
        limiter = self.capped.limiter
        if limiter.power_w is None:
            return ""
        cap = "" if limiter.limit.limit_w is None else f" of {limiter.limit.limit_w:.3g} W"
        return f", {limiter.power_w:.3g} W{cap} at {limiter.knobs}"

    def _left(self, samples: int) -> str:
        """The time that the samples which the plan predicts still take, and the pauses that it has planned."""
        plan = self.plan
        expected, step_s = plan.expected_samples, self._step_s
        if expected is None or not step_s or samples >= expected or self._reached():
            return ""
        left_s = (expected - samples) / plan.batch_size * step_s
        each_s = (self.evaluation_s + self.checkpoint_s) / len(self.evaluations)
        left_s += (expected - samples) / self.workload.evaluate_every * each_s
        if plan.schedule is not None:
            left_s = max(left_s, plan.schedule.finish_s - self.capped.meter.elapsed_s)
        return f"; by the plan about {timedelta(seconds=math.ceil(left_s))} left"

    def _settings(self) -> list[tuple[float, Knobs]]:
        """When the setting was changed, and to what."""
        events, names = self.capped.limiter.events, self.plan.knobs
        changes = [(event.time_s, event.setting_of(names)) for event in events if event.action != "at lowest"]
        return sorted([*changes, *((one.time_s, one.setting_of(names)) for one in self.capped.cap_intervals)])

    def _save(self, *, regained: bool = False) -> None:
        if self.save is None:
            return
        self.save(
            {
                **self.capped.state_dict(regained=regained),
                "samples": self.samples,
                "tally": asdict(self.tally),
                "evaluated_parts": self._evaluated_parts,
                **self._costs_s,
            }
        )

    def _load(self, state: dict[str, Any]) -> None:
        self.samples = state["samples"]
        self.evaluations = EvaluationLog(state["evaluations"])
        # Neither is in states of before caps could change.
        self.tally = LossTally(**state.get("tally", {}))
        self._evaluated_parts = state.get("evaluated_parts", 0)
        # Checkpoints from before these were counted do not have them.
        self._costs_known = state.get("evaluation_s") is not None
        self.evaluation_s, self.checkpoint_s = state.get("evaluation_s") or 0.0, state.get("checkpoint_s") or 0.0

    def _reached(self) -> bool:
        workload, last = self.workload, self.evaluations.last
        return (
            workload.target is not None and last is not None and workload.metric.reached(last.metric, workload.target)
        )


def _line(workload: Workload, evaluation: Evaluation) -> str:
    text = f"{workload.metric.name} {evaluation.metric:.4g}"
    if workload.target is not None:
        text += f" (target {workload.target:.4g})"
    if evaluation.time_s is not None and evaluation.energy_j is not None:
        text += f" after {evaluation.time_s:.1f} s and {evaluation.energy_j:.0f} J on the device"
    return text


def _with_settings(
    trace: Iterable[tuple[float, float]], changes: Sequence[tuple[float, Knobs]], plan_setting: Knobs
) -> tuple[PowerSample, ...]:
    # A reading is of the setting of the last change before it.
    samples, knobs, following = [], plan_setting, 0
    for time_s, power_w in trace:
        while following < len(changes) and changes[following][0] < time_s:
            knobs = changes[following][1]
            following += 1
        samples.append(PowerSample(time_s=time_s, power_w=power_w, setting=knobs))
    return tuple(samples)
