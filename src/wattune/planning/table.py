"""A profile and an efficiency curve joined: what every measured cell is worth, arranged for the rules."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from wattune.errors import RecordError
from wattune.planning.gradients import learns_as
from wattune.records import (
    AtPoint,
    EfficiencyCurve,
    ProfileCell,
    ProfileTable,
    ReferencePower,
    ReferenceSet,
)

Place = tuple[int, int, float, float]
"""Batch size, micro-batch size, clock and power limit; 0 stands for an actuator that the device does not have."""


class Option(NamedTuple):
    """A measured cell and its ``relative_time``: device seconds per sample, times the relative samples.

    ``relative_time`` is None where no proxy run of the batch size reached the target. Powers in watts.
    Source: arXiv 2502.18323, section 3, equations 2 and 3.
    """

    cell: ProfileCell
    place: Place
    relative_time: float | None
    step_s: float
    mean_w: float
    peak_w: float


class Row(NamedTuple):
    """The options of one batch size and micro-batch size, by ascending setting.

    ``ordered``: peak power never falls and relative time always falls towards higher settings, so the highest
    setting that keeps a cap is the fastest one, and a binary search finds it.
    """

    batch_size: int
    options: tuple[Option, ...]
    ordered: bool


class Table:
    """Everything that the rules look at, arranged once, so that many caps can be asked of it.

    Raises: RecordError where profile and curve were made with different algorithms, nothing was measured, the
    curve lacks a measured batch size, or the figures are beyond anything that a device does.
    """

    def __init__(self, profile: ProfileTable, efficiency: EfficiencyCurve):
        if learns_as(profile.algorithm) != learns_as(efficiency.algorithm):
            raise RecordError(
                "the efficiency curve belongs to another training algorithm",
                value=efficiency.algorithm,
                allowed=f"{profile.algorithm}, as in the profile",
                hint="estimate it with the profile's algorithm",
            )
        measured = profile.measured
        if not measured and not profile.aborted:
            raise RecordError(
                "the profile has no measured cell",
                value=f"{len(profile.cells)} cells",
                allowed="at least one",
                hint="profile smaller batch sizes",
            )
        self.profile = profile
        self.reference_samples = efficiency.reference_samples
        needed = {b: efficiency.at(b).relative_samples for b in sorted({cell.batch_size for cell in measured})}
        self.rows = tuple(_rows(measured, needed, self.reference_samples or 1.0))
        self.at = {option.place: option for row in self.rows for option in row.options}
        self.settings = sorted({s for _, _, clock, limit in self.at if (s := clock or limit)})
        self.aborted = {place_of(probe): probe for probe in profile.aborted}
        self.worst_case_w = worst_case(profile.reference)
        # What fits in memory: also a probe that was stopped at the cap did. Ascending places end with the largest
        # micro-batch size of each batch size.
        self.largest_micro_batch = {place[0]: place[1] for place in sorted([*self.at, *self.aborted])}
        curve = {point.batch_size: point.relative_samples for point in efficiency.points}
        self.relative_samples = {b: curve.get(b) for b in self.largest_micro_batch}


def place_of(cell: AtPoint) -> Place:
    """The cell's place in a table; ascending places are ascending settings within a row."""
    batch_size = cell.batch_size
    return (batch_size, cell.micro_batch_size or batch_size, cell.clock_mhz or 0.0, cell.power_limit_w or 0.0)


def worst_case(reference: ReferenceSet | None) -> dict[float, float]:
    """Setting -> the highest peak power of all reference workloads, in watts.

    Only settings at which every reference workload was measured to the end: of any other the worst is unknown.
    """
    if reference is None:
        return {}
    workloads = {power.workload for power in reference.powers}
    peaks: dict[float, dict[str, float]] = {}
    for power in reference.powers:
        setting = _setting_of(power)
        if setting is not None and not power.stopped:
            peaks.setdefault(setting, {})[power.workload] = power.power_peak_w
    return {s: max(found.values()) for s, found in sorted(peaks.items()) if found.keys() == workloads}


def _setting_of(power: ReferencePower) -> float | None:
    return power.clock_mhz if power.clock_mhz is not None else power.power_limit_w


def _rows(
    cells: Iterable[ProfileCell], relative_samples: dict[int, float | None], reference_samples: float
) -> Iterable[Row]:
    rows: dict[tuple[int, int], list[Option]] = {}
    for cell in cells:
        place, relative = place_of(cell), relative_samples[cell.batch_size]
        step_s, mean_w, peak_w = cell.step_s, cell.power_mean_w, cell.power_peak_w
        assert step_s is not None  # a measured cell has all three
        assert mean_w is not None
        assert peak_w is not None
        time = None if relative is None else step_s / cell.batch_size * relative
        if time is not None and not (time > 1e-99 and max(time, 1.0) * reference_samples * max(mean_w, 1.0) < 1e99):
            raise RecordError(
                f"batch size {cell.batch_size} has figures that no device has",
                value=f"step_s {step_s:g}, power_mean_w {mean_w:g}, relative_samples {relative:g}",
                hint="measure it again",
            )
        rows.setdefault(place[:2], []).append(Option(cell, place, time, step_s, mean_w, peak_w))
    for (batch_size, _), options in sorted(rows.items()):
        options.sort(key=lambda option: option.place)
        rising = all(low.peak_w <= high.peak_w for low, high in pairwise(options))
        times = [option.relative_time for option in options if option.relative_time is not None]
        yield Row(batch_size, tuple(options), rising and all(slow > fast for slow, fast in pairwise(times)))
