"""The evaluations of a training run, in 40 bytes each: a run of a week has tens of thousands."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from wattune.records import Evaluation

FIELDS: Final = ("samples", "metric", "time_s", "energy_j", "loss")


class EvaluationLog:
    """Evaluations that are only ever appended to. ``saved``: the ``state`` of an earlier run, or a list of before."""

    def __init__(self, saved: Tensor | Iterable[dict[str, Any]] = ()):
        self._numbers = array("d")
        self.last: Evaluation | None = None
        if isinstance(saved, Tensor):
            self._numbers.frombytes(saved.numpy().tobytes())
            self.last = next(iter(self.all[-1:]), None)
        else:
            for one in saved:
                self.append(Evaluation(**one))

    def __len__(self) -> int:
        return len(self._numbers) // len(FIELDS)

    def append(self, evaluation: Evaluation) -> None:
        """Add the newest evaluation."""
        values = (getattr(evaluation, name) for name in FIELDS)
        self._numbers.extend(math.nan if value is None else value for value in values)
        self.last = evaluation

    @property
    def all(self) -> tuple[Evaluation, ...]:
        """The evaluations, oldest first."""
        rows = zip(*[iter(self._numbers)] * len(FIELDS), strict=True)
        values = ([None if math.isnan(value) else value for value in row] for row in rows)
        return tuple(Evaluation(**dict(zip(FIELDS, row, strict=True))) for row in values)

    @property
    def state(self) -> Tensor:
        """A row of ``FIELDS`` for each evaluation, unknown values as NaN: no JSON, which would take ever longer."""
        return torch.from_numpy(np.array(self._numbers).reshape(-1, len(FIELDS)))
