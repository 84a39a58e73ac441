"""The rows that a session chooses from: batch sizes of an optimizer step and of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from wattune.errors import InputError
from wattune.records import SampleEfficiency
from wattune.search.search import Row

OCTAVES = 3
"""Batch sizes from so many halvings of the user's own to as many doublings."""

PARTS = (1, 2, 4, 8, 16)
"""Into how many micro-batches a batch is cut."""

STEPS_A_PASS = 4
"""A batch is never so large that a pass has fewer steps, but for the user's own."""


def batch_sizes(
    own: int, wanted: Sequence[int] | None, curve: SampleEfficiency | None, *, keep: bool, samples: int | None
) -> tuple[int, ...]:
    """The batch sizes of an optimizer step, ascending, the user's own among them. Raises: InputError."""
    if wanted is not None:
        if isinstance(wanted, (int, str)):
            raise InputError("batch_sizes", value=wanted, allowed="a list of them, such as [16, 32, 64]")
        for size in wanted:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise InputError("batch_sizes", value=size, allowed="whole numbers from 1 up")
        if keep and any(size != own for size in wanted):
            raise InputError(
                "keep_recipe=True keeps the loader's batch size", value=own, hint="leave out batch_sizes or keep_recipe"
            )
    if keep:
        return (own,)
    if wanted is not None:
        found = set(wanted)
    elif curve is not None:
        found = {point.batch_size for point in curve.points if point.relative_samples}
    else:
        found = {own << k for k in range(OCTAVES + 1)} | {own >> k for k in range(OCTAVES + 1)}
    most = max(own, samples // STEPS_A_PASS) if samples is not None else max(found)
    return tuple(sorted({own} | {size for size in found if 1 <= size <= most}))


def rows(sizes: Sequence[int], start: Row) -> list[Row]:
    """Every batch size with its micro-batch sizes, the start among them."""
    found = {start}
    for size in sizes:
        found |= {Row(size, -(-size // parts)) for parts in PARTS if size >= parts}
        if start.micro_batch_size <= size:
            found.add(Row(size, start.micro_batch_size))
    return sorted(found)
