"""Last reported state of each device."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import CursorResult, select, update
from sqlalchemy.orm import Session

from wattune.records import Plan
from wattune.server.store.schema import DeviceRow


def listing(session: Session, *, after: str = "", limit: int = 100) -> list[dict[str, Any]]:
    """List the devices in order of name, starting after the name ``after``."""
    rows = session.scalars(select(DeviceRow).where(DeviceRow.name > after).order_by(DeviceRow.name).limit(limit))
    return [_fields(row) for row in rows]


def get(session: Session, name: str) -> dict[str, Any] | None:
    """Read ``status``, ``plan``, ``profile_id``, ``job_id`` and ``seen_s`` of a device; None if it is unknown."""
    row = session.get(DeviceRow, name)
    return None if row is None else _fields(row)


def put_plan(session: Session, name: str, plan: Plan, profile_id: str | None, job_id: str | None) -> bool:
    """Store the newest plan of a device; False if the device is unknown."""
    values = {"plan": plan.dump(), "profile_id": profile_id, "job_id": job_id}
    update_result = session.execute(update(DeviceRow).where(DeviceRow.name == name).values(**values))
    return cast("CursorResult[Any]", update_result).rowcount == 1


def _fields(row: DeviceRow) -> dict[str, Any]:
    names = ("status", "plan", "profile_id", "job_id", "seen_s")
    return {name: getattr(row, name) for name in names}
