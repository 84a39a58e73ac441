"""The plan for a cap that changes: one batch size for all of its caps, and the fastest setting under each.

Nothing couples one moment to the next, so a new choice of the whole point under each cap would be the fastest. Keeping
one batch size, that with the highest mean progress over all caps, loses a few percent of it, and the trajectory of the
training run stays that of a constant cap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from wattune.cap import SensorLimit
from wattune.cap_source import CapSource
from wattune.goal import TIME
from wattune.planning.candidates import candidates, fastest, within
from wattune.planning.confidence import feasible_log_times
from wattune.planning.objective import Objective
from wattune.planning.own_batch_size import TablePick, own_fields
from wattune.planning.plan import at_size, plan
from wattune.planning.table import Option, OptionRow, PlanningTable
from wattune.point import BatchShape
from wattune.records import Candidate, Plan, PlannedCap, ProfileTable, SampleEfficiency
from wattune.sample_efficiency.choice import LogTimes, OwnBatchSize, beside_own

FEW_POINTS = (
    "the profile has only points along one cap, so lower caps may have faster points than it knows; profile with "
    "--strategy full for a cap that changes"
)
"""Note of a plan from a profile that is not a full grid."""


class UnderCap(NamedTuple):
    """One of the caps: its watts as asked for, its share of the time, and the limit at the sensor if any is left."""

    asked_w: float
    share: float
    limit: SensorLimit | None


class ShapeProgress(NamedTuple):
    """The settings of one shape under the caps, None under those that it exceeds at any setting.

    ``rate``: mean over the time of the reference samples per second.
    """

    shape: BatchShape
    options: tuple[Option | None, ...]
    rate: float


def plan_over_caps(
    profile: ProfileTable,
    efficiency: SampleEfficiency | None = None,
    *,
    cap: CapSource,
    batch_size: int | None = None,
    memory_bytes: float | None = None,
) -> Plan:
    """Choose one batch size and micro-batch size for all caps, and the setting under each of them.

    The shape is the one with the most progress to the target per second, as a mean over the time of the caps: under
    each, at its fastest feasible point, and no progress if there is none. The user's own batch size is kept unless
    another one is surely faster, as for a constant cap. The plan's point is that under the highest cap, ``caps`` has
    all of them. ``predicted_s`` and ``predicted_j`` follow the caps from their beginning; the energy is without pauses.

    The rest is as in ``wattune.planning.plan``. Raises: as that does, for the highest cap; InputError.
    """
    highest = cap.highest()
    part, curve, _ = at_size(profile, efficiency, batch_size)
    top = highest.at_sensor(profile.supply, profile.sensor_window_s)
    fitting, too_large = within(part, memory_bytes)
    table = PlanningTable(fitting, curve, top.window_s)
    caps = under_caps(cap, profile)
    progress = {one.shape: one for row in table.rows if (one := _progress([row], caps)).rate}
    if not progress:  # which says why
        return plan(profile, efficiency, cap=highest, batch_size=batch_size, memory_bytes=memory_bytes)
    best, own = _chosen(table, caps, progress)
    result = plan(
        _of_shape(fitting, best.shape), efficiency, cap=highest, batch_size=batch_size, memory_bytes=memory_bytes
    )
    pick = best.options[-1]
    assert pick is not None  # the highest of the caps is feasible, or the plan would have raised
    objective = Objective(TIME, table, top)
    time_s, energy_j = _predicted(cap, caps, best, table.reference_samples)
    return result.model_copy(
        update={
            **_own(objective, pick, own, progress),
            "caps": tuple(_planned(one, option) for one, option in zip(caps, best.options, strict=True)),
            "of_clairvoyant": best.rate / _progress(table.rows, caps).rate,
            "over_constant": best.rate / best_constant(table, caps),
            "predicted_s": time_s,
            "predicted_j": energy_j,
            "p_best": None,
            "expected_loss": None,
            "candidates": tuple(
                _beside(candidate, best, progress)
                for candidate in candidates(table, top, lambda option: objective.why_not(option, pick), too_large)
            ),
            "baselines": (),
            "front": (),
            "predicted_above_rest_j": None,
            "gain_over_caps": (),
            "notes": (*result.notes, *(() if profile.strategy in (None, "full") else (FEW_POINTS,))),
            "run_by": None,  # `wattune guard` has one cap
        }
    )


def under_caps(cap: CapSource, profile: ProfileTable) -> tuple[UnderCap, ...]:
    """The caps with their limits at the profile's sensor, ascending. Raises: InputError."""
    return tuple(
        UnderCap(watts, share, cap.limit(watts, profile.supply, profile.sensor_window_s))
        for watts, share in cap.shares.items()
    )


def best_constant(table: PlanningTable, caps: tuple[UnderCap, ...]) -> float:
    """Reference samples per second of the best single point, which pauses while it exceeds the cap."""
    rates = (
        sum(one.share for one in caps if one.limit is not None and one.limit.allows(option.capped_w))
        / option.relative_time
        for option in table.at.values()
        if option.relative_time is not None
    )
    return max(rates)


