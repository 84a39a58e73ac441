"""Pages of finished training runs: the list, and one run."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from wattune.reporting import metric_charts, training_charts
from wattune.server.dashboard import run_views
from wattune.server.dashboard.responses import Key, Name, Reader, not_found, respond
from wattune.server.dashboard.run_views import RunQuery
from wattune.server.dashboard.views import PAGE_ROWS

router = APIRouter()


def run_query(
    sort: Key = "created_s",
    order: Key = "",
    workload: Key = "",
    device: Key = "",
    state: Key = "",
    find: Key = "",
) -> RunQuery:
    """Read the selection of runs from the parameters of a page's address."""
    descending = order == "desc" or (sort == "created_s" and order != "asc")
    return RunQuery(sort, descending, workload, device, state, find)


Selected = Annotated[RunQuery, Depends(run_query)]


@router.get("/runs")
def runs(request: Request, identity: Reader, query: Selected) -> Response:
    """List finished training runs, filtered and sorted."""
    with request.app.state.database.session(reads_only=True) as session:
        rows, total = run_views.runs(session, query, PAGE_ROWS), run_views.count(session, query)
        values: dict[str, Any] = {"names": run_views.names(session), "states": run_views.STATES}
    return respond(request, "runs.html", section="Runs", runs=rows, total=total, query=query, **values)


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
