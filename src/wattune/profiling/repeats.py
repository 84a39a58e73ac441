"""Repeated measurements of a cell of a profile, merged into one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wattune.point import OperatingPoint
from wattune.records import ProfileCell


def merged(cells: Sequence[ProfileCell]) -> tuple[ProfileCell, ...]:
    """Merge repeated cells into one per point, ascending: means weighted by steps or seconds, the highest peak."""
    by_point: dict[OperatingPoint, ProfileCell] = {}
    for cell in cells:
        before = by_point.get(cell.point)
        by_point[cell.point] = cell if before is None else _both(before, cell)
    return tuple(cell for _, cell in sorted(by_point.items(), key=lambda item: item[0].order))


def _both(one: ProfileCell, other: ProfileCell) -> ProfileCell:
    if other.step_s is None or other.power_mean_w is None or other.power_peak_w is None:
        return other  # it no longer fits
    if one.step_s is None or one.power_mean_w is None or one.power_peak_w is None:
        return one
    steps, more = one.steps or 1, other.steps or 1
    seconds, others = steps * one.step_s, more * other.step_s
    share, share_s = more / (steps + more), others / (seconds + others)
    return other.model_copy(
        update={
            "step_s": one.step_s + share * (other.step_s - one.step_s),
            "step_std_s": _spread(one.step_s, one.step_std_s, other.step_s, other.step_std_s, share),
            "power_mean_w": one.power_mean_w + share_s * (other.power_mean_w - one.power_mean_w),
            "power_std_w": _spread(
                one.power_mean_w, one.power_std_w, other.power_mean_w, other.power_std_w, share_s
            ),
            "power_peak_w": max(one.power_peak_w, other.power_peak_w),
            "power_window_w": max(filter(None, (one.power_window_w, other.power_window_w)), default=None),
            "steps": steps + more,
            "probes": (one.probes or 1) + (other.probes or 1),
            "throttled": tuple(dict.fromkeys((*one.throttled, *other.throttled))),
            "notices": tuple(dict.fromkeys((*one.notices, *other.notices))),
            "over_current": _sum(one.over_current, other.over_current),
            "swapped_bytes": _sum(one.swapped_bytes, other.swapped_bytes),
            "memory_bytes": max((m for m in (one.memory_bytes, other.memory_bytes) if m is not None), default=None),
            "temperature_c": max((t for t in (one.temperature_c, other.temperature_c) if t is not None), default=None),
        }
    )  # fmt: skip


def _spread(mean: float, sd: float | None, other: float, other_sd: float | None, share: float) -> float | None:
    """Standard deviation of two samples together, the second one having this share of all."""
    if sd is None or other_sd is None:
        return sd if other_sd is None else other_sd
    within = (1 - share) * sd**2 + share * other_sd**2
    return math.sqrt(within + share * (1 - share) * (other - mean) ** 2)


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