def _progress(rows: list[OptionRow] | tuple[OptionRow, ...], caps: tuple[UnderCap, ...]) -> ShapeProgress:
    """Progress at the fastest feasible point of these rows under each cap; the shape is that of the first."""
    options = tuple(None if one.limit is None else fastest(rows, one.limit) for one in caps)
    rate = math.fsum(one.share * _rate(option) for one, option in zip(caps, options, strict=True))
    return ShapeProgress(rows[0].options[0].point.shape, options, rate)


def _rate(option: Option | None) -> float:
    return 0.0 if option is None or option.relative_time is None else 1.0 / option.relative_time


def _order(progress: ShapeProgress) -> tuple[float, int, int]:
    # Equally fast: the larger batch, as for a constant cap.
    return progress.rate, progress.shape.batch, progress.shape.micro


def _chosen(
    table: PlanningTable, caps: tuple[UnderCap, ...], progress: Mapping[BatchShape, ShapeProgress]
) -> tuple[ShapeProgress, OwnBatchSize | None]:
    """The best shape, or the best one of the user's own batch size unless another is surely faster."""
    best = max(progress.values(), key=_order)
    own_size, posterior = table.efficiency.own_batch_size, table.posterior
    own_shapes = [one for one in progress.values() if one.shape.batch == own_size]
    if own_size is None or not own_shapes or posterior is None or own_size in posterior.lost:
        return best, None
    own = beside_own(posterior, _log_times(table, caps), own=own_size, rival=best.shape.batch)
    return best if own.choice == own.rival else max(own_shapes, key=_order), own


def _log_times(table: PlanningTable, caps: tuple[UnderCap, ...]) -> LogTimes:
    """Mean and standard deviation of ln(seconds per sample) over the caps, by batch size.

    Samples per second add up over the time. Errors of the settings of one batch size are taken as the same error, which
    overstates that of their mean.
    """
    rates: dict[int, float] = {}
    errors: dict[int, float] = {}
    for one in caps:
        times = {} if one.limit is None else feasible_log_times(table, one.limit)
        for size, (log_s, sd) in times.items():
            rate = one.share * math.exp(-log_s)
            rates[size] = rates.get(size, 0.0) + rate
            errors[size] = errors.get(size, 0.0) + rate * sd
    return {size: (-math.log(rate), errors[size] / rate) for size, rate in rates.items()}


def _own(
    objective: Objective,
    pick: Option,
    own: OwnBatchSize | None,
    progress: Mapping[BatchShape, ShapeProgress],
) -> dict[str, object]:
    """The plan's fields on the user's own batch size; its time over the caps stands for that under one cap."""
    if own is None:
        return own_fields(objective, TablePick(pick))
    rate = max(one.rate for one in progress.values() if one.shape.batch == own.batch_size)
    return own_fields(objective, TablePick(pick, own, pick._replace(relative_time=1.0 / rate)))


def _of_shape(profile: ProfileTable, shape: BatchShape) -> ProfileTable:
    return profile.model_copy(
        update={
            "cells": tuple(cell for cell in profile.cells if cell.shape == shape),
            "aborted": tuple(probe for probe in profile.aborted if probe.shape == shape),
        }
    )


def _planned(one: UnderCap, option: Option | None) -> PlannedCap:
    limit_w = None if one.limit is None else one.limit.limit_w
    if option is None:
        return PlannedCap(asked_w=one.asked_w, share=one.share, cap_w=limit_w, feasible=False)
    return PlannedCap(
        asked_w=one.asked_w,
        share=one.share,
        cap_w=limit_w,
        feasible=True,
        **option.point.fields(),
        relative_time=option.relative_time,
        predicted_peak_w=option.cell.power_peak_w,
        predicted_window_w=option.capped_w if option.is_windowed else None,
    )


def _beside(candidate: Candidate, best: ShapeProgress, progress: Mapping[BatchShape, ShapeProgress]) -> Candidate:
    """The candidate; the reason against a feasible one of another shape is its progress over all caps."""
    if candidate.shape == best.shape or not candidate.feasible or candidate.shape not in progress:
        return candidate
    ratio = best.rate / progress[candidate.shape].rate
    why_not = "less than 1 % slower over the caps" if ratio < 1.01 else f"{ratio:.2f} x slower over the caps"
    return candidate.model_copy(update={"why_not": why_not})


def _predicted(
    cap: CapSource, caps: tuple[UnderCap, ...], best: ShapeProgress, samples: float | None
) -> tuple[float | None, float | None]:
    """Seconds and joules to the target; None if unknown, or if announced caps end in a pause before it."""
    if samples is None:
        return None, None
    at = {one.asked_w: option for one, option in zip(caps, best.options, strict=True)}
    if not cap.is_announced:
        energy_w = math.fsum(one.share * option.mean_w for one in caps if (option := at[one.asked_w]) is not None)
        return samples / best.rate, samples / best.rate * energy_w
    time_s, energy_j, left = 0.0, 0.0, samples
    while True:
        option, following_s = at[cap.level_w(cap.watts(time_s))], cap.next_change_s(time_s)
        rate, power_w = _rate(option), 0.0 if option is None else option.mean_w
        if rate and (following_s is None or left <= rate * (following_s - time_s)):
            return time_s + left / rate, energy_j + left / rate * power_w
        if following_s is None:
            return None, None
        left -= rate * (following_s - time_s)
        energy_j += power_w * (following_s - time_s)
        time_s = following_s
