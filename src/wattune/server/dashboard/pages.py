"""Routes of the pages."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Form
from sqlalchemy import func, select
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from wattune.errors import OutputError, RecordError
from wattune.records import LearningCurve, ProfileTable, SampleEfficiency
from wattune.records.served import SweepStatus
from wattune.reporting import phrases
from wattune.reporting.heat_maps import arrange
from wattune.server import security
from wattune.server.dashboard import views
from wattune.server.dashboard.heatmap import (
    CapStep,
    as_json,
    cap_steps,
    checked_cap,
    fits_page,
    heatmaps,
    slider,
    step_at,
    strip,
)
from wattune.server.dashboard.line_chart import Chart, Line, colour
from wattune.server.dashboard.responses import Key, Name, Reader, embedded, message, not_found, respond
from wattune.server.jobs import queue
from wattune.server.problems import Problem
from wattune.server.routes.jobs import cancel_as
from wattune.server.store import FileStore
from wattune.server.store.schema import OPEN, JobRow, ModelRow, TrainingRow
from wattune.server.store.statuses import READER_S

router = APIRouter()

NO_POINT = "no measured point stays under this cap"


@router.get("/")
def devices(request: Request, identity: Reader, find: Key = "") -> Response:
    """List the devices, live."""
    request.app.state.statuses.flush(READER_S)
    with request.app.state.database.session(reads_only=True) as session:
        now_s = time.time()
        device_views, total = views.devices(session, now_s, find)
        fleet = views.fleet(session, now_s)
        open_jobs = session.scalar(select(func.count()).select_from(JobRow).where(JobRow.state.in_(OPEN)))
        runs_total = views.count(session, TrainingRow)
        model = session.scalar(select(ModelRow.name).order_by(ModelRow.name).limit(1))
    return respond(
        request,
        "devices.html",
        section="Devices",
        devices=device_views,
        total=total,
        find=find,
        fleet=fleet,
        jobs_open=open_jobs or 0,
        runs_total=runs_total,
        model=model,
        url=str(request.base_url).rstrip("/") + request.app.state.settings.root_path,
    )


@router.get("/jobs")
def jobs(request: Request, identity: Reader) -> Response:
    """List the newest jobs."""
    with request.app.state.database.session(reads_only=True) as session:
        statuses = queue.listing(session, limit=views.PAGE_ROWS)
    return respond(request, "jobs.html", section="Jobs", jobs=statuses)


@router.get("/jobs/{job_id}")
def job(request: Request, identity: Reader, job_id: Name) -> Response:
    """Show one job: its runs, their learning curves so far, and the final curve."""
    with request.app.state.database.session(reads_only=True) as session:
        status = queue.status(session, job_id)
        row = session.execute(
            select(JobRow.curve, JobRow.token, JobRow.is_shared).where(JobRow.id == job_id)
        ).one_or_none()
    if status is None or row is None:
        return not_found(request, "job", "/jobs")
    record, owner, is_shared = row
    curve = None if record is None else SampleEfficiency.parse(record)
    learning, lost_runs = _learning_chart(request.app.state.files, status)
    return respond(
        request,
        "job.html",
        section="Jobs",
        job=status,
        curve=curve,
        learning=learning,
        lost=lost_runs,
        relative=None if curve is None else _relative_chart(curve),
        relative_note="Band: 90 %." if curve is not None and any(p.low is not None for p in curve.points) else "",
        may_change=identity.may("admin") if status.ended else security.may_cancel(identity, owner, is_shared=is_shared),
    )


@router.post("/jobs/{job_id}/cancel")
def cancel(
    request: Request,
    identity: Annotated[security.Identity, Depends(security.require_form("device"))],
    job_id: Name,
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Cancel a job."""
    return _change(request, job_id, csrf, cancel_as(identity))


