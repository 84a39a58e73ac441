"""A limit of memory beside the cap: what of a profile fits, and why the rest does not."""

from __future__ import annotations

from wattune.errors import InputError, NoPoint
from wattune.planning.candidates import position
from wattune.records import AtPoint, Candidate, ProfileTable

Row = tuple[int, int]
"""Batch size and micro-batch size: what a step takes depends on nothing else."""


def needed(profile: ProfileTable) -> dict[Row, float]:
    """The most memory that a step takes, by batch size and micro-batch size; what is not known is not in it."""
    found: dict[Row, float] = {}
    for cell in profile.cells:
        if cell.memory_bytes is not None:
            found[_row(cell)] = max(found.get(_row(cell), 0.0), cell.memory_bytes)
    return found


def within(profile: ProfileTable, limit_bytes: float | None) -> tuple[ProfileTable, tuple[Candidate, ...]]:
    """The part of the profile that fits in so many bytes (None: no limit), and the rest as candidates that do not.

    A cell of which it is not known how much it takes does not fit.

    Raises: InputError for a limit that is not above zero; NoPoint where nothing fits.
    """
    if limit_bytes is None:
        return profile, ()
    if isinstance(limit_bytes, bool) or not 0 < limit_bytes < float("inf"):
        raise InputError("memory_bytes", value=limit_bytes, allowed="a positive number of bytes, or none")
    takes = needed(profile)

    def fits(cell: AtPoint) -> bool:
        return takes.get(_row(cell), float("inf")) <= limit_bytes

    fitting = tuple(cell for cell in profile.cells if cell.out_of_memory or fits(cell))
    if not any(not cell.out_of_memory for cell in fitting):
        raise _nothing(profile, takes, limit_bytes)
    too_large = [cell for cell in profile.cells if not cell.out_of_memory and not fits(cell)]
    # Of a probe that was stopped at the cap nobody may know what it takes: it is not to be chosen in any case.
    stopped = [probe for probe in profile.aborted if _row(probe) in takes and not fits(probe)]
    left_out = [
        Candidate(**position(cell), feasible=False, why_not=why_too_large(takes.get(_row(cell)), limit_bytes))
        for cell in (*too_large, *stopped)
    ]
    kept = tuple(probe for probe in profile.aborted if probe not in stopped)
    return profile.model_copy(update={"cells": fitting, "aborted": kept}), tuple(left_out)


def why_too_large(needed_bytes: float | None, limit_bytes: float) -> str:
    """Why a point that takes so much memory is not feasible."""
    if needed_bytes is None:
        return f"the profile does not say how much memory it needs, and the limit is {size(limit_bytes)}"
    return f"needs {size(needed_bytes)}, above the limit of {size(limit_bytes)}"


def size(amount_bytes: float) -> str:
    """An amount of memory in a sentence, in decimal units: "122 MB"."""
    factor, unit = (1e9, "GB") if amount_bytes >= 999.5e6 else (1e6, "MB") if amount_bytes >= 999.5e3 else (1e3, "KB")
    return f"{amount_bytes / factor:.3g} {unit}"


def _nothing(profile: ProfileTable, takes: dict[Row, float], limit_bytes: float) -> NoPoint:
    if not takes:
        return NoPoint(
            "a memory limit with a profile that does not say how much memory a step takes",
            value=size(limit_bytes),
            hint="profile again, or leave the limit out",
        )
    (batch_size, micro), least = min(takes.items(), key=lambda item: (item[1], item[0]))
    in_parts = "" if micro == batch_size else f" in micro-batches of {micro}"
    return NoPoint(
        "no measured point fits in the memory limit",
        value=size(limit_bytes),
        allowed=f"the smallest, batch size {batch_size}{in_parts}, needs {size(least)}",
        hint="raise the limit, or profile smaller micro-batches or another algorithm",
    )


def _row(cell: AtPoint) -> Row:
    return cell.batch_size, cell.micro_batch_size or cell.batch_size
