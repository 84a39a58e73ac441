"""Finished training runs as the pages show them, read from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session, defer

from wattune.errors import InputError
from wattune.records import Ending, TrainingRecord
from wattune.server.store.schema import TrainingRow

NAMED = 300
"""Number of runs whose workloads and devices are suggested as filters."""

STATES = (*get_args(Ending), "target not reached")
"""States of a finished run; the last one is that of records that do not tell more."""


@dataclass(frozen=True)
class RunQuery:
    """Selection of finished runs, and their order. Raises: InputError.

    ``sort``: a name of ``ORDERS``; ``state``: one of ``STATES``; ``find``: a part of the name of a device or workload.
    """

    sort: str = "created_s"
    descending: bool = True
    workload: str = ""
    device: str = ""
    state: str = ""
    find: str = ""

    def __post_init__(self) -> None:
        for name, value, allowed in (("sort", self.sort, ORDERS), ("state", self.state, ("", *STATES))):
            if value not in allowed:
                raise InputError(name, value=value, allowed=", ".join(filter(None, allowed)))

    @property
    def filters(self) -> dict[str, str]:
        """The filters that are set, as parameters of an address."""
        values = {name: getattr(self, name) for name in ("workload", "device", "state", "find")}
        return {name: value for name, value in values.items() if value}

    @property
    def conditions(self) -> list[ColumnElement[bool]]:
        """Conditions of the rows."""
        columns = {"workload": TrainingRow.workload, "device": TrainingRow.device, "state": TrainingRow.ended}
        found = [column == getattr(self, name) for name, column in columns.items() if getattr(self, name)]
        if self.find:
            texts = (TrainingRow.device, TrainingRow.workload)
            found.append(or_(*(column.icontains(self.find, autoescape=True) for column in texts)))
        return found


def runs(session: Session, query: RunQuery, limit: int) -> Sequence[TrainingRow]:
    """List the first ``limit`` runs of a selection, without their records."""
    order = ORDERS[query.sort]
    order = order.desc().nulls_last() if query.descending else order.asc().nulls_last()
    return session.scalars(
        select(TrainingRow)
        .where(*query.conditions)
        .order_by(order, TrainingRow.id)
        .limit(limit)
        .options(defer(TrainingRow.record))
    ).all()


def count(session: Session, query: RunQuery) -> int:
    """Count the runs of a selection."""
    return session.scalar(select(func.count()).select_from(TrainingRow).where(*query.conditions)) or 0


def names(session: Session) -> dict[str, list[str]]:
    """List the workloads and devices of the newest ``NAMED`` runs, to choose from."""
    newest = select(TrainingRow.workload, TrainingRow.device).order_by(TrainingRow.created_s.desc()).limit(NAMED)
    rows = session.execute(newest).all()
    return {
        "workload": sorted({row.workload for row in rows if row.workload}),
        "device": sorted({row.device for row in rows}),
    }


def training(session: Session, run_id: str) -> tuple[str, str | None, float, TrainingRecord] | None:
    """Read device, model, time of upload and record of a training run; None if there is none."""
    row = session.get(TrainingRow, run_id)
    return None if row is None else (row.device, row.model_name, row.created_s, TrainingRecord.parse(row.record))


ORDERS: dict[str, Any] = {
    name: getattr(TrainingRow, name)
    for name in (
        "created_s",
        "device",
        "workload",
        "batch_size",
        "clock_mhz",
        "cap_w",
        "samples",
        "time_s",
        "energy_j",
        "power_peak_w",
        "above_cap_s",
    )
}
"""Sort keys of finished training runs."""
