"""For those who run a server: is it alive, does it take requests, what is it doing; and the API's own description."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from wattune.server.routes.parts import answer, route

READY_S = 1.0
"""How long a server that was ready counts as ready: anybody may ask."""

router = APIRouter(tags=["operations"])


class Health(BaseModel):
    """It is."""

    status: str


@router.get("/healthz", **route(None, Health))
async def get_health() -> Response:  # in no thread: those may all wait for the database
    """Whether the process answers."""
    return answer({"status": "alive"})


@router.get("/readyz", **route(None, Health))
def get_readiness(request: Request) -> Response:
    """Whether the database answers and the folder takes files; looked at once a second, however often it is asked."""
    state, now_s = request.app.state, time.monotonic()
    if now_s - state.ready_s >= READY_S:
        state.database.ping()
        with state.files.incoming() as file:
            file.write(b"\0")
            file.flush()
        state.ready_s = now_s
    return answer({"status": "ready"})


@router.get("/metrics", **route("read", response_class=PlainTextResponse))
def get_metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/openapi.json", include_in_schema=False)
def get_description(request: Request) -> Response:
    """This API as OpenAPI."""
    return answer(request.app.openapi())
