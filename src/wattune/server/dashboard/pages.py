"""The routes of the pages."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Form, Path, Query
from sqlalchemy import func, select
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from wattune.errors import InputError, OutputError, RecordError
from wattune.records import EfficiencyCurve, LearningCurve, ProfileTable, TrainingRecord
from wattune.records.served import SweepStatus
from wattune.reporting import words
from wattune.reporting.maps import arrange
from wattune.server import security
from wattune.server.dashboard import reading
from wattune.server.dashboard.figures import Chart, Line, colour
from wattune.server.dashboard.heatmap import (
    Step,
    as_json,
    can_be_drawn,
    checked_cap,
    heatmaps,
    slider,
    step_of,
    steps,
    strip,
)
from wattune.server.dashboard.rendering import embedded, message, respond
from wattune.server.jobs import queue
from wattune.server.problems import Problem
from wattune.server.routes.parts import NO_NUL
from wattune.server.store import FileStore
from wattune.server.store.tables import JobRow, ModelRow, TrainingRow

router = APIRouter(include_in_schema=False)

Reader = Annotated[security.Identity, Depends(security.require("read"))]
Key = Annotated[str, Query(max_length=64, pattern=NO_NUL)]
Name = Annotated[str, Path(max_length=64, pattern=NO_NUL)]

NONE_KEEPS = "no measured point keeps this cap"


@router.get("/")
def devices(request: Request, who: Reader, find: Key = "") -> Response:
    """Every device, live."""
    with request.app.state.database.session(reads_only=True) as session:
        now_s = time.time()
        found, total = reading.devices(session, now_s, find)
        fleet = reading.fleet(session, now_s)
        open_jobs = session.scalar(select(func.count()).select_from(JobRow).where(JobRow.state.in_(queue.OPEN)))
        runs_total = reading.count(session, TrainingRow)
        model = session.scalar(select(ModelRow.name).order_by(ModelRow.name).limit(1))
    return respond(
        request,
        "devices.html",
        section="Devices",
        devices=found,
        total=total,
        find=find,
        fleet=fleet,
        jobs_open=open_jobs or 0,
        runs_total=runs_total,
        model=model,
        url=str(request.base_url).rstrip("/"),
    )


@router.get("/jobs")
def jobs(request: Request, who: Reader) -> Response:
    """The newest jobs."""
    with request.app.state.database.session(reads_only=True) as session:
        found = queue.listing(session, limit=reading.SHOWN)
    return respond(request, "jobs.html", section="Jobs", jobs=found)


@router.get("/jobs/{job_id}")
def job(request: Request, who: Reader, job_id: Name) -> Response:
    """One job: its runs, their learning curves as they arrive, and the curve that comes of them."""
    with request.app.state.database.session(reads_only=True) as session:
        found = queue.status(session, job_id)
        record = session.scalar(select(JobRow.curve).where(JobRow.id == job_id))
    if found is None:
        return _missing(request, "job", "/jobs")
    curve = None if record is None else EfficiencyCurve.parse(record)
    learning, lost = _learning(request.app.state.files, found)
    return respond(
        request,
        "job.html",
        section="Jobs",
        job=found,
        curve=curve,
        learning=learning,
        lost=lost,
        relative=None if curve is None else _relative(curve),
        relative_note="Band: 90 %." if curve is not None and any(p.low is not None for p in curve.points) else "",
        may_change=who.may("admin" if found.ended else "device"),
    )


@router.post("/jobs/{job_id}/cancel")
def cancel(
    request: Request,
    who: Annotated[security.Identity, Depends(security.require_form("device"))],
    job_id: Name,
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Stop a job."""
    return _change(request, job_id, csrf, queue.cancel)


