"""Device status and plans."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from wattune.records import Plan
from wattune.records.served import DEVICE_NAME, DeviceStatus
from wattune.server.bodies import body
from wattune.server.problems import Problem
from wattune.server.routes.endpoint import DevicePath, IdQuery, Limit, answer, route
from wattune.server.security import check_device, is_own
from wattune.server.store import devices, retention
from wattune.server.store.schema import DeviceRow
from wattune.server.store.statuses import READER_S

router = APIRouter(prefix="/v1/devices", tags=["devices"])


class DeviceState(BaseModel):
    """Last reported state of a device. ``seen_s``: time of the last status, in seconds since 1970."""

    status: DeviceStatus
    plan: Plan | None
    profile_id: str | None
    job_id: str | None
    seen_s: float


@router.get("", **route("read", list[DeviceState]))
def list_devices(
    request: Request, limit: Limit = 100, after: Annotated[str | None, Query(pattern=DEVICE_NAME)] = None
) -> Response:
    """List the devices in order of name, starting after ``after``."""
    request.app.state.statuses.flush(READER_S)
    with request.app.state.database.session(reads_only=True) as session:
        return answer(devices.listing(session, after=after or "", limit=limit))


@router.get("/{name}", **route("read", DeviceState))
def get_device(request: Request, name: DevicePath) -> Response:
    """Get a device."""
    request.app.state.statuses.flush(READER_S)
    with request.app.state.database.session(reads_only=True) as session:
        state = devices.get(session, name)
    if state is None:
        raise _unknown(name)
    return answer(state)


@router.put("/{name}", **route("device", status=204, takes=DeviceStatus))
async def put_device(  # async: it needs no thread, since a status is only kept in memory here
    request: Request, name: DevicePath, status: Annotated[DeviceStatus, Depends(body(DeviceStatus))]
) -> Response:
    """Report the status of a device. It is written within a second."""
    if status.device != name:
        raise Problem(422, "device in the body differs from the path", value=status.device, allowed=name)
    if not is_own(request.state.identity, name):
        await run_in_threadpool(check_device, request, name)
    request.app.state.statuses.put(status, time.time())
    return Response(status_code=204)


@router.put("/{name}/plan", **route("device", status=204, takes=Plan))
def put_plan(
    request: Request,
    name: DevicePath,
    plan: Annotated[Plan, Depends(body(Plan))],
    profile: IdQuery = None,
    job: IdQuery = None,
) -> Response:
    """Report the plan of a device, and the profile and job it is based on."""
    check_device(request, name)
    request.app.state.statuses.flush()
    with request.app.state.database.session() as session:
        if not devices.put_plan(session, name, plan, profile, job):
            raise _unknown(name)
    return Response(status_code=204)


@router.delete("/{name}", **route("admin", status=204))
def delete_device(request: Request, name: DevicePath) -> Response:
    """Remove a device."""
    request.app.state.statuses.flush()
    with request.app.state.database.session() as session:
        if not retention.remove(session, DeviceRow, name):
            raise _unknown(name)
    return Response(status_code=204)


def _unknown(name: str) -> Problem:
    return Problem(404, "no such device", value=name, hint=f"report its status first: PUT /v1/devices/{name}")
