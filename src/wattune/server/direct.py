"""A short way to the routes that devices call most, past the framework's routing and dependency injection.

Those take 0.25 ms of the 1.6 ms of CPU time that a call of a run takes on average (``benchmarks/server``). The routes
are declared as all others, and everything else about them is the same: limits, authentication, strict bodies, errors,
metrics and the log.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from wattune.records.served import DEVICE_NAME, DeviceStatus
from wattune.server.bodies import body
from wattune.server.routes.devices import put_device
from wattune.server.routes.endpoint import ID
from wattune.server.routes.jobs import get_job
from wattune.server.security import require

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_may_report, _may_read, _status = require("device"), require("read"), body(DeviceStatus)


async def _put_device(request: Request, name: str) -> Response:
    await _may_report(request)
    return await put_device(request, name, await _status(request))


async def _get_job(request: Request, job: str) -> Response:
    await _may_read(request)
    return await get_job(request, job)


class Route(NamedTuple):
    """The matched route of a request, as metrics and log name it."""

    path: str


Call = Callable[[Request, str], Awaitable[Response]]

CALLS: dict[tuple[str, str], tuple[str, Call]] = {
    ("PUT", "/v1/devices/{name}"): (DEVICE_NAME, _put_device),
    ("GET", "/v1/jobs/{job}"): (ID, _get_job),
}
"""By method and path: pattern of the path's parameter, and the call. A path that does not match takes the long way."""


class Direct:
    """Middleware that answers ``CALLS``."""

    def __init__(self, app: ASGIApp):
        self._app = app
        self._calls = {
            (method, path.partition("{")[0]): (re.compile(pattern), call, Route(path))
            for (method, path), (pattern, call) in CALLS.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        folder, slash, parameter = scope.get("path", "").rpartition("/")
        found = self._calls.get((scope.get("method", ""), folder + slash))
        if found is None or not found[0].fullmatch(parameter):
            await self._app(scope, receive, send)
            return
        _, call, scope["route"] = found
        response = await call(Request(scope, receive, send), parameter)
        await response(scope, receive, send)
