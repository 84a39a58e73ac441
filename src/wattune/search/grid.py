"""The points of a search: every row at every setting, and which of them are near the measured ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wattune.point import BatchShape, Knobs, OperatingPoint

Mask = NDArray[np.bool_]
Key = tuple[int, int, "float | None"]

SETTINGS: Final = 24
"""Most settings that a search uses; of a longer list it takes this many, evenly spread."""

REACH: Final = 2.5
"""Bound on a step up: the new setting over the highest one measured on the row. The next setting up is always near."""


class Grid:
    """All points in a fixed order; ``row``, ``level``, ``batch``, ``micro`` and ``setting`` (points,) locate each one.

    ``row`` is an index into ``rows``, ``level`` one into ``settings``; ``setting`` is the value of the one knob, 1 if
    the device has none.
    """

    def __init__(self, rows: Iterable[BatchShape], settings: Iterable[Knobs]):
        self.rows = tuple(sorted(set(rows)))
        self.settings = _thinned(sorted(settings))
        self.points = tuple(OperatingPoint(row, knobs) for row in self.rows for knobs in self.settings)
        self.row = np.repeat(np.arange(len(self.rows)), len(self.settings))
        self.level = np.tile(np.arange(len(self.settings)), len(self.rows))
        self.batch = np.array([float(point.batch_size) for point in self.points])
        self.micro = np.array([float(point.micro_batch_size) for point in self.points])
        self.setting = np.array([point.knobs.first or 1.0 for point in self.points])
        self._indices = {point: index for index, point in enumerate(self.points)}
        self._by_key = {self.key(index): index for index in range(len(self.points))}

    def index(self, point: OperatingPoint) -> int:
        """Index of the point in the order. Raises: KeyError for a point that is not on the grid."""
        return self._indices[point]

    def key(self, index: int) -> Key:
        """The point with this index, as plain values."""
        point = self.points[index]
        return point.batch_size, point.micro_batch_size, point.knobs.first

    def of(self, key: Sequence[int | float | None]) -> int | None:
        """The index of the point with this key; None if it is not on the grid."""
        return self._by_key.get(tuple(key))  # type: ignore[arg-type]

    def from_here_up(self, index: int) -> Mask:
        """This point and those above it on its row."""
        return np.asarray((self.row == self.row[index]) & (self.level >= self.level[index]))

    def at_least(self, row: BatchShape) -> Mask:
        """All points of rows whose batch and micro-batch are both at least as large."""
        return np.asarray((self.batch >= row.batch) & (self.micro >= row.micro))

    def next_up(self, measured: Sequence[int]) -> Mask:
        """The next setting above the highest one measured on each row."""
        found = np.zeros(len(self.points), dtype=bool)
        for top in self._tops(measured):
            found |= (self.row == self.row[top]) & (self.level == self.level[top] + 1)
        return found

    def near(self, measured: Sequence[int]) -> Mask:
        """Points at a setting no higher than the highest one measured, or within a bounded step up on their own row."""
        lowest = float(self.setting.min())
        near = self.setting <= max((float(self.setting[index]) for index in measured), default=lowest)
        for top in self._tops(measured):
            near |= (self.row == self.row[top]) & (self.setting <= REACH * self.setting[top])
        return np.asarray(near | self.next_up(measured))

    def _tops(self, measured: Sequence[int]) -> list[int]:
        tops: dict[int, int] = {}
        for index in sorted(measured):  # settings ascend along a row
            tops[int(self.row[index])] = index
        return list(tops.values())


def distance(row: BatchShape, start: BatchShape) -> tuple[float, float]:
    """Distance in doublings of the batch size, then in doublings of the micro-batch size."""
    return (
        abs(math.log2(row.batch / start.batch)),
        abs(math.log2(row.micro / start.micro)),
    )


def _thinned(settings: Sequence[Knobs]) -> tuple[Knobs, ...]:
    """At most ``SETTINGS`` of the settings, always with the lowest and the highest."""
    if len(settings) <= SETTINGS:
        return tuple(settings)
    return tuple(settings[round(i * (len(settings) - 1) / (SETTINGS - 1))] for i in range(SETTINGS))
