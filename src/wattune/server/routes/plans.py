"""Plans are computed on the device, which has its profile; a server computed them as well once."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from wattune.server.problems import Problem
from wattune.server.routes.endpoint import route

router = APIRouter(include_in_schema=False)


@router.post("/v1/plans", **route("read", status=410))
async def post_plan() -> Response:
    """Refuse requests of other programs, none of wattune's."""
    raise Problem(410, "the server does not compute plans", hint="compute them on the device: wattune plan --help")
