"""How far a training has come after a tenth of its samples, as a share of the way to its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from wattune.records import Evaluation

TENTH: Final = 0.1
"""Share of a training's samples that is compared with what was expected, of its beginning and later on."""


def share_made(evaluations: Sequence[Evaluation], target: float, *, begin: float, end: float) -> float | None:
    """The share of the way from the metric after ``begin`` samples to the target that was made after ``end`` samples.

    It begins at an evaluation, since nobody evaluates an untrained model. None where the evaluations do not reach from
    ``begin`` to ``end``, where that is less than twice as far, or where the target was met at ``begin`` already.
    """
    at = [one.samples for one in evaluations]
    if not at or not at[0] <= begin <= end / 2 or end > at[-1]:
        return None
    # On a straight line between the evaluations around.
    metrics = [one.metric for one in evaluations]
    first, then = (float(np.interp(samples, at, metrics)) for samples in (begin, end))
    return None if first == target else (then - first) / (target - first)
