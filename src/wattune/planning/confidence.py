"""Confidence in a choice: in its batch size and in its power."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from wattune.cap import SensorLimit
from wattune.goal import TIME, Goal
from wattune.planning.objective import Objective
from wattune.planning.table import Option, PlanningTable
from wattune.records import ProfileCell, ProfileTable, SampleEfficiency
from wattune.sample_efficiency.choice import assess
from wattune.search.observation import capped_powers, highest_power


def confidence(objective: Objective, pick: Option) -> dict[str, float | None]:
    """The plan's fields ``p_best``, ``expected_loss`` and ``p_over_cap``; None if the records do not tell.

    Batch sizes are compared at the best point of each that was measured under the cap, with the uncertainty of its
    step time and of its samples; a single one cannot be compared with anything.
    """
    choice = None
    table, limit = objective.table, objective.limit
    profile, efficiency = table.profile, table.efficiency
    if objective.goal.is_time:
        times = feasible_log_times(table, limit)
    else:
        best = {size: objective.best(size) for size in {option.cell.batch_size for option in objective.options}}
        times = {size: log_cost(objective, option) for size, option in best.items() if option is not None}
    sizes = [point.batch_size for point in efficiency.points if point.relative_samples and point.batch_size in times]
    covariance = _covariance(efficiency, sizes)
    if covariance is not None and len(sizes) > 1 and pick.cell.batch_size in sizes:
        samples = np.log([efficiency.at(size).relative_samples or 1.0 for size in sizes])
        means, sds = np.array([times[size] for size in sizes]).T
        choice = assess(sizes, samples + means, covariance + np.diag(sds**2), picked=pick.cell.batch_size)
    return {
        "p_best": None if choice is None else choice.p_best[pick.cell.batch_size],
        "expected_loss": None if choice is None else choice.expected_regret,
        "p_over_cap": None if limit.limit_w is None else _over(profile, pick.cell, limit.limit_w),
    }


def feasible_log_times(table: PlanningTable, limit: SensorLimit) -> dict[int, tuple[float, float]]:
    """``log_step_times`` of a table that is already arranged."""
    return _log_times(table.profile, [one.cell for one in table.at.values() if limit.allows(one.capped_w)])


def log_cost(objective: Objective, option: Option) -> tuple[float, float]:
    """Mean and standard deviation of the logarithm of what the goal makes least, for one sample at this point."""
    sample_s = option.step_s / option.cell.batch_size
    return math.log(sample_s * objective.price(option)), _sd(option.cell)


def _covariance(efficiency: SampleEfficiency, sizes: list[int]) -> NDArray[np.float64] | None:
    """Covariance of ln(relative samples), (sizes, sizes); from the bands, taken as independent, if there is none."""
    if efficiency.covariance is not None:
        at = [place for place, point in enumerate(efficiency.points) if point.batch_size in sizes]
        return np.array(efficiency.covariance)[np.ix_(at, at)]
    sds = [0.0 if size == efficiency.reference_batch_size else efficiency.at(size).log_sd for size in sizes]
    return None if None in sds else np.diag(np.square(np.array(sds, dtype=float)))


def _over(profile: ProfileTable, cell: ProfileCell, limit_w: float) -> float | None:
    if cell.p_above_cap is not None and profile.cost is not None and profile.cost.cap_w == limit_w:
        return cell.p_above_cap  # a guided profile knows the points around it as well
    if cell.power_std_w is None or cell.steps is None:
        return None
    highest_w, sd_w = highest_power(cell, profile.sensor_window_s or 0.0, profile.cap_window_s)
    return float(ndtr((highest_w - limit_w) / sd_w))


LEAST_SD: Final = 0.002
"""Standard deviation of ln(seconds) that a step time has, however long it is measured."""


def log_step_times(profile: ProfileTable, limit: SensorLimit, goal: Goal = TIME) -> dict[int, tuple[float, float]]:
    """Batch size -> mean and standard deviation of ln(seconds per sample) at its fastest measured point below the cap,
    or of what another goal makes least, at the point that is best for it. The goal's bound is left out.

    A batch size without such a point is left out: it cannot be chosen, so its samples do not matter. Above the fastest
    point of a row, a guided profile may have left out settings that stay under the cap, since no plausible number of
    samples would make them the best: the standard deviation then includes what such a setting might save.
    """
    capped_w = capped_powers(profile, limit.window_s)
    return _log_times(profile, [cell for cell in profile.measured if limit.allows(capped_w(cell))], goal)


def _log_times(
    profile: ProfileTable, allowed: Sequence[ProfileCell], goal: Goal = TIME
) -> dict[int, tuple[float, float]]:
    def cost(cell: ProfileCell) -> float:
        seconds = _known(cell.step_s) / cell.batch_size
        return seconds if is_time else seconds * float(goal.price(_known(cell.power_mean_w), profile.rest_w))

    is_time = goal.is_time
    by_size: dict[int, list[ProfileCell]] = {}
    for cell in allowed:
        by_size.setdefault(cell.batch_size, []).append(cell)
    times: dict[int, tuple[float, float]] = {}
    for size, cells in sorted(by_size.items()):
        best = min(cells, key=cost)
        left_out = _left_out(profile, allowed, best) if profile.strategy == "guided" else 0.0
        times[size] = (math.log(cost(best)), math.hypot(_sd(best), left_out / 2))
    return times


def _left_out(profile: ProfileTable, allowed: Sequence[ProfileCell], best: ProfileCell) -> float:
    """Logarithm of what a faster setting of this shape might save: 0 if one was measured that exceeds the cap."""
    kept = sum(cell.shape == best.shape for cell in allowed)
    measured = sum(one.shape == best.shape for one in (*profile.measured, *profile.aborted))
    highest = (max(cell.knobs[name] for cell in allowed) / value for name, value in best.knobs.items())
    return max(map(math.log, highest), default=0.0) if measured == kept else 0.0


def _sd(cell: ProfileCell) -> float:
    steps = cell.steps or 1
    return math.hypot(LEAST_SD, (cell.step_std_s or 0.0) / _known(cell.step_s) / math.sqrt(steps))


def _known(figure: float | None) -> float:
    assert figure is not None  # a measured cell has all of them
    return figure
