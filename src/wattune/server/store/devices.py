"""Devices, as they tell of themselves."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import CursorResult, select, update
from sqlalchemy.orm import Session

from wattune.records import Plan
from wattune.records.served import DeviceStatus
from wattune.server.store.inserting import insert_new
from wattune.server.store.tables import DeviceRow


def listing(session: Session, *, after: str = "", limit: int = 100) -> list[dict[str, Any]]:
    """By name, those behind ``after``."""
    rows = session.scalars(select(DeviceRow).where(DeviceRow.name > after).order_by(DeviceRow.name).limit(limit))
    return [_shown(row) for row in rows]


def get(session: Session, name: str) -> dict[str, Any] | None:
    """``status``, ``plan``, ``profile_id``, ``job_id`` and ``seen_s`` of a device; None where it never told."""
    row = session.get(DeviceRow, name)
    return None if row is None else _shown(row)


def put_status(session: Session, status: DeviceStatus, now_s: float) -> None:
    """Keep what a device says, in place of what it said before."""
    values = {"status": status.model_dump(mode="json"), "seen_s": now_s}
    # It is mostly there: one statement then does.
    changed = session.execute(update(DeviceRow).where(DeviceRow.name == status.device).values(**values))
    if cast("CursorResult[Any]", changed).rowcount == 0:
        insert_new(session, DeviceRow, {"name": status.device, **values})


def put_plan(session: Session, name: str, plan: Plan, profile_id: str | None, job_id: str | None, now_s: float) -> bool:
    """Keep a device's newest plan; False where the device never told of itself."""
    values = {"plan": plan.dump(), "profile_id": profile_id, "job_id": job_id, "seen_s": now_s}
    changed = session.execute(update(DeviceRow).where(DeviceRow.name == name).values(**values))
    return cast("CursorResult[Any]", changed).rowcount == 1


def _shown(row: DeviceRow) -> dict[str, Any]:
    names = ("status", "plan", "profile_id", "job_id", "seen_s")
    return {name: getattr(row, name) for name in names}
