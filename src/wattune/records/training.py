"""What a training was, what it took and how it ended; with and without a device."""

from __future__ import annotations

from typing import Literal

from wattune.records.base import BatchSize, NotNegative, Number, Positive, Record, Samples, Value
from wattune.records.board import BoardEvent
from wattune.records.efficiency import FirstTenth
from wattune.records.plan import Plan
from wattune.records.work import OperatingPoint


class Evaluation(Value):
    """The metric after so many samples, and what had been spent by then."""

    samples: Samples
    metric: float
    time_s: NotNegative | None = None
    energy_j: NotNegative | None = None
    loss: float | None = None


class GuardEvent(Value):
    """One answer of the cap guard: at ``time_s`` a reading of ``power_w`` led to this ``setting`` of the actuator.

    ``temperature_c`` stands there where temperature has a limit as well.
    """

    time_s: NotNegative
    power_w: Positive
    action: Literal["down", "up", "at lowest"]
    setting: Positive | None = None
    temperature_c: Number | None = None


class PowerSample(Value):
    """A reading of the meter."""

    time_s: NotNegative
    power_w: Positive
    setting: Positive | None = None


class ExactFigures(Value):
    """What a simulated board really used, beside what its meter said."""

    energy_j: NotNegative
    above_cap_s: NotNegative
    time_s: NotNegative


class PointChange(Value):
    """From so many samples and seconds of the training on, training ran at ``point``; ``why`` in words."""

    samples: Samples
    time_s: NotNegative
    point: OperatingPoint
    why: str


class FirstTenthSeen(Value):
    """The first tenth of a training beside what the plan expected of it.

    ``samples``: at which evaluation they were compared. ``progress``: the share of the way to the target that was made
    in a tenth of the predicted samples, ``noise_scale`` the gradient noise scale meanwhile, in samples, and
    ``noise_scale_log_sd`` the standard deviation of its logarithm; None where they are not known. ``expected`` is the
    plan's. ``fits``: whether all that is known lies in its band, None where nothing is. ``said``: that in a sentence.

    Where the progress does not fit: ``samples_now``, the samples that the whole training is expected to need from then
    on, with its 90 % band, and ``time_now_s``, the seconds that it then takes in all.
    """

    samples: Samples
    progress: Number | None = None
    noise_scale: Positive | None = None
    noise_scale_log_sd: NotNegative | None = None
    expected: FirstTenth
    fits: bool | None = None
    said: str
    samples_now: Positive | None = None
    samples_now_low: Positive | None = None
    samples_now_high: Positive | None = None
    time_now_s: Positive | None = None


Ending = Literal["target reached", "budget used up", "diverged", "stopped for safety"]


class TrainingRecord(Record):
    """One training: the plan, each evaluation, what it took and how it ended.

    Time and energy are of the whole training on the device: first steps, evaluations and checkpoints count.
    ``reason`` says why it was stopped for safety; ``max_temp_c`` is the limit that the temperature had,
    ``temperature_max_c`` the highest seen; ``board_events`` are what happened to the board, in the training's time.
    ``replanned`` are the settings that the plan was changed to where steps took or drew something else than it says,
    ``first_tenth`` is how its beginning compared with what was expected; None where it was not compared.
    """

    name = "training"

    plan: Plan
    metric: str | None = None
    target: float | None = None
    reached: bool
    ended: Ending | None = None
    reason: str | None = None
    samples: Samples
    time_s: NotNegative
    energy_j: NotNegative
    power_mean_w: NotNegative | None = None
    power_peak_w: NotNegative
    above_cap_s: NotNegative
    readings: Samples | None = None
    readings_above_cap: Samples | None = None
    evaluations: tuple[Evaluation, ...] = ()
    max_temp_c: Number | None = None
    temperature_max_c: Number | None = None
    guard: tuple[GuardEvent, ...] = ()
    board_events: tuple[BoardEvent, ...] = ()
    replanned: tuple[PointChange, ...] = ()
    first_tenth: FirstTenthSeen | None = None
    trace: tuple[PowerSample, ...] = ()
    exact: ExactFigures | None = None
    profiling_share: NotNegative | None = None
    pays_after_trainings: NotNegative | None = None


class LearningCurve(Record):
    """One training without a device: the metric at each evaluation, until the target or the end of the budget.

    ``state_bytes`` is the size of what a checkpoint of it holds: parameters and the optimizer's state.
    """

    name = "curve"

    workload: str
    algorithm: str = "backprop"
    batch_size: BatchSize
    seed: int
    metric: str | None = None
    target: float | None = None
    reached: bool
    samples: Samples
    budget_samples: Samples
    evaluations: tuple[Evaluation, ...] = ()
    fingerprint: str | None = None
    state_bytes: Samples | None = None
