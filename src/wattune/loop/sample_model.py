"""Relative samples to target of each batch size: from a curve, from a prior and the gradient noise, or unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattune.errors import InputError
from wattune.records import SampleEfficiency
from wattune.records.session import EfficiencySource
from wattune.sample_efficiency.prior import GradientNorms, NoiseScale, relative_samples

UNKNOWN_SD = 0.1
"""Standard deviation of ln(relative samples) at a point of a curve without a band."""

FIRST = 64
"""Pairs of gradient norms that are measured at every step; later at every ``LATER``th step."""

LATER = 64


class SampleModel:
    """Relative samples to target of a session's batch sizes, and their source.

    A step of a job with several ranks has the samples of all of them, while batch sizes are per rank.
    """

    def __init__(
        self,
        batch_size: int,
        batch_sizes: Sequence[int],
        *,
        curve: SampleEfficiency | None,
        ranks: int = 1,
    ):
        self.batch_size = batch_size
        self.batch_sizes = tuple(batch_sizes)
        self.curve = curve
        self.ranks = ranks
        self.norms = GradientNorms()
        self.scale: NoiseScale | None = None
        self._due = 16
        self._pairs = 0
        self._is_open = curve is None and self.source != "the user's batch size"

    @property
    def source(self) -> EfficiencySource:
        """Source of the relative samples."""
        if len(self.batch_sizes) == 1:
            return "the user's batch size"
        if self.curve is not None:
            return "curve"
        return "prior" if self.scale is None else "prior and noise scale"

    @property
    def relative(self) -> dict[int, tuple[float, float]]:
        """Batch size -> mean of the relative samples, and standard deviation of their logarithm relative to the own."""
        if self.source == "the user's batch size":
            return {self.batch_size: (1.0, 0.0)}
        own = self.batch_size * self.ranks
        if self.curve is not None:
            return {size: _on_curve(self.curve, size * self.ranks, own) for size in self.batch_sizes}
        scale, sd = (None, 0.0) if self.scale is None else self.scale
        known = relative_samples([size * self.ranks for size in self.batch_sizes], scale, sd, reference=own)
        return {size // self.ranks: value for size, value in known.items()}

    def leave_out_above(self, batch_size: int) -> None:
        """Leave out all larger batch sizes from now on."""
        self.batch_sizes = tuple(size for size in self.batch_sizes if size <= batch_size)

    def wants(self, step: int) -> bool:
        """True if the gradient norms of this step would add information."""
        return self._is_open and (self._pairs < FIRST or not step % LATER)

    def add(self, small: int, small_square: float, big: int, big_square: float) -> bool:
        """Add squared norms of the mean gradient: over ``small`` samples of this rank, and over a step of ``big``
        samples per rank. Returns: True if there is a new noise estimate."""
        self.norms.add(small, small_square, big * self.ranks, big_square)
        self._pairs += 1
        self._due -= 1
        if self._due > 0:
            return False
        scale = self.norms.estimate()
        self._due = 16 if scale is None else 64
        self.scale = scale or self.scale
        return scale is not None

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return {"norms": self.norms.state_dict(), "pairs": self._pairs, "scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
        self.norms.load_state_dict(state["norms"])
        self._pairs = state["pairs"]
        self.scale = NoiseScale(*state["scale"]) if state["scale"] else None


def opened_curve(curve: Any) -> SampleEfficiency | None:
    """The curve, read from its file if a path is given. Raises: RecordError, InputError."""
    if curve is not None and not isinstance(curve, (SampleEfficiency, str, Path)):
        raise InputError("efficiency", value=type(curve).__name__, allowed="an efficiency record, or the path of one")
    if curve is None:
        return None
    record = curve if isinstance(curve, SampleEfficiency) else SampleEfficiency.load(curve)
    if not any(point.relative_samples for point in record.points):
        raise InputError("the efficiency curve has no values: every run was censored", value=record.workload)
    return record


def _on_curve(curve: SampleEfficiency, size: int, own: int) -> tuple[float, float]:
    """The relative samples at a batch size, and the standard deviation of their logarithm relative to ``own``.

    Interpolated linearly in logarithms, constant beyond the ends.
    """
    shares = _shares(curve, size)
    means = [math.log(point.relative_samples or 1.0) for point in curve.points]
    mean, apart = math.exp(float(shares @ means)), shares - _shares(curve, own)
    if curve.covariance is not None:
        variance = float(apart @ np.array(curve.covariance) @ apart)
    else:
        sds = [UNKNOWN_SD if point.log_sd is None else point.log_sd for point in curve.points]
        variance = float(apart**2 @ np.square(sds))
    return mean, math.sqrt(max(0.0, variance))


def _shares(curve: SampleEfficiency, size: int) -> NDArray[np.float64]:
    """The share of each point (points,) in the value at a batch size."""
    known = sorted(
        (place for place, point in enumerate(curve.points) if point.relative_samples),
        key=lambda place: curve.points[place].batch_size,
    )
    sizes = [math.log(curve.points[place].batch_size) for place in known]
    units = np.eye(len(curve.points))[known]
    return np.array([np.interp(math.log(size), sizes, unit) for unit in units.T])
