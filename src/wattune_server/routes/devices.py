"""Device status."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from wattune.records.served import DeviceStatus
from wattune_server.bodies import body
from wattune_server.problems import Problem
from wattune_server.routes.endpoint import DEVICE, DevicePath
from wattune_server.security import check_device, is_own

router = APIRouter(prefix="/v1/devices")


@router.put("/{name}", dependencies=DEVICE)
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
