"""Counts of what a store holds, for an operator."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import distinct, func, select
from sqlalchemy.orm import Session

from wattune.server.store.tables import DeviceRow, JobRow, ProfileRow, TrainingRow, UnitRow

SEEN_S = 60.0
"""A device that was heard of within so many seconds counts as there."""

SHOWN = 2000
"""Devices whose watts are told, those heard of last."""


@dataclass(frozen=True)
class Figures:
    """Units and jobs by state; ``power_w`` by name and kind of the devices that are there, None where one is silent."""

    units: dict[str, int]
    jobs: dict[str, int]
    workers_busy: int
    oldest_waiting_s: float
    devices: int
    power_w: dict[tuple[str, str], float | None]
    profiles: int
    trainings: int


def read(session: Session, now_s: float) -> Figures:
    """Count."""
    units = dict(session.execute(select(UnitRow.state, func.count()).group_by(UnitRow.state)).all())
    jobs = dict(session.execute(select(JobRow.state, func.count()).group_by(JobRow.state)).all())
    busy = select(func.count(distinct(UnitRow.holder))).where(UnitRow.state == "running", UnitRow.lease_until_s > now_s)
    oldest = select(func.min(UnitRow.created_s)).where(UnitRow.state == "waiting", UnitRow.not_before_s <= now_s)
    oldest_s = session.scalar(oldest)
    seen = select(DeviceRow.name, DeviceRow.status).where(DeviceRow.seen_s > now_s - SEEN_S)
    statuses = session.execute(seen.order_by(DeviceRow.seen_s.desc()).limit(SHOWN))
    return Figures(
        units=units,
        jobs=jobs,
        workers_busy=session.scalar(busy) or 0,
        oldest_waiting_s=0.0 if oldest_s is None else max(0.0, now_s - oldest_s),
        devices=session.scalar(select(func.count()).select_from(DeviceRow)) or 0,
        power_w={(name, status.get("kind") or "unknown"): status.get("power_w") for name, status in statuses},
        profiles=session.scalar(select(func.count()).select_from(ProfileRow)) or 0,
        trainings=session.scalar(select(func.count()).select_from(TrainingRow)) or 0,
    )
