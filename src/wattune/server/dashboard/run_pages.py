"""Pages of finished training runs: the list, a comparison, and one run."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import StringConstraints
from starlette.requests import Request
from starlette.responses import Response

from wattune.records import TrainingRecord
from wattune.reporting import phrases
from wattune.server.dashboard import run_views
from wattune.server.dashboard.line_chart import COLOURS, Chart, Line
from wattune.server.dashboard.responses import Key, Name, Reader, not_found, respond
from wattune.server.dashboard.run_charts import run_charts
from wattune.server.dashboard.run_views import RunQuery
from wattune.server.dashboard.views import PAGE_ROWS
from wattune.server.routes.endpoint import NO_NUL

router = APIRouter()

Id = Annotated[str, StringConstraints(max_length=64, pattern=NO_NUL)]
Ids = Annotated[list[Id] | None, Query()]


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


@router.get("/runs/compare")
def compare(request: Request, identity: Reader, id: Ids = None, draw: Ids = None) -> Response:
    """Compare training runs in charts and a table. ``draw``: those in the charts, by default the first ones."""
    ids = list(dict.fromkeys(id or []))
    with request.app.state.database.session(reads_only=True) as session:
        runs = run_views.compared(session, ids[:PAGE_ROWS])
        chosen = [run.id for _, run in runs if run.id in (draw or [])] or [run.id for _, run in runs]
        records = run_views.trainings(session, chosen[:COLOURS])
    names = {run.id: name for name, run in runs}
    return respond(
        request,
        "compare.html",
        section="Runs",
        runs=runs,
        ids=list(names),
        too_many=len(ids) > PAGE_ROWS,
        kinds=sorted({run.kind or phrases.UNKNOWN for _, run in runs}),
        drawn={key: index for index, (key, _, _) in enumerate(records)},
        most=COLOURS,
        charts=_comparison_charts([(names[key], record) for key, _, record in records]),
    )


@router.get("/runs/{run_id}")
def run(request: Request, identity: Reader, run_id: Name) -> Response:
    """Show one training run: its plan, what it took, its charts, and what the guard did."""
    with request.app.state.database.session(reads_only=True) as session:
        row = run_views.training(session, run_id)
    if row is None:
        return not_found(request, "run", "/runs")
    device, model, created_s, record = row
    charts, notes = run_charts(record)
    return respond(
        request,
        "run.html",
        section="Runs",
        id=run_id,
        device=device,
        model=model,
        created_s=created_s,
        run=record,
        charts=charts,
        notes=notes,
        most=PAGE_ROWS,
    )


def _comparison_charts(runs: list[tuple[str, TrainingRecord]]) -> list[Chart]:
    metrics = {run.metric for _, run in runs}
    metric = phrases.metric(metrics.pop() if len(metrics) == 1 else None)
    targets = {run.target for _, run in runs}
    target = targets.pop() if len(targets) == 1 else None
    charts = []
    for title, x, field in (("Metric over time", "seconds", "time_s"), ("Metric over energy", "joules", "energy_j")):
        lines = [
            Line(name, [(at, e.metric) for e in run.evaluations if (at := getattr(e, field)) is not None], index)
            for index, (name, run) in enumerate(runs)
        ]
        charts.append(Chart(title, x, metric, lines, target))
    return charts
