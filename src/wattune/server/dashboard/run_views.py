"""Finished training runs as the pages show them, read from the store."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_args

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from wattune.errors import InputError
from wattune.point import KNOBS, Knobs
from wattune.records import Ending, TrainingRecord
from wattune.server.store.schema import TrainingRow

NAMED = 300
"""Number of runs whose workloads and devices are suggested as filters."""

STATES = (*get_args(Ending), "target not reached")
"""States of a finished run; the last one is that of records that do not tell more."""


@dataclass(frozen=True)
class RunView:
    """A row in the table of finished training runs."""

    id: str
    device: str
    workload: str | None
    created_s: float
    kind: str | None
    batch_size: int | None
    micro_batch_size: int | None
    clock_mhz: float | None
    memory_clock_mhz: float | None
    cpu_clock_mhz: float | None
    cpu_cores: float | None
    power_limit_w: float | None
    cap_w: float | None
    ended: str | None
    samples: int | None
    time_s: float | None
    energy_j: float | None
    power_mean_w: float | None
    power_peak_w: float | None
    above_cap_s: float | None

    @property
    def knobs(self) -> Knobs:
        """Settings of the knobs of the device."""
        values = {name: getattr(self, name) for name in KNOBS}
        return Knobs({name: value for name, value in values.items() if value is not None})


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


def runs(session: Session, query: RunQuery, limit: int) -> list[RunView]:
    """List the first ``limit`` runs of a selection."""
    order = ORDERS[query.sort]
    order = order.desc().nulls_last() if query.descending else order.asc().nulls_last()
    rows = session.execute(select(*_RUN).where(*query.conditions).order_by(order, TrainingRow.id).limit(limit))
    return [RunView(*row) for row in rows]


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


_RUN = tuple(getattr(TrainingRow, field.name) for field in fields(RunView))

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
