"""The chosen point, and all candidates."""

from __future__ import annotations

from wattune.cap import CapSide, SensorLimit
from wattune.goal import TIME, Goal
from wattune.intensity import Unit
from wattune.records.base import BatchSize, Flag, NotNegative, Number, Positive, Record, Samples, Share, Supply, Value
from wattune.records.profile import ProfileCost, ProfileKey, Program
from wattune.records.work import ADDED_KNOBS, AtPoint, AtPointIfAny


class Candidate(AtPoint):
    """One point that was considered. ``why_not``: why it was not chosen, None for the chosen one."""

    feasible: Flag
    relative_time: Positive | None = None
    predicted_s: Positive | None = None
    predicted_j: Positive | None = None
    predicted_peak_w: Positive | None = None
    predicted_window_w: Positive | None = None
    why_not: str | None = None


class Baseline(Candidate):
    """The choice of another rule under the same cap.

    ``rule``: one of ``wattune.planning.RULES``; ``speed_up`` is its predicted time divided by the plan's.
    """

    rule: str
    speed_up: Positive | None = None


class FrontPoint(AtPoint):
    """A point under the cap of which no other is both faster and takes less energy.

    ``slower``: share of the time of the fastest point by which it is slower; ``saves``: share of the fastest point's
    energy, of the whole board, that it saves.
    """

    slower: NotNegative
    saves: Share


class AlgorithmChoice(AtPointIfAny):
    """The best point with one training algorithm, under the plan's cap and memory limit.

    ``relative_samples``: samples to target at this point, relative to backprop's reference batch size;
    ``times_chosen``: its predicted time divided by the chosen one's. If it is not ``feasible``, there is no point,
    ``memory_bytes`` is the least of all its points, and ``why_not`` is the reason. ``why_not`` is None for the chosen
    one.
    """

    algorithm: str
    feasible: Flag
    memory_bytes: Positive | None = None
    relative_samples: Positive | None = None
    step_s: Positive | None = None
    power_mean_w: Positive | None = None
    predicted_s: Positive | None = None
    predicted_j: Positive | None = None
    predicted_peak_w: Positive | None = None
    predicted_window_w: Positive | None = None
    times_chosen: Positive | None = None
    why_not: str | None = None


class PlannedCap(AtPointIfAny):
    """The setting under one of the caps of a cap that changes, at the plan's batch size.

    ``asked_w``: watts as asked for, 0 if nothing may run; ``share``: of the time; ``cap_w``: the limit at the sensor,
    None if the cap leaves nothing. If no point is ``feasible``, training pauses under this cap.
    """

    asked_w: NotNegative
    share: Share
    feasible: Flag
    cap_w: Positive | None = None
    relative_time: Positive | None = None
    predicted_peak_w: Positive | None = None
    predicted_window_w: Positive | None = None


class ScheduledTime(Value):
    """A time in which training runs, in seconds from the beginning; ``until_s`` None: until it ends."""

    from_s: NotNegative
    until_s: Positive | None = None


class IntensityValue(Value):
    """Carbon intensity or price from ``time_s`` on, until the next one."""

    time_s: NotNegative
    value: Number


class Schedule(Value):
    """The times to train at, chosen once by a forecast of the grid's carbon intensity or price.

    ``begin``: the moment of 0 s, ISO 8601; None for seconds of the run. ``forecast``: the values that it was chosen by,
    in ``unit``. ``finish_s``: the end of training, as predicted. ``predicted``: grams of CO2, or money, of the energy
    while training; ``predicted_waiting``: of the power at rest until ``finish_s`` beside that, None if it is unknown;
    ``at_once``: of the least that the same goal takes without a pause; ``fastest_at_once``: of the fastest point.
    """

    unit: Unit
    begin: str | None = None
    times: tuple[ScheduledTime, ...]
    forecast: tuple[IntensityValue, ...]
    finish_s: Positive
    predicted: Number
    predicted_waiting: Number | None = None
    at_once: Number
    fastest_at_once: Number


class PlannedEvaluations(Value):
    """Evaluations and checkpoints of a run until the predicted samples, which ``predicted_s`` of a plan leaves out.

    ``number`` of them, one each ``every_samples`` samples: ``evaluation_s`` and ``checkpoint_s`` are the seconds of one
    evaluation and of writing one checkpoint, ``time_s`` and ``energy_j`` the time and energy of all.
    """

    every_samples: BatchSize
    number: Samples
    evaluation_s: NotNegative
    checkpoint_s: NotNegative
    time_s: NotNegative
    energy_j: NotNegative


