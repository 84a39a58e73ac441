"""Pages of finished training runs: the list, and one run."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from wattune.reporting import metric_charts, training_charts
from wattune_server.dashboard import run_views
from wattune_server.dashboard.responses import Name, Reader, not_found, respond
from wattune_server.dashboard.views import PAGE_ROWS

router = APIRouter()


@router.get("/runs")
def runs(request: Request, identity: Reader) -> Response:
    """List the newest finished training runs."""
    with request.app.state.database.session(reads_only=True) as session:
        rows, total = run_views.runs(session, "", PAGE_ROWS)
    return respond(request, "runs.html", section="Runs", runs=rows, total=total)


@router.get("/runs/{run_id}")
def run(request: Request, identity: Reader, run_id: Name) -> Response:
    """Show one training run: its plan, what it took, its charts, and what the guard did."""
    with request.app.state.database.session(reads_only=True) as session:
        row = run_views.training(session, run_id)
    if row is None:
        return not_found(request, "run", "/runs")
    device, model, created_s, record = row
    figures = (training_charts.power_trace(record), metric_charts.evaluations(record))
    return respond(
        request,
        "run.html",
        section="Runs",
        id=run_id,
        device=device,
        model=model,
        created_s=created_s,
        run=record,
        figures=[figure for figure in figures if figure is not None],
        most=PAGE_ROWS,
    )
