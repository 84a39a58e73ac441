"""Operations: liveness, readiness and metrics."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from wattune_server.routes.endpoint import READ, answer
from wattune_server.store.statuses import READER_S

READY_S = 1.0
"""Cache time of a successful readiness check, which needs no authentication."""

router = APIRouter()


@router.get("/healthz")
async def get_health() -> Response:  # async: the threads may all be waiting for the database
    """Check that the process responds."""
    return answer({"status": "alive"})


@router.get("/readyz")
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


@router.get("/metrics", dependencies=READ)
def get_metrics(request: Request) -> Response:
    """Get the metrics in Prometheus' text format."""
    request.app.state.statuses.flush(READER_S)
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
