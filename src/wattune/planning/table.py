"""A profile joined with an efficiency curve: the value of every measured cell, arranged for the rules."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from wattune.cap import SensorLimit
from wattune.errors import RecordError
from wattune.point import Knobs, OperatingPoint
from wattune.records import (
    ProfileCell,
    ProfileTable,
    ReferencePower,
    SampleEfficiency,
)
from wattune.revision import name_of
from wattune.sample_efficiency.choice import posterior_of
from wattune.sample_efficiency.posterior import CurvePosterior
from wattune.search.observation import capped_powers, highest_later


class Option(NamedTuple):
    """A measured cell and its ``relative_time``: device seconds per sample, times the relative samples.

    ``relative_time`` is None if no proxy run of the batch size reached the target. Powers in watts; ``capped_w`` is the
    one that is compared with a cap: the highest reading or, ``is_windowed``, the highest mean over the cap's window.
    Source: arXiv 2502.18323, section 3, equations 2 and 3.
    """

    cell: ProfileCell
    point: OperatingPoint
    relative_time: float | None
    step_s: float
    mean_w: float
    capped_w: float
    is_windowed: bool


class PlanningTable:
    """Everything that the rules need, arranged once, so that a pick under another cap is cheap.

    Raises: RecordError if profile and curve were made with different algorithms, nothing was measured, the curve lacks
    a measured batch size, or the figures are beyond any real device. ``window_s``: that of the cap, see
    ``wattune.cap.SensorLimit``.
    """

    def __init__(self, profile: ProfileTable, efficiency: SampleEfficiency, window_s: float | None):
        if learns_as(profile.algorithm) != learns_as(efficiency.algorithm):
            raise RecordError(
                "the efficiency curve belongs to another training algorithm",
                value=efficiency.algorithm,
                allowed=f"{profile.algorithm}, as in the profile",
                hint="estimate it with the profile's algorithm",
            )
        cells = profile.measured
        if not cells and not profile.aborted:
            raise RecordError(
                "the profile has no measured cell",
                value=f"{len(profile.cells)} cells",
                allowed="at least one",
                hint="profile smaller batch sizes",
            )
        self.profile, self._window_s = profile, window_s
        self._fixed: dict[SensorLimit, Knobs | None] = {}
        self.efficiency = efficiency
        self.reference_samples = efficiency.reference_samples
        relative_samples = {b: efficiency.at(b).relative_samples for b in sorted({cell.batch_size for cell in cells})}
        options = _options(profile, window_s, relative_samples, self.reference_samples or 1.0)
        self.at = {option.point: option for option in sorted(options, key=lambda one: one.point.order)}
        self.combinations = sorted({point.knobs for point in self.at if point.knobs})
        self.aborted = {probe.point: probe for probe in profile.aborted}
        # Shapes that fit in memory, which those of stopped probes did as well. Ascending shapes end with the largest
        # micro-batch size of each batch size.
        self.largest_shape = {shape.batch: shape for shape in sorted(p.shape for p in (*self.at, *self.aborted))}
        self.curve = {point.batch_size: point.relative_samples for point in efficiency.points}
        self.relative_samples = {b: self.curve.get(b) for b in self.largest_shape}

    def own_reference(self, point: OperatingPoint) -> Option | None:
        """The profiled workload as it was measured among the references, at a point that a staircase left out."""
        profile, reference = self.profile, self.profile.reference
        own = f"{profile.workload} {profile.algorithm} "
        cells = (
            ProfileCell(**power.model_dump(include=set(ProfileCell.model_fields) & set(ReferencePower.model_fields)))
            for power in (reference.powers if reference else ())
            if power.workload.startswith(own) and power.step_s
        )
        part = profile.model_copy(update={"cells": tuple(cell for cell in cells if cell.point == point)[:1]})
        return next(iter(_options(part, self._window_s, self.relative_samples, self.reference_samples or 1.0)), None)

    def fixed_setting(self, limit: SensorLimit) -> Knobs | None:
        """The highest setting at which every reference workload stays under the limit; None if none is known to."""
        if limit.limit_w is None:  # every setting does, and no reference power has to be known
            return self.combinations[-1]
        if limit not in self._fixed:
            known = reversed(_references(self.profile).items())
            kept = (
                at
                for at, powers in known
                if all(limit.allows(reference_w(power, self.profile, self._window_s)) for power in powers)
            )
            self._fixed[limit] = next(kept, None)
        return self._fixed[limit]

    @cached_property
    def posterior(self) -> CurvePosterior | None:
        """The fit to the runs of the efficiency record, for the picks under all caps; None if it has no runs."""
        return posterior_of(self.efficiency)


def worst_case(profile: ProfileTable, window_s: float | None) -> dict[Knobs, float]:
    """Knobs -> the highest power of all reference workloads, in watts, in the terms of a cap over this window.

    That is the highest mean with the sensor's error, or without a window the highest reading that its noise allows: the
    clock that is chosen from it is trained at for hours, and must not depend on which readings were high. Only knobs
    at which every reference workload was measured to the end: at any others the worst is unknown.
    """
    return {
        knobs: max(reference_w(power, profile, window_s) for power in powers)
        for knobs, powers in _references(profile).items()
    }


def _references(profile: ProfileTable) -> dict[Knobs, list[ReferencePower]]:
    """Knobs, ascending, at which every reference workload was measured to the end -> its powers."""
    powers = () if profile.reference is None else profile.reference.powers
    known: dict[Knobs, dict[str, ReferencePower]] = {}
    for power in powers:
        if power.knobs and not power.stopped:
            known.setdefault(power.knobs, {})[power.workload] = power
    every = {power.workload for power in powers}
    return {knobs: list(by_name.values()) for knobs, by_name in sorted(known.items()) if by_name.keys() == every}


def reference_w(power: ReferencePower, profile: ProfileTable, window_s: float | None) -> float:
    """The highest power that hours at this reference may show, in watts, in the terms of a cap over this window."""
    if power.power_mean_w is None or power.step_s is None:  # an older file
        return power.power_peak_w if window_s is None else power.power_window_w or power.power_peak_w
    return highest_later(power, profile.sensor_window_s or 0.0, profile.cap_window_s, window_s)


def _options(
    profile: ProfileTable,
    window_s: float | None,
    relative_samples: dict[int, float | None],
    reference_samples: float,
) -> Iterable[Option]:
    capped_w = capped_powers(profile, window_s)
    for cell in profile.measured:
        relative, step_s, mean_w = relative_samples[cell.batch_size], cell.step_s, cell.power_mean_w
        assert step_s is not None  # a measured cell has both
        assert mean_w is not None
        time = None if relative is None else step_s / cell.batch_size * relative
        if time is not None and not (time > 1e-99 and max(time, 1.0) * reference_samples * max(mean_w, 1.0) < 1e99):
            raise RecordError(
                f"batch size {cell.batch_size} has figures beyond any real device",
                value=f"step_s {step_s:g}, power_mean_w {mean_w:g}, relative_samples {relative:g}",
                hint="measure it again",
            )
        yield Option(cell, cell.point, time, step_s, mean_w, capped_w(cell), window_s is not None)


NO_MATTER: dict[str, frozenset[str]] = {
    "backprop": frozenset({"checkpoint"}),
    "async-fgd": frozenset({"backend"}),
}
"""Algorithm -> its options that change the cost of a step, but not its gradient."""


def learns_as(algorithm: str) -> str:
    """The algorithm without the options that do not change the samples: equal results share a curve."""
    name, _, options = algorithm.partition(":")
    without = NO_MATTER.get(name_of(algorithm), frozenset())
    remaining = [option for option in options.split(",") if option and option.partition("=")[0] not in without]
    return name + (":" if remaining else "") + ",".join(remaining)
