"""Algorithm 1: the fastest measured point that keeps a power cap.

Source: arXiv 2502.18323, Algorithm 1 (batch size and GPU frequency selection).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from wattune.errors import InputError
from wattune.planning.table import Option, Row


@dataclass(frozen=True)
class Limit:
    """A cap in watts (None: no cap) and a margin that is added to every peak power before it is compared.

    Raises: InputError for a cap that is not a positive number and a margin that is negative or not a number.
    """

    cap_w: float | None
    margin_w: float = 0.0

    def __post_init__(self) -> None:
        if self.cap_w is not None and not (_is_number(self.cap_w) and self.cap_w > 0):
            raise InputError("cap_w", value=self.cap_w, allowed="a positive number of watts, or none")
        if not (_is_number(self.margin_w) and self.margin_w >= 0):
            raise InputError("margin_w", value=self.margin_w, allowed="a number of watts, 0 or more")

    def keeps(self, power_peak_w: float) -> bool:
        """Whether a point with this peak power is feasible."""
        return self.cap_w is None or power_peak_w + self.margin_w <= self.cap_w


def fastest(rows: Iterable[Row], limit: Limit) -> Option | None:
    """The feasible option with the least relative time; None where there is none.

    Ties go to the lower energy, then the lower peak power, the larger batch size, the larger micro-batch size and the
    lower setting, in this order, so the pick never depends on how the table is sorted.
    """
    found = [option for row in rows if (option := _fastest_of(row, limit)) is not None]
    return min(found, key=rank, default=None)


def rank(option: Option) -> tuple[float, ...]:
    """What options are compared by, the smallest being the best; by step time where the samples are unknown."""
    time = option.step_s if option.relative_time is None else option.relative_time
    batch_size, micro_batch_size, clock_mhz, power_limit_w = option.place
    return (time, time * option.mean_w, option.peak_w, -batch_size, -micro_batch_size, clock_mhz, power_limit_w)


def _fastest_of(row: Row, limit: Limit) -> Option | None:
    options = row.options
    if options[0].relative_time is None:
        return None
    if not row.ordered:
        return min((option for option in options if limit.keeps(option.peak_w)), key=rank, default=None)
    feasible = bisect_right(options, False, key=lambda option: not limit.keeps(option.peak_w))
    return options[feasible - 1] if feasible else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
