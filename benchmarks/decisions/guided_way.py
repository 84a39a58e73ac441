"""The guided profile on a rig, as `wattune profile --strategy guided` runs it, and its loop with the proxy."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.decisions import estimators
from benchmarks.decisions.boards import Cell, Reading, Rig
from benchmarks.decisions.estimators import Bank, Decision
from wattune.point import BatchShape, OperatingPoint
from wattune.profiling.guided import WINDOWS, Guided, guided
from wattune.profiling.journal import Journal
from wattune.records import AbortedProbe, ProfileCell, ProfileCost
from wattune.sample_efficiency.posterior import CurvePosterior
from wattune.sample_efficiency.prior import relative_samples
from wattune.search.observation import capped_power

NEVER = 1e6
"""Relative samples of a batch size whose runs all missed the target."""

Samples = Mapping[int, float]
"""Batch size -> samples to the target, up to a factor."""

Believed = dict[int, tuple[float, float]]
"""Batch size -> relative samples, and the standard deviation of their logarithm."""


class Profile:
    """A guided profile that can continue with better sample estimates."""

    def __init__(self, rig: Rig, *, strict: bool = False):
        self.rig, self._strict = rig, strict
        self._notebook = Journal(None, rig, None)  # type: ignore[arg-type]  # only a file needs its beginning

    def proceed(self, samples: Believed, *, by_curve: bool) -> Guided:
        """Probe until no further probe is worth its time."""
        rows = [BatchShape.of(size) for size in self.rig.board.batch_sizes]
        return guided(
            self.rig,
            rows,
            self._notebook,
            self._measure,
            limit=self.rig.limit,
            samples=samples,
            by_curve=by_curve,
            strict=self._strict,
            beyond=lambda point: None,  # what stopped probes read is enough for the error
        )

    def _measure(self, point: OperatingPoint) -> None:
        self._notebook.measure(None, self, point)

    def measure(self, point: OperatingPoint) -> tuple[ProfileCell | AbortedProbe, ProfileCost]:
        """Probe one cell, in the form that the journal expects."""
        cell, before_s = Cell(point.batch_size, point.knobs["clock_mhz"]), self.rig.seconds
        read = self.rig.probe(cell, windows=WINDOWS)
        cost = ProfileCost(
            time_s=self.rig.seconds - before_s, energy_j=0.0, above_cap_s=0.0, probes=1, cap_w=self.rig.cap_w
        )
        return result(self.rig, cell, read), cost


def guided_way(rig: Rig, samples: Samples, *, strict: bool = False) -> Cell | None:
    """The pick of a profile with exactly known samples."""
    profile = Profile(rig, strict=strict)
    return _pick(profile.proceed({size: (one, 0.0) for size, one in samples.items()}, by_curve=True))


def together(rig: Rig, bank: Bank) -> Cell | None:
    """Profile by the prior, train the proxy at the batch sizes that may be best, and continue with the result."""
    profile = Profile(rig)
    first = profile.proceed(relative_samples(rig.board.batch_sizes), by_curve=False)
    times: dict[int, float] = {}
    for cell in first.cells:
        if cell.step_s is not None and capped_w(rig, cell) <= rig.cap_w:
            times[cell.batch_size] = min(times.get(cell.batch_size, math.inf), cell.step_s / cell.batch_size)
    decision = estimators.ours(bank, times) if times else Decision(None)
    if decision.curve is None or not any(decision.curve.runs.values()):
        return _pick(first)
    return _pick(profile.proceed(believed(decision.curve), by_curve=True))


def believed(curve: CurvePosterior) -> Believed:
    """The curve in the form that a guided profile takes, relative to the middle batch size, where it starts."""
    start = len(curve.batch_sizes) // 2
    beliefs = {}
    for place, size in enumerate(curve.batch_sizes):
        c = curve.covariance
        variance = c[place, place] + c[start, start] - 2 * c[place, start]
        if size in curve.lost:
            beliefs[size] = (NEVER, 0.0)
        else:
            beliefs[size] = (
                math.exp(float(curve.mean[place] - curve.mean[start])),
                math.sqrt(max(0.0, float(variance))),
            )
    return beliefs


def _pick(end: Guided) -> Cell | None:
    pick = end.guidance.pick
    return None if pick is None else Cell(pick.batch_size, pick.clock_mhz or 0.0)


def capped_w(rig: Rig, cell: ProfileCell) -> float:
    """The power of a measured cell that is compared with the cap, as a plan does."""
    return capped_power(cell, rig.sensor.window_s, rig.limit.window_s, rig.limit.window_s)


def _cell(cell: Cell, reading: Reading) -> ProfileCell:
    return ProfileCell(batch_size=cell.batch_size, clock_mhz=cell.clock_mhz, **reading._asdict())


def result(rig: Rig, cell: Cell, reading: Reading | float) -> ProfileCell | AbortedProbe:
    """A reading in the form of a profile's cell or aborted probe."""
    if isinstance(reading, Reading):
        return _cell(cell, reading)
    return AbortedProbe(**cell._asdict(), cap_w=rig.cap_w, power_w=reading)
