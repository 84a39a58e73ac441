"""The longest row of the training data: if lengths vary, the limits on power and memory have to hold for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sized
from typing import Any

from wattune.integrations.row_groups import Inputs, longest_row, repeated, width
from wattune.online.rng_state import undisturbed

SCAN_S = 2.0
"""Most time spent on scanning a data set for its longest row before training begins."""


class LongestRow:
    """The longest row seen, and the extent of the search for it.

    ``how`` is "in the data set" if every row was scanned, else "seen so far". ``main`` is the name of the model's main
    input, ``collate`` the training loader's collator.
    """

    def __init__(self, main: str, collate: Callable[[list[Any]], Inputs] | None = None):
        self.how = "seen so far"
        self.width = 0
        self.varies = False
        self._main = main
        self._collate = collate
        self._item: Any = None
        self._batch: Inputs | None = None

    def scan(self, dataset: Any, column: str, within_s: float = SCAN_S) -> None:
        """Scan a data set that has a length; for any other, lengths are unknown until its batches come.

        ``column`` is the name of an optional column of lengths. The state of random number generators is preserved.
        """
        if self._collate is None or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
            return
        if column in (getattr(dataset, "column_names", None) or ()):
            lengths = [int(n) for n in dataset[column]]
        else:
            lengths = self._lengths(dataset, within_s)
        if not lengths:
            return
        at = max(range(len(lengths)), key=lengths.__getitem__)
        self._item = dataset[at]
        with undisturbed():
            self._take(self._collate([self._item]))
        self.how = "in the data set" if len(lengths) == len(dataset) else "seen so far"
        self.varies = min(lengths) < max(lengths)

    def see(self, batch: Inputs, width: int) -> bool:
        """Add a batch of ``width`` tokens per row; return True if it is wider than all batches before, if any."""
        if self.width and width != self.width:
            self.varies = True
        if width <= self.width:
            return False
        first = self.width == 0
        self._item = None
        self._take(batch)
        return not first

    def batch(self, size: int) -> Inputs:
        """A batch of ``size`` copies of the longest row."""
        if self._item is not None and self._collate is not None:
            with undisturbed():
                return self._collate([self._item] * size)
        assert self._batch is not None  # a batch was seen
        return repeated(self._batch, longest_row(self._batch), size)

    def _take(self, batch: Inputs) -> None:
        self._batch, self.width = batch, width(batch, self._main)

    def _lengths(self, dataset: Any, within_s: float) -> list[int]:
        begun_s = time.monotonic()
        lengths: list[int] = []
        with undisturbed():
            for index in range(len(dataset)):
                item = dataset[index]
                ids = item.get(self._main) if isinstance(item, Mapping) else None
                if not isinstance(ids, Sized) or getattr(ids, "ndim", 1) != 1:
                    return []
                lengths.append(len(ids))
                if time.monotonic() - begun_s > within_s:
                    break
        return lengths