class Plan(AtPoint, Record):
    """The chosen point, the candidates, and the predicted time, energy and power.

    Selection is by ``step_s / batch_size * relative_samples`` among the points whose peak power plus ``margin_w`` is at
    most ``cap_w``. ``predicted_s`` is that times the samples of the reference batch size, None if unknown: the time of
    training steps alone, as ``predicted_j`` is their energy; ``evaluations``, if they were measured, come on top.
    ``target`` is the curve's, so usually the proxy's; ``notes`` are caveats. ``step_s`` and ``power_mean_w`` are the
    profile's at the chosen point.

    ``cap_w`` is always the limit at the sensor, for the mean power over ``cap_window_s`` seconds (None: for every
    reading); ``predicted_window_w`` is that mean, with its error. If the cap was given at the terminals of the supply
    (``cap_side`` "supply"), ``supply_cap_w`` is the given cap, and ``supply`` what ``cap_w`` was computed with.

    ``p_best``: the probability that the batch size is the best one; ``expected_loss``: its expected excess time over
    the best one, as a share; ``p_over_cap``: the probability that the power at the chosen point, without sensor noise,
    is above ``cap_w``. They are None if the records do not have the uncertainty of their figures.

    ``own_batch_size``: the batch size that the user trains with today; None: not given. ``rival_batch_size``: the one
    that would be chosen without it, None if the two cannot be compared; it is the plan's only if ``p_faster``, the
    probability that it trains faster, is at least 0.9. ``expected_gain``: the expected share of the time that it saves.

    ``goal``: what was chosen for, and its bound. ``front``: from the fastest point to that of least energy, at the own
    batch size if that is kept; empty without predicted times. ``rest_w``: power of the board at rest, if the profile
    has it; ``predicted_above_rest_j``: the part of ``predicted_j`` above it. ``predicted_cost``: price of time and
    energy, in the currency of the goal's prices. ``reached_share``: share of the samples to the target that the goal's
    energy is enough for, None if for all of them.

    ``caps``: the caps of a cap that changes, with the setting under each; the plan's point and ``cap_w`` are then those
    of the highest, and ``predicted_s`` and ``predicted_j`` include the pauses of the caps. ``of_clairvoyant``: progress
    over the caps, relative to the fastest point under each of them; ``over_constant``: relative to the best single
    point, which pauses above the cap; None for another goal than time. ``schedule``: the times to train at, if they
    were chosen by carbon or price.

    ``program``: the profiled program, if it is not a workload of wattune; ``run_by`` is then the command that runs it
    at this point under the cap.

    ``predicted_memory_bytes``: the peak memory of a step at the chosen point; ``memory_limit_bytes``: the limit.
    ``algorithms``: the best point of each training algorithm, if there was more than one to choose from; the plan is
    that of ``algorithm``, and all other fields belong to it. ``algorithm_cost``: how many more samples its gradient
    needs than backprop's, and why it was chosen all the same; None for backprop.
    """

    name = "plan"
    written_by = "wattune plan"
    needed = ("caps", "schedule", *sorted(ADDED_KNOBS))

    cap_w: Positive | None = None
    cap_side: CapSide = "module"
    supply_cap_w: Positive | None = None
    supply: Supply | None = None
    margin_w: NotNegative = 0.0
    cap_window_s: Positive | None = None
    relative_time: Positive | None = None
    predicted_s: Positive | None = None
    predicted_j: Positive | None = None
    predicted_peak_w: Positive | None = None
    predicted_window_w: Positive | None = None
    memory_limit_bytes: Positive | None = None
    predicted_memory_bytes: Positive | None = None
    step_s: Positive | None = None
    power_mean_w: Positive | None = None
    p_best: Share | None = None
    expected_loss: NotNegative | None = None
    p_over_cap: Share | None = None
    own_batch_size: BatchSize | None = None
    rival_batch_size: BatchSize | None = None
    p_faster: Share | None = None
    expected_gain: Number | None = None
    goal: Goal = TIME
    front: tuple[FrontPoint, ...] = ()
    rest_w: NotNegative | None = None
    predicted_above_rest_j: Positive | None = None
    predicted_cost: Positive | None = None
    reached_share: Share | None = None
    notes: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    device: str | None = None
    workload: str | None = None
    algorithm: str = "backprop"
    target: Number | None = None
    key: ProfileKey | None = None
    profile_cost: ProfileCost | None = None
    sensor_window_s: NotNegative | None = None
    sensor_rail: str | None = None
    program: Program | None = None
    run_by: str | None = None
    algorithms: tuple[AlgorithmChoice, ...] = ()
    algorithm_cost: str | None = None
    caps: tuple[PlannedCap, ...] = ()
    of_clairvoyant: Positive | None = None
    over_constant: Positive | None = None
    schedule: Schedule | None = None
    evaluations: PlannedEvaluations | None = None

    @property
    def expected_samples(self) -> float | None:
        """Samples that the plan predicts at its batch size; None if it predicts none."""
        predicted_s = self.predicted_s
        if self.caps:  # which follows all of them, with their pauses
            predicted_s = next((one.predicted_s for one in self.candidates if one.point == self.point), None)
        if predicted_s is None or self.step_s is None:
            return None
        return predicted_s / self.step_s * self.batch_size

    @property
    def run_s(self) -> float | None:
        """Predicted seconds of a whole run: steps, and evaluations and checkpoints as far as they are known."""
        if self.predicted_s is None or self.evaluations is None:
            return self.predicted_s
        return self.predicted_s + self.evaluations.time_s

    @property
    def run_j(self) -> float | None:
        """Predicted joules of a whole run, as ``run_s``."""
        if self.predicted_j is None or self.evaluations is None:
            return self.predicted_j
        return self.predicted_j + self.evaluations.energy_j

    @property
    def limit(self) -> SensorLimit:
        """The limit at the power sensor that the chosen point was compared with."""
        return SensorLimit(self.cap_w, self.margin_w, window_s=self.cap_window_s)
