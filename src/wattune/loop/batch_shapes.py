"""The rows that a session chooses from: batch sizes of an optimizer step and micro-batch sizes of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from wattune.errors import InputError
from wattune.point import BatchShape
from wattune.records import SampleEfficiency

OCTAVES = 3
"""Number of times that the user's own batch size is halved, and doubled."""

PARTS = (1, 2, 4, 8, 16)
"""Numbers of micro-batches that a batch is split into."""

STEPS_A_PASS = 4
"""Least number of steps per pass, which limits the batch sizes above the user's own."""


def batch_sizes(
    own: int,
    wanted: Sequence[int] | None,
    curve: SampleEfficiency | None,
    *,
    keep: bool,
    samples: int | None,
    ranks: int = 1,
) -> tuple[int, ...]:
    """The batch sizes of an optimizer step, ascending, including the user's own; ``ranks`` steps are taken at once,
    whose samples are those of one step on the curve. Raises: InputError."""
    if wanted is not None:
        if isinstance(wanted, (int, str)):
            raise InputError("batch_sizes", value=wanted, allowed="a list of sizes, such as [16, 32, 64]")
        for size in wanted:
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise InputError("batch_sizes", value=size, allowed="whole numbers, 1 or more")
        if keep and any(size != own for size in wanted):
            raise InputError(
                "keep_recipe=True keeps the loader's batch size", value=own, hint="leave out batch_sizes or keep_recipe"
            )
    if keep:
        return (own,)
    if wanted is not None:
        sizes = set(wanted)
    elif curve is not None:
        sizes = {point.batch_size // ranks for point in curve.points if point.relative_samples}
    else:
        sizes = {own << k for k in range(OCTAVES + 1)} | {own >> k for k in range(OCTAVES + 1)}
    most = max(own, samples // STEPS_A_PASS) if samples is not None else max(sizes)
    return tuple(sorted({own} | {size for size in sizes if 1 <= size <= most}))


def rows(sizes: Sequence[int], start: BatchShape) -> list[BatchShape]:
    """Each batch size with its micro-batch sizes, including ``start``."""
    shapes = {start}
    for size in sizes:
        shapes |= {BatchShape(size, -(-size // parts)) for parts in PARTS if size >= parts}
        if start.micro <= size:
            shapes.add(BatchShape(size, start.micro))
    return sorted(shapes)
