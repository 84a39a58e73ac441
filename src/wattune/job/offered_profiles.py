"""Profiles of other devices that a server offers, checked by a few probes on this one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timezone

from wattune import profiling
from wattune.errors import InputError, ServerError, ServerRefused
from wattune.job.run import ResumableRun
from wattune.records import ProfileCell, ProfileTable
from wattune.remote import Client, PublishedProfile

PROBES = 5
"""Cells of an offered profile that are measured here."""

_RANDOM = random.SystemRandom()
"""Source of the choice of these cells: a publisher who knew them could make up all others."""

MOST_CHECKED = 2
"""Offered profiles that are checked by probes here, before the device measures one of its own."""


def offered_profile(run: ResumableRun, client: Client) -> ProfileTable | None:
    """The newest profile on the server of this board and model that holds here; None if there is none.

    Raises: DeviceError.
    """
    if run.board.kind == "replayed" or run.config.strategy is not None:
        return None
    key = profiling.profile_key(run.board, run.work, run.algorithm)
    checks = 0
    try:
        for offer in client.profiles(key):
            table = client.profile(offer.id)
            if not covers(run, table):
                continue
            if (own := _checked(run, table, offer)) is not None:
                return own
            checks += 1
            if checks == MOST_CHECKED:
                break
    except (ServerError, ServerRefused) as error:
        run.warn(f"no profile of another device is used: {error}")
    return None


def covers(run: ResumableRun, table: ProfileTable) -> bool:
    """True if the table has the cells that a profile made here would have: another cap leads to other cells."""
    sizes = {cell.batch_size for cell in (*table.cells, *table.aborted)}
    if sizes != set(run.work.batch_sizes) or table.provenance.kind_on(run.board.kind):
        return False
    if run.config.reference is True and table.reference is None:
        return False
    profiled_w, limit_w = table.cost.cap_w if table.cost else None, run.limit().strict.limit_w
    if table.strategy == "full":  # cells above its cap were not measured to the end
        return profiled_w is None or (limit_w is not None and limit_w <= profiled_w)
    return table.strategy == "staircase" and profiled_w == limit_w


def _checked(run: ResumableRun, table: ProfileTable, offer: PublishedProfile) -> ProfileTable | None:
    """The table with a few of its cells measured here and a note of its origin; None if it does not hold.

    Only cells that stay under the cap even if they draw as much more as is tolerated are measured.
    """
    limit_w = run.limit(table).strict.limit_w
    safe = [c for c in table.cells if limit_w is None or (c.power_peak_w or 0.0) * (1 + profiling.WITHIN) <= limit_w]
    cost = None if table.cost is None else table.cost.model_copy(update={"cap_w": limit_w})
    try:
        again, deviations = profiling.check(
            run.board,
            run.work,
            table.model_copy(update={"cells": tuple(safe), "cost": cost, "notes": ()}),
            pick=_random_cells,
            progress=run.progress_of("profile"),
        )
    except InputError as error:
        run.warn(f"the profile of {offer.publisher} is not used: {error}")
        return None
    day = datetime.fromtimestamp(offer.created_s, timezone.utc).date()
    note = (
        f"measured by {offer.publisher} on {day}, checked here by {len(deviations.cells)} probes: none differs by more "
        f"than {deviations.largest:.1%} in time or power"
    )
    fresh = {cell.point: cell for cell in again.cells}
    # The cost is that of this device; its cap is the one that the table was measured under, which says how far it goes.
    check_cost = deviations.cost and deviations.cost.model_copy(
        update={"cap_w": table.cost.cap_w if table.cost else None}
    )
    return again.model_copy(
        update={
            "cells": tuple(fresh.get(cell.point, cell) for cell in table.cells),
            "cost": check_cost,
            "notes": (*table.notes, note),
            "confirmed": (),  # by the publisher, not here
            "provenance": again.provenance.model_copy(update={"publisher": offer.publisher, "profile": offer.id}),
        }
    )


def _random_cells(cells: Sequence[ProfileCell]) -> list[ProfileCell]:
    return _RANDOM.sample(list(cells), min(PROBES, len(cells)))
