"""Speed of each batch size under a cap, to decide which of them are worth training on the proxy."""

from __future__ import annotations

import math
from typing import Final

from wattune.cap import SensorLimit
from wattune.records import ProfileCell, ProfileTable

LEAST_SD: Final = 0.002
"""Standard deviation of ln(seconds) that a step time has, however long it is measured."""


def log_step_times(profile: ProfileTable, limit: SensorLimit) -> dict[int, tuple[float, float]]:
    """Batch size -> mean and standard deviation of ln(seconds per sample) at its fastest measured point below the cap.

    A batch size without such a point is left out: it cannot be chosen, so its samples do not matter. Above the fastest
    point of a row, a guided profile may have left out settings that stay under the cap, since no plausible number of
    samples would make them the best: the standard deviation then includes what such a setting might save.
    """
    cells = profile.measured
    allowed = [cell for cell in cells if limit.allows(_known(cell.power_peak_w))]
    highest = max((cell.knobs.first or 0.0 for cell in allowed), default=0.0)
    limited_shapes = {cell.shape for cell in cells if not limit.allows(_known(cell.power_peak_w))}
    limited_shapes |= {probe.shape for probe in profile.aborted}
    times: dict[int, tuple[float, float]] = {}
    for size in sorted({cell.batch_size for cell in allowed}):
        best = min((cell for cell in allowed if cell.batch_size == size), key=_seconds)
        sd, setting = _sd(best), best.knobs.first  # a guided profile sets one knob at most
        if profile.strategy == "guided" and setting and best.shape not in limited_shapes:
            sd = math.hypot(sd, math.log(highest / setting) / 2)
        times[size] = (math.log(_seconds(best)), sd)
    return times


def _sd(cell: ProfileCell) -> float:
    steps = cell.steps or 1
    return math.hypot(LEAST_SD, (cell.step_std_s or 0.0) / _known(cell.step_s) / math.sqrt(steps))


def _seconds(cell: ProfileCell) -> float:
    return _known(cell.step_s) / cell.batch_size


def _known(figure: float | None) -> float:
    assert figure is not None  # a measured cell has all of them
    return figure
