"""How sure a choice is: of its batch size, and of its power."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from wattune.decisions.choice import weighed
from wattune.decisions.seen import Readings, Seen
from wattune.planning.selection import Limit
from wattune.planning.table import Option
from wattune.planning.times import log_step_times
from wattune.records import EfficiencyCurve, ProfileCell, ProfileTable


def sureness(
    profile: ProfileTable, efficiency: EfficiencyCurve, limit: Limit, chosen: Option
) -> dict[str, float | None]:
    """The fields of a plan that say how sure it is: ``p_best``, ``expected_loss`` and ``p_over_cap``.

    Batch sizes are compared at the fastest point that each was measured at below the cap, with the uncertainty of its
    step time and of its samples. None for what the records do not tell.
    """
    choice = None
    times = log_step_times(profile, limit.cap_w, limit.margin_w)
    sizes = [point.batch_size for point in efficiency.points if point.relative_samples and point.batch_size in times]
    covariance = _covariance(efficiency, sizes)
    if covariance is not None and chosen.cell.batch_size in sizes:
        samples = np.log([efficiency.at(size).relative_samples or 1.0 for size in sizes])
        means, sds = np.array([times[size] for size in sizes]).T
        choice = weighed(sizes, samples + means, covariance + np.diag(sds**2), picked=chosen.cell.batch_size)
    return {
        "p_best": None if choice is None else choice.p_best[chosen.cell.batch_size],
        "expected_loss": None if choice is None else choice.expected_regret,
        "p_over_cap": None if limit.cap_w is None else _over(profile, chosen.cell, limit.cap_w),
    }


def _covariance(efficiency: EfficiencyCurve, sizes: list[int]) -> NDArray[np.float64] | None:
    """Of ln(relative samples); from the bands where the curve has nothing better, as if they had nothing in common."""
    if efficiency.covariance is not None:
        at = [place for place, point in enumerate(efficiency.points) if point.batch_size in sizes]
        return np.array(efficiency.covariance)[np.ix_(at, at)]
    sds = [0.0 if size == efficiency.reference_batch_size else efficiency.at(size).log_sd for size in sizes]
    return None if None in sds else np.diag(np.square(np.array(sds, dtype=float)))


def _over(profile: ProfileTable, cell: ProfileCell, cap_w: float) -> float | None:
    if cell.p_above_cap is not None and profile.cost is not None and profile.cost.cap_w == cap_w:
        return cell.p_above_cap  # a guided profile knows the points around it as well
    step_s, mean_w, peak_w, scatter_w = cell.step_s, cell.power_mean_w, cell.power_peak_w, cell.power_std_w
    if step_s is None or mean_w is None or peak_w is None or scatter_w is None or cell.steps is None:
        return None
    readings = Readings(window_s=profile.sensor_window_s or 0.0)
    seen = Seen.of(readings, step_s, mean_w, peak_w, step_s * cell.steps)
    highest_w, sd_w = seen.highest_w(readings, scatter_w)
    return 0.5 * math.erfc((cap_w - highest_w) / sd_w / math.sqrt(2))
