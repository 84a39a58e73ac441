"""Page of one device: its state, live, its past runs, and the readings of the newest one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from wattune.reporting import training_charts
from wattune_server.dashboard import run_views, views
from wattune_server.dashboard.responses import Name, Reader, not_found, respond
from wattune_server.dashboard.views import PAGE_ROWS
from wattune_server.store.statuses import READER_S

router = APIRouter()


@router.get("/devices/{name}")
def device(request: Request, identity: Reader, name: Name, history: bool = True) -> Response:
    """Show one device. ``history``: False for its state alone, which the page fetches every two seconds."""
    request.app.state.statuses.flush(READER_S)
    with request.app.state.database.session(reads_only=True) as session:
        state = views.device(session, name, time.time())
        runs, total = run_views.runs(session, name, PAGE_ROWS) if history else ([], 0)
        newest = run_views.training(session, runs[0].id) if runs else None
    if state is None and not runs:
        return not_found(request, "device", "/")
    values: dict[str, Any] = {}
    if history:
        figure = None if newest is None else training_charts.power_trace(newest[-1])
        sums = {field: _sum(getattr(run, field) for run in runs) for field in ("time_s", "energy_j", "above_cap_s")}
        values = {"figures": [figure] if figure else [], "runs": runs, "total": total, "sums": sums}
    return respond(request, "device.html", section="Devices", name=name, state=state, history=history, **values)


def _sum(values: Iterable[float | None]) -> float | None:
    """Sum of the known values; None if there is none, or if it overflows: a record may hold any number."""
    known = [value for value in values if value is not None]
    total = sum(known)
    return total if known and math.isfinite(total) else None
