"""Algorithm 1, the fastest measured point that stays under a power cap, and why every other candidate lost.

Source: arXiv 2502.18323, Algorithm 1 (batch size and GPU frequency selection).

The memory limit leaves a part of the profile, and says why the rest does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

from wattune.cap import SensorLimit
from wattune.errors import InputError, NoFeasiblePoint
from wattune.planning.table import Option, PlanningTable
from wattune.point import BatchShape
from wattune.records import AbortedProbe, AtPoint, Candidate, ProfileTable

CENSORED = "no proxy run reached the target"


def figures(option: Option, reference_samples: float | None) -> dict[str, Any]:
    """The fields of a Candidate with the point of this option and what it takes; None for unknown figures."""
    time = option.relative_time
    predicted_s = None if time is None or reference_samples is None else time * reference_samples
    return {
        **option.point.fields(),
        "relative_time": time,
        "predicted_s": predicted_s,
        "predicted_j": None if predicted_s is None else predicted_s * option.mean_w,
        "predicted_peak_w": option.cell.power_peak_w,
        "predicted_window_w": option.capped_w if option.is_windowed else None,
    }


def candidates(
    table: PlanningTable,
    limit: SensorLimit,
    why_not: Callable[[Option], str | None],
    too_large: tuple[Candidate, ...] = (),
) -> tuple[Candidate, ...]:
    """Every cell and every stopped probe of the profile: batch sizes, then knobs, ascending.

    ``why_not``: the reason why an option under the cap was not chosen. ``too_large``: those that do not fit in the
    memory limit, of which the table knows nothing."""
    rest = [
        Candidate(**cell.point.fields(), feasible=False, why_not="does not fit in memory")
        for cell in table.profile.cells
        if cell.out_of_memory
    ]
    rest += [
        Candidate(**point.fields(), feasible=False, why_not=why_stopped(probe, limit))
        for point, probe in table.aborted.items()
    ]
    entries = [
        (option.point.order, _measured(option, table.reference_samples, limit, why_not)) for option in table.at.values()
    ]
    entries += [(candidate.point.order, candidate) for candidate in (*rest, *too_large)]
    return tuple(candidate for _, candidate in sorted(entries, key=itemgetter(0)))


def why_above(power_w: float, limit: SensorLimit) -> str:
    """The reason why a point with this power is not feasible."""
    limit_w = limit.limit_w or 0.0
    if limit.margin_w:
        return f"{power_w:.4g} W and the margin of {limit.margin_w:g} W exceed the cap of {limit_w:g} W"
    # More digits if four would print the same number twice.
    digits = 9 if f"{power_w:.4g}" == f"{limit_w:.4g}" else 4
    return f"{power_w:.{digits}g} W exceeds the cap of {limit_w:.{digits}g} W"


def why_stopped(probe: AbortedProbe, limit: SensorLimit) -> str:
    """The reason why a point whose probe was stopped is not feasible."""
    if not limit.allows(probe.power_w):
        return f"above the cap: {probe.power_w:.4g} W read when the probe was stopped"
    return (
        f"stopped at {probe.power_w:.4g} W under a cap of {probe.cap_w:.4g} W, so its peak is unknown; "
        "profile again for this cap"
    )


def why_slower(option: Option, pick: Option) -> str | None:
    """The reason why a feasible option is not the chosen one; None if it is."""
    if option.point == pick.point:
        return None
    if option.relative_time is None or pick.relative_time is None:
        return CENSORED
    ratio = option.relative_time / pick.relative_time
    if ratio >= 1.01:
        return f"{ratio:.2f} x slower"
    reasons = ("less than 1 % slower", "as fast, but takes more energy", "as fast, but draws more power")
    worse = (mine > best for mine, best in zip(rank(option), rank(pick), strict=True))
    tie = "as fast; a tie goes to the larger batch, then to the lower setting"
    return next((reason for reason, is_worse in zip(reasons, worse, strict=False) if is_worse), tie)


def _measured(
    option: Option, reference_samples: float | None, limit: SensorLimit, why_not: Callable[[Option], str | None]
) -> Candidate:
    feasible = limit.allows(option.capped_w)
    why = why_not(option) if feasible else why_above(option.capped_w, limit)
    return Candidate(**figures(option, reference_samples), feasible=feasible, why_not=why)


def fastest(options: Iterable[Option], limit: SensorLimit) -> Option | None:
    """The feasible option with the least relative time; None if there is none.

    Ties go to the lower energy, then the lower peak power, the larger batch size, the larger micro-batch size and the
    lower knobs, in this order, so the pick never depends on how the table is sorted.
    """
    feasible = (one for one in options if one.relative_time is not None and limit.allows(one.capped_w))
    return min(feasible, key=rank, default=None)


def rank(option: Option) -> tuple[Any, ...]:
    """Sort key of options, the smallest being the best; by step time if the samples are unknown."""
    time = option.step_s if option.relative_time is None else option.relative_time
    shape, knobs = option.point.shape, option.point.knobs
    return (time, time * option.mean_w, option.capped_w, -shape.batch, -shape.micro, knobs.order)


def needed(profile: ProfileTable) -> dict[BatchShape, float]:
    """The most memory that a step takes, by shape; shapes with unknown memory are left out."""
    memory_bytes: dict[BatchShape, float] = {}
    for cell in profile.cells:
        if cell.memory_bytes is not None:
            shape = BatchShape.of(cell.batch_size, cell.micro_batch_size)
            memory_bytes[shape] = max(memory_bytes.get(shape, 0.0), cell.memory_bytes)
    return memory_bytes


def within(profile: ProfileTable, limit_bytes: float | None) -> tuple[ProfileTable, tuple[Candidate, ...]]:
    """The part of the profile that fits in ``limit_bytes`` (None: no limit), and the rest as infeasible candidates.

    A cell with unknown memory does not fit.

    Raises: InputError for a limit that is not above zero; NoFeasiblePoint if nothing fits.
    """
    if limit_bytes is None:
        return profile, ()
    if isinstance(limit_bytes, bool) or not 0 < limit_bytes < float("inf"):
        raise InputError("memory_bytes", value=limit_bytes, allowed="a positive number of bytes, or none")
    takes = needed(profile)

    def fits(cell: AtPoint) -> bool:
        return takes.get(cell.shape, float("inf")) <= limit_bytes

    fitting = tuple(cell for cell in profile.cells if cell.out_of_memory or fits(cell))
    if not any(not cell.out_of_memory for cell in fitting):
        if not takes:
            raise NoFeasiblePoint(
                "a memory limit with a profile that does not say how much memory a step takes",
                value=size(limit_bytes),
                hint="profile again, or plan without the limit",
            )
        shape, least = min(takes.items(), key=lambda item: (item[1], item[0]))
        raise NoFeasiblePoint(
            "no measured point fits in the memory limit",
            value=size(limit_bytes),
            allowed=f"the smallest, {shape}, needs {size(least)}",
            hint="raise the limit, or profile smaller micro-batches or another algorithm",
        )
    too_large = [cell for cell in profile.cells if not cell.out_of_memory and not fits(cell)]
    # The memory of a probe that was stopped at the cap may be unknown: it is not chosen in any case.
    stopped = [probe for probe in profile.aborted if probe.shape in takes and not fits(probe)]
    left_out = [
        Candidate(**cell.point.fields(), feasible=False, why_not=why_too_large(takes.get(cell.shape), limit_bytes))
        for cell in (*too_large, *stopped)
    ]
    aborted = tuple(probe for probe in profile.aborted if probe not in stopped)
    return profile.model_copy(update={"cells": fitting, "aborted": aborted}), tuple(left_out)


def why_too_large(needed_bytes: float | None, limit_bytes: float) -> str:
    """The reason why a point that takes this much memory is not feasible."""
    if needed_bytes is None:
        return f"the profile does not say how much memory it needs, and the limit is {size(limit_bytes)}"
    return f"needs {size(needed_bytes)}, above the limit of {size(limit_bytes)}"


def size(amount_bytes: float) -> str:
    """An amount of memory as text, in decimal units: "122 MB"."""
    factor, unit = (1e9, "GB") if amount_bytes >= 999.5e6 else (1e6, "MB") if amount_bytes >= 999.5e3 else (1e3, "KB")
    return f"{amount_bytes / factor:.3g} {unit}"