@router.post("/jobs/{job_id}/retry")
def retry(
    request: Request,
    who: Annotated[security.Identity, Depends(security.require_form("admin"))],
    job_id: Name,
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Start a job again that ended without a curve."""
    return _change(request, job_id, csrf, queue.retry)


@router.get("/profiles")
def profiles(request: Request, who: Reader) -> Response:
    """The newest profiles."""
    with request.app.state.database.session(reads_only=True) as session:
        found = reading.profiles(session)
    return respond(request, "profiles.html", section="Profiles", profiles=found)


@router.get("/profiles/{profile_id}")
def profile(request: Request, who: Reader, profile_id: Name, cap: Key = "", job: Key = "") -> Response:
    """A profile as two maps, and what is chosen from it under a cap."""
    with request.app.state.database.session(reads_only=True) as session:
        found = reading.profile(session, profile_id)
        if found is None:
            return _missing(request, "profile", "/profiles")
        table, publisher, created_s = found
        curves = reading.curves(session, table, job or None)
    if not can_be_drawn(table):
        said = f"It has {len(table.cells)} cells, too many to draw. GET /v1/profiles/{profile_id} gives it as a record."
        return message(request, "A large profile", said, status=200, back="/profiles")
    shown: dict[str, Any] = {"id": profile_id, "table": table, "publisher": publisher, "created_s": created_s}
    return respond(request, "profile.html", section="Profiles", **shown, **_choice(table, curves, cap, job))


@router.get("/runs")
def runs(
    request: Request, who: Reader, sort: Key = "created_s", order: Key = "", device: Key = "", model: Key = ""
) -> Response:
    """Finished trainings, sorted."""
    if sort not in reading.ORDERS:
        raise InputError("sort", value=sort, allowed=", ".join(reading.ORDERS))
    descending = order == "desc" or (sort == "created_s" and order != "asc")
    with request.app.state.database.session(reads_only=True) as session:
        found, total = reading.runs(session, sort, descending, device, model)
    filters = {"device": device, "model": model}
    return respond(
        request,
        "runs.html",
        section="Runs",
        runs=found,
        total=total,
        sort=sort,
        descending=descending,
        filters=filters,
        most=reading.COMPARED,
    )


@router.get("/runs/compare")
def compare(request: Request, who: Reader, id: Annotated[list[str] | None, Query()] = None) -> Response:
    """Several trainings in one figure and one table."""
    wanted = list(dict.fromkeys(id or []))
    with request.app.state.database.session(reads_only=True) as session:
        found = reading.trainings(session, wanted[: reading.COMPARED])
    named = _named(found)
    return respond(
        request,
        "compare.html",
        section="Runs",
        runs=named,
        too_many=len(wanted) > reading.COMPARED,
        kinds=sorted({run.provenance.kind or words.UNKNOWN for _, _, run in named}),
        charts=_compared(named),
    )


@router.get("/models")
def models(request: Request, who: Reader) -> Response:
    """The models on offer."""
    with request.app.state.database.session(reads_only=True) as session:
        found = reading.models(session)
    return respond(request, "models.html", section="Models", models=found)


@router.get("/login")
def login(request: Request, next: str = "/") -> Response:
    """The form that asks for a token."""
    if not security.asks_for_token(request):
        return RedirectResponse(_inside(next), 303)
    return respond(request, "login.html", next=_inside(next), problem=None)


@router.post("/login")
def begin(
    request: Request,
    token: Annotated[str, Form(max_length=200)] = "",
    next: Annotated[str, Form(max_length=500)] = "/",
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Sign in with a token."""
    security.check_form(request, csrf)
    answer = RedirectResponse(_inside(next), 303)
    try:
        security.sign_in(request, answer, token)
    except Problem as problem:
        if problem.status != 401:
            raise
        said = f"This token is not taken: {problem.fields['what']}."
        return respond(request, "login.html", status=401, next=_inside(next), problem=said)
    return answer


@router.post("/logout")
def leave(
    request: Request,
    who: Annotated[security.Identity, Depends(security.require_form("read"))],
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Sign out."""
    security.check_form(request, csrf)
    answer = RedirectResponse("/login", 303)
    security.sign_out(request, answer)
    return answer


def _missing(request: Request, what: str, back: str) -> Response:
    return message(request, f"No such {what}", f"This server has no {what} of that name.", status=404, back=back)


def _change(request: Request, job_id: str, csrf: str, change: Callable[..., SweepStatus | None]) -> Response:
    security.check_form(request, csrf)
    with request.app.state.database.session() as session:
        try:
            found = change(session, job_id, time.time())
        except queue.WrongState as error:
            return message(request, "Not possible now", f"{error}.", status=409, back=f"/jobs/{job_id}")
    return _missing(request, "job", "/jobs") if found is None else RedirectResponse(f"/jobs/{job_id}", 303)


def _inside(path: str) -> str:
    """A path of this server; whatever else was asked for, the first page."""
    try:
        parts = urlsplit(path)
    except ValueError:  # a bracket that is not closed
        return "/"
    is_ours = not parts.scheme and not parts.netloc and path.startswith("/") and "\\" not in path
    return path if is_ours and not path.startswith("//") and path.isprintable() else "/"


def _learning(files: FileStore, found: SweepStatus) -> tuple[Chart, int]:
    """The learning curves so far, and how many of them cannot be read: the rest of the page can be shown."""
    sizes, curves, lost = sorted({run.batch_size for run in found.runs}), [], 0
    for run in found.runs:
        if run.curve is None:
            continue
        try:
            curves.append(LearningCurve.model_validate_json(files.read(run.curve)))
        except OutputError:
            lost += 1
    lines = [
        Line(
            f"batch size {curve.batch_size}",
            [(point.samples, point.metric) for point in curve.evaluations],
            colour(sizes, curve.batch_size),
            dotted=not curve.reached,
        )
        for curve in sorted(curves, key=lambda curve: (curve.batch_size, curve.seed))
    ]
    target = next((curve.target for curve in curves), None)
    metric = words.metric(curves[0].metric if curves else None)
    return Chart("Learning curves of the proxy", "samples", metric, lines, target), lost


def _relative(curve: EfficiencyCurve) -> Chart | None:
    known = sorted(
        (point.batch_size, point.relative_samples, point.low, point.high)
        for point in curve.points
        if point.relative_samples is not None
    )
    band = [(float(size), low, high) for size, _, low, high in known if low is not None and high is not None]
    line = Line("relative samples", [(size, relative) for size, relative, _, _ in known], marks=True)
    title = f"Samples relative to batch size {curve.reference_batch_size}"
    sizes = [float(size) for size, *_ in known]
    return Chart(title, "batch size", "relative samples", [line], band=band, logs="x", x_ticks=sizes)


def _choice(table: ProfileTable, curves: list[tuple[str, str, EfficiencyCurve]], cap: str, job: str) -> dict[str, Any]:
    grid = arrange(table)
    chosen = next((found for found in curves if found[0] == job), curves[0] if curves else None)
    job_id, curve = ("", None) if chosen is None else (chosen[0], chosen[2])
    problem = f"No finished job {job[:8]} here." if job and job != job_id else ""
    found: list[Step] = []
    for known in (curve, None):
        try:
            found = steps(table, known) if table.measured else []
            break
        except RecordError as error:
            problem = f"{error}."
    low_w, high_w = slider(found) if found else (0.0, 1.0)
    cap_w = checked_cap(cap, high_w)
    step, picks = step_of(found, cap_w), strip(found, low_w, high_w, grid)
    return {
        "problem": problem,
        "curves": curves,
        "job_id": job_id,
        "steps": found,
        "step": step,
        "none_says": NONE_KEEPS,
        "low": f"{low_w:.2f}",
        "high": f"{high_w:.2f}",
        "slider_step": "0.01",
        "cap_w": cap_w,
        "picks": picks,
        "sizes": sorted({(pick.batch_size, pick.colour) for pick in picks}),
        "edges": [-1 if at is None else at for at in step.marked] if step else [-1] * len(grid.rows),
        "known": [any(at == row for at, _ in (*grid.cells, *grid.aborted)) for row in range(len(grid.rows))],
        "maps": heatmaps(grid),
        "row_title": "batch size" if all(b == m for b, m in grid.rows) else "batch size / micro-batch size",
        "column_title": grid.title,
        "steps_json": embedded({"steps": as_json(found), "none": NONE_KEEPS, "rows": len(grid.rows)}),
    }


def _named(found: list[tuple[str, str, TrainingRecord]]) -> list[tuple[str, str, TrainingRecord]]:
    """Each run with a name of its own: the device and the point, and which it is of several alike."""
    named: list[tuple[str, str, TrainingRecord]] = []
    seen: dict[str, int] = {}
    for key, device, run in found:
        name = f"{device}, {words.point(run.plan.point)}"
        seen[name] = seen.get(name, 0) + 1
        named.append((key, name if seen[name] == 1 else f"{name} ({seen[name]})", run))
    return named


def _compared(named: list[tuple[str, str, TrainingRecord]]) -> list[Chart]:
    metrics = {run.metric for _, _, run in named}
    metric = words.metric(metrics.pop() if len(metrics) == 1 else None)
    targets = {run.target for _, _, run in named}
    target = targets.pop() if len(targets) == 1 else None
    charts = []
    for title, x, field in (("Metric over time", "seconds", "time_s"), ("Metric over energy", "joules", "energy_j")):
        lines = [
            Line(name, [(at, e.metric) for e in run.evaluations if (at := getattr(e, field)) is not None], index)
            for index, (_, name, run) in enumerate(named)
        ]
        charts.append(Chart(title, x, metric, lines, target))
    return charts
