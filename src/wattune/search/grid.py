"""The points of a search: every row at every setting, and which of them are near the measured ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.search.surrogate import Array

Mask = NDArray[np.bool_]
Key = tuple["int | float | None", ...]

VALUES: Final = 64
"""Most values of a knob that a search uses; of a longer list it takes this many, evenly spread. They bound how close to
the cap it can come: with 24 of a card's clocks, the next one up often was 8 % faster."""

REACH: Final = 2.5
"""Bound on a step up: a knob's new value over the highest one measured on the row. The next value is always near."""


FAR: Final = 1.0
"""Doublings of a size beyond which a row's power is hardly known: its steps may fill a processor that others leave idle
half of the time."""


class Grid:
    """All points in a fixed order. ``row``, ``batch`` and ``micro`` (points,): index into ``rows``, and its sizes.

    ``level`` (points, knobs): index of each knob's value among those of that knob, ascending; ``value`` (points,
    knobs): the value itself. ``names``: of the knobs; ``several``: more than one has values to choose from. A device
    without knobs has one level, and 1 for its value.
    """

    def __init__(self, rows: Iterable[BatchShape], settings: Iterable[Knobs]):
        self.rows = tuple(sorted(set(rows)))
        self.settings = _thinned(sorted(settings))
        self.points = tuple(OperatingPoint(row, knobs) for row in self.rows for knobs in self.settings)
        self.row = np.repeat(np.arange(len(self.rows)), len(self.settings))
        self.batch = np.array([float(point.batch_size) for point in self.points])
        self.micro = np.array([float(point.micro_batch_size) for point in self.points])
        self.names = tuple(self.settings[0])
        values = np.array([tuple(knobs.values()) or (1.0,) for knobs in self.settings])
        levels = np.stack([np.unique(column, return_inverse=True)[1] for column in values.T], axis=1)
        self.value: Array = np.tile(values, (len(self.rows), 1))
        self.level: NDArray[np.intp] = np.tile(levels, (len(self.rows), 1))
        self.top = self.level.max(axis=0)
        self.several = int((self.top > 0).sum()) > 1
        # Of several clocks the first is that of the processor that draws most; the others decide little alone.
        self.safe = np.array([0, *(top // 2 for top in self.top[1:])])
        self._indices = {key_of(point): index for index, point in enumerate(self.points)}

    def index(self, point: OperatingPoint) -> int:
        """Index of the point in the order. Raises: KeyError for a point that is not on the grid."""
        return self._indices[key_of(point)]

    def of(self, key: Sequence[int | float | None]) -> int | None:
        """The index of the point with this key; None if it is not on the grid."""
        return self._indices.get(tuple(key))

    def from_here_up(self, index: int) -> Mask:
        """This point and those of its row with every knob as high or higher."""
        return np.asarray((self.row == self.row[index]) & (self.level >= self.level[index]).all(axis=1))

    def next_up(self, measured: Iterable[int]) -> Mask:
        """The points one value of one knob above the highest ones measured on each row."""
        found = np.zeros(len(self.points), dtype=bool)
        for top in self._tops(measured):
            up = self.level - self.level[top]
            found |= (self.row == self.row[top]) & (up >= 0).all(axis=1) & (up.sum(axis=1) == 1)
        return found

    def beyond(self, measured: Iterable[int]) -> Mask:
        """The points that are not at or below a measured one of their row, in every knob."""
        found = np.ones(len(self.points), dtype=bool)
        for top in self._tops(measured):
            found &= ~((self.row == self.row[top]) & (self.level <= self.level[top]).all(axis=1))
        return found

    def near(self, measured: Sequence[int]) -> Mask:
        """Points with every knob no higher than measured anywhere, or within a bounded step up on their own row.

        Of rows over ``FAR`` doublings larger than any measured one only the lowest setting.
        """
        highest = self.value[list(measured)].max(axis=0) if len(measured) else self.value.min(axis=0)
        near = (self.value <= highest).all(axis=1)
        if len(measured):
            known = list(measured)
            is_far = (self.batch > 2**FAR * self.batch[known].max()) | (self.micro > 2**FAR * self.micro[known].max())
            near &= ~is_far | (self.level <= self.safe).all(axis=1)
        for top in self._tops(measured):
            bound = np.maximum(highest, REACH * self.value[top]) if len(self.names) > 1 else REACH * self.value[top]
            near |= (self.row == self.row[top]) & (self.value <= bound).all(axis=1)
        return np.asarray(near | self.next_up(measured))

    def within_climb(self, measured: Sequence[int], share: float) -> Mask:
        """Points within a bounded climb from a measured one: ``share`` of a knob's values, at least two.

        Several knobs share a climb twice as long: half of one knob's bound leaves half of another's.
        """
        longest = share if len(self.top) == 1 else 2 * share
        steps = np.array([max(2, round(longest * (top + 1))) for top in self.top])
        found = np.zeros(len(self.points), dtype=bool)
        for one in measured or [int(np.flatnonzero((self.level == self.safe).all(axis=1))[0])]:
            found |= (np.maximum(0, self.level - self.level[one]) / steps).sum(axis=1) <= 1 + 1e-9
        return found

    def _tops(self, measured: Iterable[int]) -> list[int]:
        """The measured points that no other one of their row is above in every knob."""
        known = np.array(list(measured), dtype=np.intp)
        row, level = self.row[known], self.level[known]
        below = np.equal.outer(row, row) & (level[:, None] <= level[None, :]).all(axis=2)  # each one of itself as well
        return [int(one) for one in known[below.sum(axis=1) == 1]]


def key_of(point: OperatingPoint) -> Key:
    """The point as plain values."""
    return point.batch_size, point.micro_batch_size, *(point.knobs.values() or (None,))


def _thinned(settings: Sequence[Knobs]) -> tuple[Knobs, ...]:
    """The settings with as many values of each knob as a search uses, always with the lowest and the highest."""
    kept: dict[str, set[float]] = {}
    for name in settings[0]:
        values = sorted({knobs[name] for knobs in settings})
        if len(values) > VALUES:
            values = [values[round(i * (len(values) - 1) / (VALUES - 1))] for i in range(VALUES)]
        kept[name] = set(values)
    return tuple(knobs for knobs in settings if all(knobs[name] in values for name, values in kept.items()))
