"""What the pages show, read from the store: never more of a record than a page needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from wattune.planning import learns_as
from wattune.records import EfficiencyCurve, ProfileTable, TrainingRecord
from wattune.records.served import DeviceStatus, ServedModel
from wattune.server.store.tables import DeviceRow, JobRow, ModelRow, ProfileRow, TrainingRow

SHOWN = 100
"""Rows of a page at most."""

QUIET_S = 30.0
"""A device at work that was not heard of for so long is said to be away."""

ENDED = ("done", "failed")
"""The steps of a device after which nothing more is to come."""

HIGHER_IS_BETTER = ("accuracy", "character_accuracy")
"""The metrics of which a part of the target is part of the way to it. (Those of ``wattune.workloads`` need torch.)"""

COMPARED = 6
"""Finished trainings that are compared at most: as many as there are colours."""


@dataclass(frozen=True)
class DeviceView:
    """A device: what it says of itself, and for how many seconds nothing was heard of it."""

    status: DeviceStatus
    silent_s: float
    profile_id: str | None
    job_id: str | None

    @property
    def is_at_work(self) -> bool:
        """Whether more is to come."""
        return self.status.step not in ENDED

    @property
    def is_away(self) -> bool:
        """Whether it should have been heard of."""
        return self.is_at_work and self.silent_s > QUIET_S

    @property
    def share_of_target(self) -> float | None:
        """The metric as a share of its target, at most 100/95; None where that would not mean progress."""
        said = self.status
        if said.metric_name not in HIGHER_IS_BETTER or said.metric is None or not said.target or said.target < 0:
            return None
        return min(100 / 95, max(0.0, said.metric / said.target))


@dataclass(frozen=True)
class Fleet:
    """All devices together: how many there are, how many are at work and heard of, and what these draw."""

    devices: int
    at_work: int
    power_w: float | None


@dataclass(frozen=True)
class RunView:
    """A line of the table of finished trainings."""

    id: str
    device: str
    model: str | None
    created_s: float
    kind: str | None
    batch_size: float | None
    clock_mhz: float | None
    power_limit_w: float | None
    cap_w: float | None
    reached: bool | None
    ended: str | None
    samples: float | None
    time_s: float | None
    energy_j: float | None
    power_peak_w: float | None
    above_cap_s: float | None


def devices(session: Session, now_s: float, find: str = "") -> tuple[list[DeviceView], int]:
    """The devices that were heard of last, by name, and how many there are. ``find``: a part of their names."""
    wanted = [DeviceRow.name.icontains(find, autoescape=True)] if find else []
    columns = (DeviceRow.status, DeviceRow.seen_s, DeviceRow.profile_id, DeviceRow.job_id)
    rows = session.execute(select(*columns).where(*wanted).order_by(DeviceRow.seen_s.desc()).limit(SHOWN)).all()
    found = [
        DeviceView(DeviceStatus.model_validate(status), max(0.0, now_s - seen_s), profile_id, job_id)
        for status, seen_s, profile_id, job_id in rows
    ]
    total = session.scalar(select(func.count()).select_from(DeviceRow).where(*wanted)) or 0
    return sorted(found, key=lambda device: device.status.device), total


def fleet(session: Session, now_s: float) -> Fleet:
    """All devices that ever told of themselves, however many a page shows."""
    step, power_w = DeviceRow.status["step"].as_string(), DeviceRow.status["power_w"].as_float()
    is_heard = DeviceRow.seen_s >= now_s - QUIET_S
    powers_w = session.scalars(select(power_w).where(step.not_in(ENDED), is_heard)).all()
    known = [value for value in powers_w if value is not None]
    # Summed here: a database refuses a sum beyond its numbers, and a device may say any number.
    total_w = sum(known) if known else None
    return Fleet(
        count(session, DeviceRow), len(powers_w), total_w if total_w is None or math.isfinite(total_w) else None
    )


def models(session: Session) -> list[ServedModel]:
    """The models on offer, by name."""
    return [ServedModel.parse(row) for row in session.scalars(select(ModelRow.record).order_by(ModelRow.name))]


def profiles(session: Session) -> Sequence[Any]:
    """The newest profiles: id, board, workload, algorithm, kind, publisher, created_s."""
    columns = (
        ProfileRow.id,
        ProfileRow.board,
        ProfileRow.workload,
        ProfileRow.algorithm,
        ProfileRow.kind,
        ProfileRow.publisher,
        ProfileRow.created_s,
    )
    return session.execute(select(*columns).order_by(ProfileRow.created_s.desc()).limit(SHOWN)).all()


def profile(session: Session, profile_id: str) -> tuple[ProfileTable, str, float] | None:
    """A profile, who published it, and when."""
    row = session.get(ProfileRow, profile_id)
    return None if row is None else (ProfileTable.parse(row.record), row.publisher, row.created_s)


def curves(session: Session, table: ProfileTable, job_id: str | None) -> list[tuple[str, str, EfficiencyCurve]]:
    """Curves that a profile can be planned with: job, model, curve, newest first.

    Those of the profile's workload which have its batch sizes and an algorithm that learns as the profile's, and that
    of ``job_id`` whatever it is of.
    """
    columns = (JobRow.id, JobRow.model_name, JobRow.curve)
    wanted = (JobRow.state == "done") & JobRow.curve.is_not(None) & (JobRow.model_name == table.workload)
    asked = (JobRow.id == job_id) & JobRow.curve.is_not(None)
    rows = session.execute(select(*columns).where(wanted | asked).order_by(JobRow.finished_s.desc()).limit(SHOWN)).all()
    found = []
    for own_id, model_name, record in rows:
        curve = EfficiencyCurve.parse(record)
        is_same = learns_as(curve.algorithm) == learns_as(table.algorithm)
        fits = is_same and {p.batch_size for p in curve.points} >= set(table.batch_sizes)
        if fits or own_id == job_id:
            found.append((own_id, model_name, curve))
    return found


def runs(session: Session, sort: str, descending: bool, device: str = "", model: str = "") -> tuple[list[RunView], int]:
    """Finished trainings in this order (a name out of ``ORDERS``), and how many there are."""
    wanted = [
        column == name for column, name in ((TrainingRow.device, device), (TrainingRow.model_name, model)) if name
    ]
    order = ORDERS[sort]
    order = order.desc().nulls_last() if descending else order.asc().nulls_last()
    rows = session.execute(select(*_FIELDS.values()).where(*wanted).order_by(order, TrainingRow.id).limit(SHOWN)).all()
    total = session.scalar(select(func.count()).select_from(TrainingRow).where(*wanted)) or 0
    return [RunView(*row) for row in rows], total


def trainings(session: Session, ids: Sequence[str]) -> list[tuple[str, str, TrainingRecord]]:
    """Id, device and record of these trainings, in their order; those that are not there are left out."""
    rows = {row.id: row for row in session.scalars(select(TrainingRow).where(TrainingRow.id.in_(ids)))}
    return [(key, rows[key].device, TrainingRecord.parse(rows[key].record)) for key in ids if key in rows]


def count(session: Session, table: type[Any]) -> int:
    """How many rows a table has."""
    return session.scalar(select(func.count()).select_from(table)) or 0


def _number(*path: str) -> ColumnElement[Any]:
    # Also what is whole: a record may hold more than fits into a database's integers.
    found: ColumnElement[Any] = TrainingRow.record[path].as_float()
    return found


_FIELDS: dict[str, ColumnElement[Any] | Any] = {
    "id": TrainingRow.id,
    "device": TrainingRow.device,
    "model": TrainingRow.model_name,
    "created_s": TrainingRow.created_s,
    "kind": TrainingRow.record["provenance", "kind"].as_string(),
    "batch_size": _number("plan", "batch_size"),
    "clock_mhz": _number("plan", "clock_mhz"),
    "power_limit_w": _number("plan", "power_limit_w"),
    "cap_w": _number("plan", "cap_w"),
    "reached": TrainingRow.record["reached"].as_boolean(),
    "ended": TrainingRow.record["ended"].as_string(),
    "samples": _number("samples"),
    "time_s": _number("time_s"),
    "energy_j": _number("energy_j"),
    "power_peak_w": _number("power_peak_w"),
    "above_cap_s": _number("above_cap_s"),
}

ORDERS: dict[str, ColumnElement[Any] | Any] = {
    name: _FIELDS[name]
    for name in (
        "created_s",
        "device",
        "model",
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
"""What finished trainings can be sorted by."""
