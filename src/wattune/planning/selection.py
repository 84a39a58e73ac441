"""Algorithm 1: the fastest measured point that stays under a power cap.

Source: arXiv 2502.18323, Algorithm 1 (batch size and GPU frequency selection).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from wattune.cap import SensorLimit
from wattune.planning.table import Option, OptionRow


def fastest(rows: Iterable[OptionRow], limit: SensorLimit) -> Option | None:
    """The feasible option with the least relative time; None if there is none.

    Ties go to the lower energy, then the lower peak power, the larger batch size, the larger micro-batch size and the
    lower knobs, in this order, so the pick never depends on how the table is sorted.
    """
    best = [option for row in rows if (option := _fastest_of(row, limit)) is not None]
    return min(best, key=rank, default=None)


def rank(option: Option) -> tuple[Any, ...]:
    """Sort key of options, the smallest being the best; by step time if the samples are unknown."""
    time = option.step_s if option.relative_time is None else option.relative_time
    shape, knobs = option.point.shape, option.point.knobs
    return (time, time * option.mean_w, option.peak_w, -shape.batch, -shape.micro, knobs.order)


def _fastest_of(row: OptionRow, limit: SensorLimit) -> Option | None:
    options = row.options
    if options[0].relative_time is None:
        return None
    if not row.ordered:
        return min((option for option in options if limit.allows(option.peak_w)), key=rank, default=None)
    feasible = bisect_right(options, False, key=lambda option: not limit.allows(option.peak_w))
    return options[feasible - 1] if feasible else None
