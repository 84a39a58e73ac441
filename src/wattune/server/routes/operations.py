"""Operations: liveness, readiness, metrics, and the OpenAPI document."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from wattune.server.routes.endpoint import answer, route
from wattune.server.store.statuses import READER_S

READY_S = 1.0
"""Cache time of a successful readiness check, which needs no authentication."""

router = APIRouter(tags=["operations"])


class Health(BaseModel):
    """Health of the server."""

    status: str


@router.get("/healthz", **route(None, Health))
async def get_health() -> Response:  # async: the threads may all be waiting for the database
    """Check that the process responds."""
    return answer({"status": "alive"})


@router.get("/readyz", **route(None, Health))
def get_readiness(request: Request) -> Response:
    """Check that the database responds and the folder is writable; a success is cached for one second."""
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
    """Get the metrics in Prometheus' text format."""
    request.app.state.statuses.flush(READER_S)
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/v1/openapi.json", include_in_schema=False)
def get_description(request: Request) -> Response:
    """Get the OpenAPI document of this API."""
    return answer(request.app.openapi())
