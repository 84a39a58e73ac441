"""Which cells are measured, in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wattune.errors import InputError
from wattune.point import BatchShape
from wattune.records import AbortedProbe, ProfileCell

Measure = Callable[[BatchShape, float | None], ProfileCell | AbortedProbe]
"""Measures a shape at a setting (None on a device without one)."""

STRATEGIES: dict[str, str] = {
    "full": "every batch size at every clock",
    "staircase": "only along the cap: at most one cell for each batch size and each clock",
    "guided": "the cells that tell most about the fastest one that keeps the cap",
}
"""Name of each strategy and what it measures."""


def shapes(batch_sizes: Sequence[int], micro_batch_sizes: Sequence[int]) -> list[BatchShape]:
    """Every batch size with every micro-batch size that divides it; in one forward pass where none does."""
    return [BatchShape(b, m) for b in batch_sizes for m in [m for m in micro_batch_sizes if b % m == 0] or [b]]


def checked(strategy: str | None, limit_w: float | None, steps: int) -> str:
    """The strategy to use; if it is None, the staircase under a limit, else the full grid. Raises: InputError."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError("steps", value=steps, allowed="1 or more")
    if strategy is None:
        return "full" if limit_w is None else "staircase"
    if strategy not in STRATEGIES:
        raise InputError("strategy", value=strategy, allowed=", ".join(STRATEGIES))
    if strategy != "full" and limit_w is None:
        raise InputError(f"the strategy {strategy}", allowed="only with a cap", hint='give cap_w, or take "full"')
    return strategy


def full(rows: Sequence[BatchShape], settings: Sequence[float | None], measure: Measure) -> None:
    """Measure every shape at every setting; one that does not fit in memory only once."""
    for shape in rows:
        for setting in settings:
            if _out_of_memory(measure(shape, setting)):
                break


def staircase(rows: Sequence[BatchShape], settings: Sequence[float | None], measure: Measure) -> None:
    """Measure only along the cap: from the largest shape to the smallest, climbing to the first probe above the cap,
    and beginning each shape at the last setting that the one before it kept the cap at.

    With n shapes, k settings and power that rises with both, that is at most n + k - 1 measured cells, and one
    stopped probe a shape. A shape whose first probe is stopped, since readings need not be monotone, goes down until
    one is not; one that does so at no setting is left, and the next begins at the lowest.

    Source: arXiv 2502.18323, section 3 (profiling under a known power limit).
    """
    at = 0
    # A forward pass is as large as its micro-batch, so that decides first which shape draws more.
    for shape in sorted(rows, key=lambda shape: (shape.micro, shape.batch), reverse=True):
        probe = measure(shape, settings[at])
        if _out_of_memory(probe):
            continue
        if isinstance(probe, AbortedProbe):
            while at > 0 and isinstance(probe, AbortedProbe):
                at -= 1
                probe = measure(shape, settings[at])
            continue
        while at + 1 < len(settings) and not isinstance(measure(shape, settings[at + 1]), AbortedProbe):
            at += 1


def _out_of_memory(probe: ProfileCell | AbortedProbe) -> bool:
    return isinstance(probe, ProfileCell) and probe.out_of_memory
