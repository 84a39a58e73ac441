"""The partition of a sequence of parts into modules, with the least possible cost of the most expensive module.

A pipeline runs at the pace of its slowest module.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

from wattune.errors import InputError


def cut(costs: Sequence[float], modules: int, unit: str = "parts") -> list[int]:
    """Ends of ``modules`` contiguous groups of parts, none empty, with the least possible largest sum of costs.

    Of equally good cuts, the cut with the earliest ends wins. ``unit``: what an error calls the parts. Raises:
    InputError for more modules than parts.
    """
    if not 1 <= modules <= len(costs):
        allowed = f"1 to {len(costs)}, the number of the model's {unit}"
        raise InputError("number of modules", value=modules, allowed=allowed)
    before = [0.0, *accumulate(costs)]  # before[i]: cost of the first i parts

    @cache
    def best(count: int, groups: int) -> tuple[float, list[int]]:
        """The cost of the most expensive of ``groups`` groups of the first ``count`` parts, and their ends."""
        if groups == 1:
            return before[count], [count]
        starts = range(groups - 1, count)  # of the last group
        highest, start = min((max(best(i, groups - 1)[0], before[count] - before[i]), i) for i in starts)
        return highest, [*best(start, groups - 1)[1], count]

    return best(len(costs), modules)[1]
