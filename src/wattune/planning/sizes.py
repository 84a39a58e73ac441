"""A plan for one batch size: where nothing is known of others, or they are not wanted."""

from __future__ import annotations

from wattune.errors import InputError
from wattune.records import EfficiencyCurve, EfficiencyPoint, ProfileTable

NOT_KNOWN = (
    "no efficiency record was given: the batch size is taken as it is, and only the rest is chosen; "
    "`wattune estimate` finds out how many samples others need"
)


def at_size(
    profile: ProfileTable, efficiency: EfficiencyCurve | None, batch_size: int | None
) -> tuple[ProfileTable, EfficiencyCurve, tuple[str, ...]]:
    """The part of the profile that is of this batch size, a curve for it, and what is to be said of that.

    Raises: InputError for a batch size that was not profiled, or none where there is neither a curve nor only one size.
    """
    sizes = sorted({cell.batch_size for cell in profile.cells} | {probe.batch_size for probe in profile.aborted})
    shown = ", ".join(map(str, sizes))
    if batch_size is None and efficiency is None and len(sizes) == 1:
        batch_size = sizes[0]
    if batch_size is None:
        if efficiency is None:
            raise InputError(
                "the batch size",
                value="not given",
                allowed=shown,
                hint="give the one that you train with, or an efficiency record, by which it is chosen",
            )
        return profile, efficiency, ()
    if batch_size not in sizes:
        raise InputError("the profile has no batch size", value=batch_size, allowed=shown)
    part = profile.model_copy(
        update={
            "cells": tuple(cell for cell in profile.cells if cell.batch_size == batch_size),
            "aborted": tuple(probe for probe in profile.aborted if probe.batch_size == batch_size),
        }
    )
    if efficiency is not None:
        return part, efficiency, ()
    even = EfficiencyCurve(
        workload=profile.workload,
        algorithm=profile.algorithm,
        reference_batch_size=batch_size,
        points=(EfficiencyPoint(batch_size=batch_size, relative_samples=1.0),),
    )
    return part, even, (NOT_KNOWN,)
