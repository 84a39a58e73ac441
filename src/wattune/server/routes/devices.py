"""Devices, as they tell of themselves."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from wattune.records import Plan
from wattune.records.served import DEVICE_NAME, DeviceStatus
from wattune.server.bodies import body
from wattune.server.problems import Problem
from wattune.server.routes.parts import DevicePath, IdQuery, Limit, answer, route
from wattune.server.store import devices

router = APIRouter(prefix="/v1/devices", tags=["devices"])


class Seen(BaseModel):
    """A device. ``seen_s``: when it last told of itself, in seconds since 1970."""

    status: DeviceStatus
    plan: Plan | None
    profile_id: str | None
    job_id: str | None
    seen_s: float


@router.get("", **route("read", list[Seen]))
def list_devices(
    request: Request, limit: Limit = 100, after: Annotated[str | None, Query(pattern=DEVICE_NAME)] = None
) -> Response:
    """The devices, by name; those behind ``after``."""
    with request.app.state.database.session(reads_only=True) as session:
        return answer(devices.listing(session, after=after or "", limit=limit))


@router.get("/{name}", **route("read", Seen))
def get_device(request: Request, name: DevicePath) -> Response:
    """A device."""
    with request.app.state.database.session(reads_only=True) as session:
        found = devices.get(session, name)
    if found is None:
        raise _unknown(name)
    return answer(found)


@router.put("/{name}", **route("device", status=204, takes=DeviceStatus))
def put_device(
    request: Request, name: DevicePath, status: Annotated[DeviceStatus, Depends(body(DeviceStatus))]
) -> Response:
    """How a device is doing."""
    if status.device != name:
        raise Problem(422, "the name in the body", value=status.device, allowed=name)
    with request.app.state.database.session() as session:
        devices.put_status(session, status, time.time())
    return Response(status_code=204)


@router.put("/{name}/plan", **route("device", status=204, takes=Plan))
def put_plan(
    request: Request,
    name: DevicePath,
    plan: Annotated[Plan, Depends(body(Plan))],
    profile: IdQuery = None,
    job: IdQuery = None,
) -> Response:
    """The plan that a device follows, and what it was made of."""
    with request.app.state.database.session() as session:
        if not devices.put_plan(session, name, plan, profile, job, time.time()):
            raise _unknown(name)
    return Response(status_code=204)


def _unknown(name: str) -> Problem:
    return Problem(404, "no such device", value=name, hint=f"it tells of itself with PUT /v1/devices/{name}")
