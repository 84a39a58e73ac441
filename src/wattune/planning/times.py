"""How fast each batch size is below a cap, for whoever decides which of them are worth training on the proxy."""

from __future__ import annotations

import math
from typing import Final

from wattune.planning.selection import Limit
from wattune.records import ProfileCell, ProfileTable

LEAST_SD: Final = 0.002
"""Of ln(seconds): what a step time is uncertain by, however long it is measured."""


def log_step_times(profile: ProfileTable, cap_w: float | None, margin_w: float = 0.0) -> dict[int, tuple[float, float]]:
    """Batch size -> mean and standard deviation of ln(seconds per sample) at its fastest measured point below the cap.

    A batch size that has none is not in it: it cannot be chosen, so nobody has to know how many samples it needs.
    Above the fastest point of a row, a guided profile may have left settings out that keep the cap, since no plausible
    number of samples would make them the best: the standard deviation then reaches to what such a setting might save.

    ``decisions.choice`` says which of them are still in contention, given what is known of their samples.
    Raises: InputError for a cap or a margin that is none.
    """
    limit = Limit(cap_w, margin_w)
    measured = profile.measured
    kept = [cell for cell in measured if limit.keeps(_known(cell.power_peak_w))]
    highest = max((cell.point.setting or 0.0 for cell in kept), default=0.0)
    closed = {_row(cell) for cell in measured if not limit.keeps(_known(cell.power_peak_w))}
    closed |= {(probe.batch_size, probe.micro_batch_size or probe.batch_size) for probe in profile.aborted}
    found: dict[int, tuple[float, float]] = {}
    for size in sorted({cell.batch_size for cell in kept}):
        best = min((cell for cell in kept if cell.batch_size == size), key=_seconds)
        sd, setting = _sd(best), best.point.setting
        if profile.strategy == "guided" and setting and _row(best) not in closed:
            sd = math.hypot(sd, math.log(highest / setting) / 2)
        found[size] = (math.log(_seconds(best)), sd)
    return found


def _sd(cell: ProfileCell) -> float:
    steps = cell.steps or 1
    return math.hypot(LEAST_SD, (cell.step_std_s or 0.0) / _known(cell.step_s) / math.sqrt(steps))


def _seconds(cell: ProfileCell) -> float:
    return _known(cell.step_s) / cell.batch_size


def _row(cell: ProfileCell) -> tuple[int, int]:
    return cell.batch_size, cell.micro_batch_size or cell.batch_size


def _known(figure: float | None) -> float:
    assert figure is not None  # a measured cell has all of them
    return figure
