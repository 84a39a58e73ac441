"""Strategies of a profile: the cells to measure, and their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from wattune.errors import InputError
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.records import AbortedProbe, ProfileCell

Measure = Callable[[OperatingPoint], ProfileCell | AbortedProbe]
"""Measures a point."""

Climbs = Sequence[Sequence[Knobs]]
"""See ``Device.climbs``."""

STRATEGIES: dict[str, str] = {
    "full": "every batch size at every clock",
    "staircase": "only along the cap: at most one cell for each batch size and each clock",
    "guided": "the cells that tell most about the fastest one under the cap",
}
"""Name of each strategy -> the cells that it measures."""


def shapes(batch_sizes: Sequence[int], micro_batch_sizes: Sequence[int]) -> list[BatchShape]:
    """Every batch size with every micro-batch size that divides it; in one forward pass if none does."""
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


def full(rows: Sequence[BatchShape], climbs: Climbs, measure: Measure) -> None:
    """Measure every shape at every setting; one that does not fit in memory only once."""
    for shape in rows:
        for knobs in chain(*climbs):
            if _out_of_memory(measure(OperatingPoint(shape, knobs))):
                break


def staircase(rows: Sequence[BatchShape], climbs: Climbs, measure: Measure) -> None:
    """Measure only along the cap, once for each of the device's ``climbs``.

    That is from the largest shape to the smallest, up to the first probe above the cap, beginning each shape at the
    last setting at which the one before it stayed under the cap. With n shapes, k settings of a climb and power that
    rises with both, a climb takes at most n + k - 1 measured cells, and one stopped probe a shape. A shape whose first
    probe is stopped, since readings need not be monotone, goes down until one is not; a shape that is stopped at every
    setting is given up, and the next begins at the lowest.

    Source: arXiv 2502.18323, section 3 (profiling under a known power limit).
    """
    # A forward pass is as large as its micro-batch, so that decides first which shape draws more.
    shapes = sorted(rows, key=lambda shape: (shape.micro, shape.batch), reverse=True)
    for climb in climbs:
        at = 0
        for shape in list(shapes):
            probe = measure(OperatingPoint(shape, climb[at]))
            if _out_of_memory(probe):
                shapes.remove(shape)
                continue
            if isinstance(probe, AbortedProbe):
                while at > 0 and isinstance(probe, AbortedProbe):
                    at -= 1
                    probe = measure(OperatingPoint(shape, climb[at]))
                continue
            while at + 1 < len(climb) and not isinstance(measure(OperatingPoint(shape, climb[at + 1])), AbortedProbe):
                at += 1


def _out_of_memory(probe: ProfileCell | AbortedProbe) -> bool:
    return isinstance(probe, ProfileCell) and probe.out_of_memory
