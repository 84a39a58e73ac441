"""Choice of the points that are drawn: a record may hold more than a screen shows or a browser draws quickly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from wattune.reporting.charts import Values

POINTS_PER_PIXEL = 1.2
"""Most points of a line for each pixel of its axis: more are not seen."""

DOTS = 150
"""Most markers of one kind, each an element with a text of its own."""


def thinned(values: Values, most: int) -> Sequence[int]:
    """Indexes of at most ``most`` values, ascending: the lowest, the highest and a gap of each of equal parts."""
    if len(values) <= most:
        return range(len(values))
    parts = most // 3
    ends = [len(values) * part // parts for part in range(parts + 1)]
    kept = set[int]()
    for begin, end in pairwise(ends):
        known = [(value, index) for index in range(begin, end) if (value := values[index]) is not None]
        if known:
            kept |= {min(known)[1], max(known)[1]}
        if len(known) < end - begin:
            kept.add(next(index for index in range(begin, end) if values[index] is None))
    return sorted(kept)
