"""How many samples each batch size needs, from what is there: a curve, a prior and the gradient noise, or nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattune.errors import InputError
from wattune.records import EfficiencyPoint, SampleEfficiency
from wattune.records.session import EfficiencySource
from wattune.sample_efficiency.gradient_noise import GradientNorms, NoiseScale
from wattune.sample_efficiency.prior import relative_samples

UNKNOWN_SD = 0.1
"""Standard deviation of ln(relative samples) that a point of a curve without a band is given."""

FIRST = 64
"""Pairs of gradient norms that are taken at every occasion; later at every ``LATER``th step."""

LATER = 64


class SampleModel:
    """What is known of the batch sizes of a session, and from what."""

    def __init__(self, batch_size: int, batch_sizes: Sequence[int], *, keep: bool, curve: SampleEfficiency | None):
        self.batch_size = batch_size
        self.batch_sizes = tuple(batch_sizes)
        self.curve = curve
        self.keep = keep
        self.norms = GradientNorms()
        self.scale: NoiseScale | None = None
        self._due = 16
        self._pairs = 0
        self._is_open = curve is None and self.source != "the user's batch size"

    @property
    def source(self) -> EfficiencySource:
        """Where it comes from."""
        if self.keep or len(self.batch_sizes) == 1:
            return "the user's batch size"
        if self.curve is not None:
            return "curve"
        return "prior" if self.scale is None else "prior and noise scale"

    @property
    def relative(self) -> dict[int, tuple[float, float]]:
        """Batch size -> mean of the relative samples, standard deviation of their logarithm."""
        if self.source == "the user's batch size":
            return {self.batch_size: (1.0, 0.0)}
        if self.curve is not None:
            return {size: _on_curve(self.curve, size) for size in self.batch_sizes}
        scale, sd = (None, 0.0) if self.scale is None else self.scale
        return relative_samples(self.batch_sizes, scale, sd, reference=self.batch_size)

    def wants(self, step: int) -> bool:
        """Whether the gradient norms of this step would say something that is not known."""
        return self._is_open and (self._pairs < FIRST or not step % LATER)

    def add(self, small: int, small_square: float, big: int, big_square: float) -> bool:
        """Squared norms of the mean gradient of two sizes; whether there is now something new to plan with."""
        self.norms.add(small, small_square, big, big_square)
        self._pairs += 1
        self._due -= 1
        if self._due > 0:
            return False
        found = self.norms.estimate()
        self._due = 16 if found is None else 64
        self.scale = found or self.scale
        return found is not None

    def state_dict(self) -> dict[str, Any]:
        """What later sample_model needs, as JSON values."""
        return {"norms": self.norms.state_dict(), "pairs": self._pairs, "scale": self.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.norms.load_state_dict(state["norms"])
        self._pairs = state["pairs"]
        self.scale = NoiseScale(*state["scale"]) if state["scale"] else None


def opened_curve(curve: Any) -> SampleEfficiency | None:
    """The curve, read from its file where that is given. Raises: RecordError, InputError."""
    if curve is not None and not isinstance(curve, (SampleEfficiency, str, Path)):
        raise InputError("efficiency", value=type(curve).__name__, allowed="an efficiency record, or the path of one")
    found = curve if curve is None or isinstance(curve, SampleEfficiency) else SampleEfficiency.load(curve)
    if found is not None and not any(point.relative_samples for point in found.points):
        raise InputError("the efficiency curve says nothing: every run was censored", value=found.workload)
    return found


def _on_curve(curve: SampleEfficiency, size: int) -> tuple[float, float]:
    """The curve at a batch size: on a straight line between its neighbours in logarithms, level beyond the ends."""
    points = sorted((p for p in curve.points if p.relative_samples), key=lambda p: p.batch_size)
    low = max((p for p in points if p.batch_size <= size), key=lambda p: p.batch_size, default=points[0])
    high = min((p for p in points if p.batch_size >= size), key=lambda p: p.batch_size, default=points[-1])
    (low_mean, low_sd), (high_mean, high_sd) = _said(low), _said(high)
    if low.batch_size == high.batch_size:
        return low_mean, low_sd
    share = math.log(size / low.batch_size) / math.log(high.batch_size / low.batch_size)
    return low_mean ** (1 - share) * high_mean**share, max(low_sd, high_sd)


def _said(point: EfficiencyPoint) -> tuple[float, float]:
    assert point.relative_samples is not None
    return point.relative_samples, UNKNOWN_SD if point.log_sd is None else point.log_sd