@router.post("/jobs/{job_id}/retry")
def retry(
    request: Request,
    identity: Annotated[security.Identity, Depends(security.require_form("admin"))],
    job_id: Name,
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Restart a job that ended without a curve."""
    return _change(request, job_id, csrf, queue.retry)


@router.get("/profiles")
def profiles(request: Request, identity: Reader) -> Response:
    """List the newest profiles."""
    with request.app.state.database.session(reads_only=True) as session:
        rows = views.profiles(session)
    return respond(request, "profiles.html", section="Profiles", profiles=rows)


@router.get("/profiles/{profile_id}")
def profile(request: Request, identity: Reader, profile_id: Name, cap: Key = "", job: Key = "") -> Response:
    """Show a profile as two maps, and the operating point chosen under a cap."""
    with request.app.state.database.session(reads_only=True) as session:
        row = views.profile(session, profile_id)
        if row is None:
            return not_found(request, "profile", "/profiles")
        table, publisher, created_s = row
        curves = views.curves(session, table, job or None)
    if not fits_page(table):
        text = f"It has {len(table.cells)} cells, too many to draw. GET /v1/profiles/{profile_id} returns the record."
        return message(request, "A large profile", text, status=200, back="/profiles")
    values: dict[str, Any] = {"id": profile_id, "table": table, "publisher": publisher, "created_s": created_s}
    return respond(request, "profile.html", section="Profiles", **values, **_choice(table, curves, cap, job))


@router.get("/models")
def models(request: Request, identity: Reader) -> Response:
    """List the models."""
    with request.app.state.database.session(reads_only=True) as session:
        rows = views.models(session)
    return respond(request, "models.html", section="Models", models=rows)


@router.get("/login")
def login(request: Request, next: str = "/") -> Response:
    """Show the sign-in form."""
    if not security.requires_token(request):
        return RedirectResponse(_local_path(next), 303)
    return respond(request, "login.html", next=_local_path(next), problem=None)


@router.post("/login")
def sign_in(
    request: Request,
    token: Annotated[str, Form(max_length=200)] = "",
    next: Annotated[str, Form(max_length=500)] = "/",
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Sign in with a token."""
    security.check_form(request, csrf)
    answer = RedirectResponse(_local_path(next), 303)
    try:
        security.sign_in(request, answer, token)
    except Problem as problem:
        if problem.status != 401:
            raise
        reason = f"Sign-in failed: {problem.fields['what']}."
        return respond(request, "login.html", status=401, next=_local_path(next), problem=reason)
    return answer


@router.post("/logout")
def sign_out(
    request: Request,
    identity: Annotated[security.Identity, Depends(security.require_form("read"))],
    csrf: Annotated[str, Form()] = "",
) -> Response:
    """Sign out."""
    security.check_form(request, csrf)
    answer = RedirectResponse("/login", 303)
    security.sign_out(request, answer)
    return answer


def _change(request: Request, job_id: str, csrf: str, change: Callable[..., SweepStatus | None]) -> Response:
    security.check_form(request, csrf)
    with request.app.state.database.session() as session:
        try:
            status = change(session, job_id, time.time())
        except queue.WrongState as error:
            return message(request, "Not possible now", f"{error}.", status=409, back=f"/jobs/{job_id}")
    request.app.state.job_watch.forget(job_id)
    return not_found(request, "job", "/jobs") if status is None else RedirectResponse(f"/jobs/{job_id}", 303)


def _local_path(path: str) -> str:
    """Validate a redirect target: a path of this server, or "/" for anything else."""
    try:
        parts = urlsplit(path)
    except ValueError:  # a bracket that is not closed
        return "/"
    is_ours = not parts.scheme and not parts.netloc and path.startswith("/") and "\\" not in path
    return path if is_ours and not path.startswith("//") and path.isprintable() else "/"


def _learning_chart(files: FileStore, status: SweepStatus) -> tuple[Chart, int]:
    """Chart of the learning curves so far, and the number of unreadable ones."""
    sizes, curves, lost_runs = sorted({run.batch_size for run in status.runs}), [], 0
    for run in status.runs:
        if run.curve is None:
            continue
        try:
            curves.append(LearningCurve.model_validate_json(files.read(run.curve)))
        except OutputError:
            lost_runs += 1
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
    metric = phrases.metric(curves[0].metric if curves else None)
    return Chart("Learning curves of the proxy", "samples", metric, lines, target), lost_runs


def _relative_chart(curve: SampleEfficiency) -> Chart | None:
    points = sorted(
        (point.batch_size, point.relative_samples, point.low, point.high)
        for point in curve.points
        if point.relative_samples is not None
    )
    band = [(float(size), low, high) for size, _, low, high in points if low is not None and high is not None]
    line = Line("relative samples", [(size, relative) for size, relative, _, _ in points], marks=True)
    title = f"Samples relative to batch size {curve.reference_batch_size}"
    sizes = [float(size) for size, *_ in points]
    return Chart(title, "batch size", "relative samples", [line], band=band, logs="x", x_ticks=sizes)


def _choice(table: ProfileTable, curves: list[tuple[str, str, SampleEfficiency]], cap: str, job: str) -> dict[str, Any]:
    grid = arrange(table)
    selected = next((entry for entry in curves if entry[0] == job), curves[0] if curves else None)
    job_id, curve = ("", None) if selected is None else (selected[0], selected[2])
    problem = f"There is no finished job {job[:8]}." if job and job != job_id else ""
    steps: list[CapStep] = []
    for efficiency in (curve, None):
        try:
            steps = cap_steps(table, efficiency) if table.measured else []
            break
        except RecordError as error:
            problem = f"{error}."
    low_w, high_w = slider(steps) if steps else (0.0, 1.0)
    cap_w = checked_cap(cap, high_w)
    step, picks = step_at(steps, cap_w), strip(steps, low_w, high_w, grid)
    return {
        "problem": problem,
        "curves": curves,
        "job_id": job_id,
        "steps": steps,
        "step": step,
        "no_point_text": NO_POINT,
        "low": f"{low_w:.2f}",
        "high": f"{high_w:.2f}",
        "slider_step": "0.01",
        "cap_w": cap_w,
        "picks": picks,
        "sizes": sorted({(pick.batch_size, pick.colour) for pick in picks}),
        "edges": [-1 if at is None else at for at in step.marked] if step else [-1] * len(grid.rows),
        "known": [any(at == row for at, _ in (*grid.cells, *grid.aborted)) for row in range(len(grid.rows))],
        "maps": heatmaps(table),
        "row_title": "batch size" if all(b == m for b, m in grid.rows) else "batch size / micro-batch size",
        "column_title": grid.title,
        "steps_json": embedded({"steps": as_json(steps), "none": NO_POINT, "rows": len(grid.rows)}),
    }
