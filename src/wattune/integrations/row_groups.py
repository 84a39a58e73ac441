"""Batches of one optimizer step as micro-batches of another size: rows cut out of a batch, or batches joined.

A batch is a Transformers collator's: a mapping of names to tensors whose first dimension is the row.

If lengths vary, the limits on power and memory have to hold for the longest row of the training data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from wattune.online.rng_state import undisturbed

Inputs = Mapping[str, Any]

FILLS = {"labels": -100, "shift_labels": -100, "attention_mask": 0, "token_type_ids": 0, "position_ids": 0}
"""Padding values to the right of shorter rows, by input; ``input_ids`` take the padding token.

A padding token is masked and has no label, so it changes no result.
"""


def rows(batch: Inputs) -> int | None:
    """Number of rows of a batch; None if its tensors differ in it, so that the batch cannot be cut."""
    counts = {len(v) for v in batch.values() if isinstance(v, list) or (isinstance(v, Tensor) and v.dim() > 0)}
    return counts.pop() if len(counts) == 1 else None


def masked(batch: Inputs) -> Tensor | None:
    """The attention mask of a batch, which is 0 at padding; None if it has none."""
    mask = batch.get("attention_mask")
    return mask if isinstance(mask, Tensor) else None


def tokens(batch: Inputs, main: str) -> int:
    """Number of tokens in a batch without padding, or of rows if it is not made of tokens."""
    mask = masked(batch)
    if mask is not None:
        return int(mask.count_nonzero())
    if is_text(batch, main):
        return int(batch[main].numel())
    return rows(batch) or 1


def is_text(batch: Inputs, main: str) -> bool:
    """Check if the main input of a batch consists of tokens: integers of shape (rows, width)."""
    ids = batch.get(main)
    return isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point()


def width(batch: Inputs, main: str) -> int:
    """Tokens per row, padding included; 1 if the batch is not made of tokens."""
    return int(batch[main].shape[1]) if is_text(batch, main) else 1


def cut(batch: Inputs, size: int) -> list[Inputs]:
    """Cut a batch into pieces of ``size`` rows, the last of which may be smaller; an indivisible batch stays whole."""
    count = rows(batch)
    if count is None or count <= size:
        return [batch]
    return [_select(batch, slice(begin, begin + size)) for begin in range(0, count, size)]


def repeated(batch: Inputs, row: int, size: int) -> Inputs:
    """Repeat one row of a batch ``size`` times; return the batch itself if it cannot be cut."""
    if rows(batch) is None:
        return batch
    one = _select(batch, slice(row, row + 1))
    return _like(one, {name: _times(value, size) for name, value in one.items()})


def longest_row(batch: Inputs) -> int:
    """Index of the row with the least padding."""
    mask = batch.get("attention_mask")
    return int(mask.flatten(1).sum(1).argmax()) if isinstance(mask, Tensor) and mask.dim() > 1 else 0


def joined(batches: Sequence[Inputs], main: str, pad: int) -> Inputs | None:
    """Join the rows of all batches in one; None if that would change a result."""
    first = batches[0]
    if any(rows(batch) is None or batch.keys() != first.keys() for batch in batches):
        return None
    values = {}
    for name in first:
        value = _joined([batch[name] for batch in batches], {**FILLS, main: pad}.get(name), "attention_mask" in first)
        if value is None and first[name] is not None:
            return None
        values[name] = value
    return _like(first, values)


def _joined(values: list[Any], fill: int | None, masked: bool) -> Any:
    first = values[0]
    if isinstance(first, list):
        return [entry for value in values for entry in value]
    if not isinstance(first, Tensor) or first.dim() == 0:
        same = all(torch.equal(v, first) if isinstance(v, Tensor) else v == first for v in values)
        return first if same else None
    if any(v.shape[1:] != first.shape[1:] for v in values):
        if fill is None or not masked or first.dim() != 2:
            return None
        length = max(v.shape[1] for v in values)
        values = [torch.nn.functional.pad(v, (0, length - v.shape[1]), value=fill) for v in values]
    return torch.cat(values)


def _select(batch: Inputs, part: slice) -> Inputs:
    def of(value: Any) -> Any:
        return value[part] if isinstance(value, list) or (isinstance(value, Tensor) and value.dim() > 0) else value

    return _like(batch, {name: of(value) for name, value in batch.items()})


def _times(value: Any, size: int) -> Any:
    if isinstance(value, list):
        return value * size
    if isinstance(value, Tensor) and value.dim() > 0:
        return value.repeat(size, *[1] * (value.dim() - 1))
    return value


def _like(original: Inputs, values: dict[str, Any]) -> Inputs:
    # The collator's own type, as the Trainer does too: a custom loss may use more of it than its entries.
    batch: Inputs = type(original)(values)  # type: ignore[call-arg]
    return batch


WHOLE = "in the data set"
"""The longest row of all is known, since every row was scanned."""

SCAN_S = 2.0
"""Most time spent on scanning a data set for its longest row before training begins."""


class LongestRow:
    """The longest row seen, and the extent of the search for it.

    ``how`` is ``WHOLE`` if every row was scanned, else "seen so far". ``main`` is the name of the model's main
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
        has_rows = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")
        if self._collate is None or not has_rows or isinstance(dataset, IterableDataset):
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
        self.how = WHOLE if len(lengths) == len(dataset) else "seen so far"
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
