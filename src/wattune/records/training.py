"""Records of training runs, with and without a device, and the comparison of several rules by training."""

from __future__ import annotations

from typing import Literal

from wattune.cap import CapSide
from wattune.goal import TIME, Goal
from wattune.records.base import (
    BatchSize,
    BoardEvent,
    Flag,
    NotNegative,
    Number,
    Positive,
    Record,
    Samples,
    Value,
    Whole,
)
from wattune.records.plan import Plan
from wattune.records.work import AtPointIfAny, AtSetting, PointRecord


class Evaluation(Value):
    """The metric after ``samples`` samples, and the time and energy spent until then."""

    samples: Samples
    metric: Number
    time_s: NotNegative | None = None
    energy_j: NotNegative | None = None
    loss: Number | None = None


class PowerSample(AtSetting):
    """A reading of the meter, and the setting of the device then."""

    time_s: NotNegative
    power_w: Positive


class GuardEvent(PowerSample):
    """One action of the limiter: at ``time_s`` a reading of ``power_w`` led to this ``setting``.

    ``temperature_c`` is None unless temperature has a limit as well.
    """

    action: Literal["down", "up", "at lowest"]
    temperature_c: Number | None = None


class ExactFigures(Value):
    """Exact figures of a simulated board, without the errors of its meter."""

    energy_j: NotNegative
    above_cap_s: NotNegative
    time_s: NotNegative


class PointChange(Value):
    """Change to ``point`` after ``samples`` samples and ``time_s`` seconds of training; ``why``: the reason."""

    samples: Samples
    time_s: NotNegative
    point: PointRecord
    why: str


class CapInterval(AtSetting):
    """A stretch of a run under one cap of a cap that changes, at one ``setting``, from ``time_s`` until the next one.

    ``asked_w``: the cap as given, 0 if nothing may run, None if nothing is limited; ``cap_w``: the limit at the sensor,
    None if there is none or the cap leaves nothing; ``pause``: why nothing runs, None if training does;
    ``above_cap_s``: seconds in which the mean over the cap's window was above it. ``energy_j``: joules of the interval;
    ``cap_time_s``: time of its beginning on the clock of the caps, in seconds from the first of them.
    """

    time_s: NotNegative
    asked_w: NotNegative | None = None
    cap_w: Positive | None = None
    pause: str | None = None
    above_cap_s: NotNegative = 0.0
    energy_j: NotNegative = 0.0
    cap_time_s: Number | None = None


class Emissions(Value):
    """Carbon of a run: ``emissions`` in kg of CO2, as in CodeCarbon's ``emissions.csv``."""

    emissions: NotNegative


Ending = Literal["target reached", "budget used up", "diverged", "stopped for safety"]


class TrainingRecord(Record):
    """One training run: the plan, each evaluation, time, energy, and how it ended.

    Time and energy are of the whole run on the device: first steps, evaluations and checkpoints count. ``reason``: why
    it was stopped for safety; ``max_temp_c``: the temperature limit; ``temperature_max_c``: the highest temperature;
    ``evaluation_s``, ``checkpoint_s``: the seconds of ``time_s`` that evaluations and checkpoints took,
    None if the run was resumed from a checkpoint that does not record them.
    ``board_events``: events on the board, in the run's time. ``power_window_w``: the highest mean power over the window
    of the plan's cap, None if it has none.

    Under a cap that changes: ``cap_intervals`` are its caps and what was done. ``paused_s``: seconds in which nothing
    ran, or other work on the board went first; None if neither was possible. ``emissions``, ``energy_cost``: carbon, or
    money, of the energy of the run, with what was drawn in pauses, by the forecast of the plan's schedule.
    """

    name = "training"
    written_by = "wattune train"

    plan: Plan
    metric: str | None = None
    target: Number | None = None
    reached: Flag
    ended: Ending | None = None
    reason: str | None = None
    samples: Samples
    time_s: NotNegative
    energy_j: NotNegative
    power_mean_w: NotNegative | None = None
    power_peak_w: NotNegative
    power_window_w: NotNegative | None = None
    above_cap_s: NotNegative
    readings: Samples | None = None
    readings_above_cap: Samples | None = None
    evaluations: tuple[Evaluation, ...] = ()
    evaluation_s: NotNegative | None = None
    checkpoint_s: NotNegative | None = None
    max_temp_c: Number | None = None
    temperature_max_c: Number | None = None
    guard: tuple[GuardEvent, ...] = ()
    board_events: tuple[BoardEvent, ...] = ()
    cap_intervals: tuple[CapInterval, ...] = ()
    paused_s: NotNegative | None = None
    emissions: Emissions | None = None
    energy_cost: Number | None = None
    trace: tuple[PowerSample, ...] = ()
    exact: ExactFigures | None = None
    profiling_share: NotNegative | None = None
    pays_after_trainings: NotNegative | None = None

    @property
    def exceeds_cap(self) -> bool:
        """True if the power was above the plan's cap: a mean over its window for sure, or without one any reading."""
        if self.plan.cap_w is None:
            return False
        if self.plan.cap_window_s is not None or self.cap_intervals:
            return self.above_cap_s > 0
        return self.power_peak_w > self.plan.cap_w


class LearningCurve(Record):
    """One training run without a device: the metric at each evaluation, until the target or the end of the budget.

    ``state_bytes`` is the size of a checkpoint: parameters and the optimizer's state.
    """

    name = "curve"
    written_by = "wattune estimate"

    workload: str
    algorithm: str = "backprop"
    batch_size: BatchSize
    seed: Whole
    metric: str | None = None
    target: Number | None = None
    reached: Flag
    samples: Samples
    budget_samples: Samples
    evaluations: tuple[Evaluation, ...] = ()
    fingerprint: str | None = None
    state_bytes: Samples | None = None


class ComparisonRow(AtPointIfAny):
    """One rule's pick, trained to the target over seeds: mean and standard deviation of time and energy.

    ``censored`` of ``runs`` seeds did not reach the target; if any did not, the means are None.
    ``speed_up`` is this rule's time divided by that of wattune's pick; ``above_fastest``: its excess over the fastest.
    """

    rule: str
    runs: Samples = 0
    censored: Samples = 0
    time_s: Positive | None = None
    time_std_s: NotNegative | None = None
    energy_j: Positive | None = None
    energy_std_j: NotNegative | None = None
    power_peak_w: Positive | None = None
    speed_up: Positive | None = None
    above_fastest: Number | None = None
    why_not: str | None = None


class Comparison(Record):
    """Every rule's pick for one cap, trained on the target's own data. ``method``: how time and energy were determined.

    ``cap_w``, ``cap_side``, ``supply_cap_w`` and ``goal`` are those of a plan; the goal is that of wattune's own pick.
    ``caps``: name of a cap that changes, of which ``cap_w`` is the highest.
    """

    name = "comparison"
    written_by = "wattune compare"

    device: str
    workload: str
    algorithm: str = "backprop"
    cap_w: Positive | None = None
    cap_side: CapSide = "module"
    supply_cap_w: Positive | None = None
    caps: str | None = None
    goal: Goal = TIME
    seeds: tuple[Whole, ...]
    method: str
    rows: tuple[ComparisonRow, ...]
