"""The memory limit, beside the cap: the part of a profile that fits, and why the rest does not."""

from __future__ import annotations

from wattune.errors import InputError, NoFeasiblePoint
from wattune.point import BatchShape
from wattune.records import AtPoint, Candidate, ProfileTable


def needed(profile: ProfileTable) -> dict[BatchShape, float]:
    """The most memory that a step takes, by shape; shapes with unknown memory are left out."""
    memory_bytes: dict[BatchShape, float] = {}
    for cell in profile.cells:
        if cell.memory_bytes is not None:
            memory_bytes[cell.shape] = max(memory_bytes.get(cell.shape, 0.0), cell.memory_bytes)
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
        raise _nothing(profile, takes, limit_bytes)
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


def _nothing(profile: ProfileTable, takes: dict[BatchShape, float], limit_bytes: float) -> NoFeasiblePoint:
    if not takes:
        return NoFeasiblePoint(
            "a memory limit with a profile that does not say how much memory a step takes",
            value=size(limit_bytes),
            hint="profile again, or plan without the limit",
        )
    shape, least = min(takes.items(), key=lambda item: (item[1], item[0]))
    return NoFeasiblePoint(
        "no measured point fits in the memory limit",
        value=size(limit_bytes),
        allowed=f"the smallest, {shape}, needs {size(least)}",
        hint="raise the limit, or profile smaller micro-batches or another algorithm",
    )
