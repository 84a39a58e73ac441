"""What was chosen, and everything that it was chosen from."""

from __future__ import annotations

from wattune.records.base import BatchSize, NotNegative, Positive, Record, Samples, Share, Value
from wattune.records.board import CapSide, Supply
from wattune.records.efficiency import FirstTenth
from wattune.records.profile import ProfileCost, ProfileKey, Program
from wattune.records.work import AtPoint


class Candidate(AtPoint):
    """One point that was considered. ``why_not`` is None for the chosen one."""

    feasible: bool
    relative_time: Positive | None = None
    predicted_s: Positive | None = None
    predicted_j: Positive | None = None
    predicted_peak_w: Positive | None = None
    why_not: str | None = None


class Baseline(Candidate):
    """What another rule would have chosen under the same cap.

    ``rule``: one of ``wattune.planning.RULES``; ``speed_up`` is its predicted time over the plan's.
    """

    rule: str
    speed_up: Positive | None = None


class CapGain(Value):
    """The pick under one cap, and the largest-batch and best-batch rules' predicted time over the pick's.

    ``feasible`` is False where no measured point keeps the cap; a rule that has no point there is None.
    """

    cap_w: Positive
    feasible: bool
    batch_size: BatchSize | None = None
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
    relative_time: Positive | None = None
    over_largest_batch: Positive | None = None
    over_best_batch: Positive | None = None


class AlgorithmChoice(Value):
    """What is best with one training algorithm, under the plan's cap and memory limit.

    ``relative_samples``: what the target takes at this point, over the samples of backprop's reference batch size;
    ``times_chosen``: its predicted time over the chosen one's. Where no point is ``feasible`` there is none,
    ``memory_bytes`` is the least that any of its points takes, and ``why_not`` says why; it is None for the chosen one.
    """

    algorithm: str
    feasible: bool
    batch_size: BatchSize | None = None
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
    memory_bytes: Positive | None = None
    relative_samples: Positive | None = None
    step_s: Positive | None = None
    power_mean_w: Positive | None = None
    predicted_s: Positive | None = None
    predicted_j: Positive | None = None
    predicted_peak_w: Positive | None = None
    times_chosen: Positive | None = None
    why_not: str | None = None


class Robustness(Value):
    """How far a pick holds on ``draws`` boards drawn from the ranges of a simulated board's file, known exactly.

    ``best``: boards on which it is the fastest point that keeps the cap; ``best_batch_size``: on which that has its
    batch size; ``over_cap``: on which it is above the cap; ``unkept``: on which nothing keeps it. ``mean_loss``: what
    its batch size, at the best clock of each board, takes longer than the fastest point, as a share; None where it
    keeps the cap on none.
    """

    draws: BatchSize
    best: Samples
    best_batch_size: Samples
    over_cap: Samples
    unkept: Samples = 0
    mean_loss: NotNegative | None = None


class Plan(AtPoint, Record):
    """The chosen point, what it was compared with, and what it is predicted to take.

    Selection is by ``step_s / batch_size * relative_samples`` among the points whose peak power plus ``margin_w``
    is at most ``cap_w``. ``predicted_s`` is that times the samples of the reference batch size, None where unknown;
    ``target`` is that of the curve, so usually the proxy's; ``notes`` say what is not to be relied on. ``step_s`` and
    ``power_mean_w`` are the profile's at the chosen point: a training in which they are not so is planned anew.

    ``cap_w`` is always what the sensor may read. Where the cap was given for the terminals of the supply (``cap_side``
    "supply"), ``supply_cap_w`` is what was given, and ``supply`` what ``cap_w`` was computed with.

    ``p_best``: the probability that the batch size is the best one; ``expected_loss``: how much longer than the best
    one it is expected to take, as a share; ``p_over_cap``: the probability that the power at the chosen point, without
    the noise of the sensor, is above ``cap_w``. None where the records do not tell how sure their figures are.

    ``first_tenth``: the curve's, with which a training compares its own.

    ``program``: what the profile is of, where that is no workload of wattune; ``run_by`` is then the command that runs
    it at this point and guards the cap.

    ``predicted_memory_bytes``: the most memory that a step takes at the chosen point; ``memory_limit_bytes``: what was
    allowed. ``algorithms``: the best of each training algorithm, where there was more than one to choose from; the
    plan is that of ``algorithm``, and all else in it is of that one alone. ``algorithm_cost``: how many more samples
    its gradient needs than backprop's, and why it was chosen all the same; None where it is backprop's.
    """

    name = "plan"

    cap_w: Positive | None = None
    cap_side: CapSide = "module"
    supply_cap_w: Positive | None = None
    supply: Supply | None = None
    margin_w: NotNegative = 0.0
    relative_time: Positive | None = None
    predicted_s: Positive | None = None
    predicted_j: Positive | None = None
    predicted_peak_w: Positive | None = None
    memory_limit_bytes: Positive | None = None
    predicted_memory_bytes: Positive | None = None
    step_s: Positive | None = None
    power_mean_w: Positive | None = None
    p_best: Share | None = None
    expected_loss: NotNegative | None = None
    p_over_cap: Share | None = None
    notes: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    gain_over_caps: tuple[CapGain, ...] = ()
    device: str | None = None
    workload: str | None = None
    algorithm: str = "backprop"
    target: float | None = None
    key: ProfileKey | None = None
    profile_cost: ProfileCost | None = None
    sensor_window_s: NotNegative | None = None
    sensor_rail: str | None = None
    program: Program | None = None
    run_by: str | None = None
    first_tenth: FirstTenth | None = None
    robustness: Robustness | None = None
    algorithms: tuple[AlgorithmChoice, ...] = ()
    algorithm_cost: str | None = None
