"""Routes of the pages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from wattune.cap import PowerCap
from wattune.errors import OutputError, WattuneError
from wattune.planning import plan
from wattune.records import LearningCurve, Plan, ProfileTable, SampleEfficiency
from wattune.records.served import SweepStatus
from wattune.reporting import batch_size_charts, heat_maps, metric_charts, training_charts
from wattune.reporting.page import Figure
from wattune_server import security
from wattune_server.dashboard import views
from wattune_server.dashboard.responses import Fields, Key, Name, Reader, message, not_found, respond
from wattune_server.jobs import queue
from wattune_server.problems import Problem
from wattune_server.store import FileStore, model_catalog
from wattune_server.store.schema import OPEN, JobRow, ModelRow, TrainingRow
from wattune_server.store.statuses import READER_S

router = APIRouter()

MAX_CELLS = 4096
"""Maximum number of cells of a map: sparse measurements can make a map of the square of their number."""


@router.get("/")
def devices(
    request: Request, identity: Reader, find: Key = "", state: Key = "", sort: Key = "device", order: Key = ""
) -> Response:
    """List the devices, live."""
    query = views.DeviceQuery(find, state, sort, order == "desc")
    request.app.state.statuses.flush(READER_S)
    with request.app.state.database.session(reads_only=True) as session:
        now_s = time.time()
        device_views, total = views.devices(session, now_s, query)
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
        query=query,
        states=views.STATES,
        as_cards=total <= views.CARDS and not query.filters,
        fleet=fleet,
        jobs_open=open_jobs or 0,
        runs_total=runs_total,
        model=model,
        url=str(request.base_url).rstrip("/"),
    )


@router.get("/devices/{name}")
def device(request: Request, identity: Reader, name: Name, history: bool = True) -> Response:
    """Show one device. ``history``: False for its state alone, which the page fetches every two seconds."""
    request.app.state.statuses.flush(READER_S)
    with request.app.state.database.session(reads_only=True) as session:
        state = views.device(session, name, time.time())
        runs, total = views.runs(session, name, views.PAGE_ROWS) if history else ([], 0)
        newest = views.training(session, runs[0].id) if runs else None
    if state is None and not runs:
        return not_found(request, "device", "/")
    values: dict[str, Any] = {}
    if history:
        figure = None if newest is None else training_charts.power_trace(newest[-1])
        sums = {field: _sum(getattr(run, field) for run in runs) for field in ("time_s", "energy_j", "above_cap_s")}
        values = {"figures": [figure] if figure else [], "runs": runs, "total": total, "sums": sums}
    return respond(request, "device.html", section="Devices", name=name, state=state, history=history, **values)


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
        record = session.scalar(select(JobRow.curve).where(JobRow.id == job_id))
    if status is None:
        return not_found(request, "job", "/jobs")
    curve = None if record is None else SampleEfficiency.parse(record)
    curves, lost_runs = _curves(request.app.state.files, status)
    figures: list[Figure] = []
    if curves:
        figures.append(metric_charts.learning_curves("curves", "Learning curves of the proxy", curves))
    if curve is not None:
        figures.append(batch_size_charts.samples_to_target(curve))
    return respond(
        request,
        "job.html",
        section="Jobs",
        job=status,
        curve=curve,
        outdated=views.outdated(curve),
        figures=figures,
        lost=lost_runs,
        may_change=identity.may("admin"),
    )


@router.post("/jobs/{job_id}/cancel", dependencies=[Depends(security.require("admin"))])
def cancel(request: Request, job_id: Name) -> Response:
    """Cancel a job."""
    return _change(request, job_id, queue.cancel)


@router.post("/jobs/{job_id}/retry", dependencies=[Depends(security.require("admin"))])
def retry(request: Request, job_id: Name) -> Response:
    """Restart a job that ended without a curve."""
    return _change(request, job_id, queue.retry)


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
        curve = views.curve(session, table, job)
    if len({cell.shape for cell in table.cells}) * len({cell.knobs for cell in table.cells}) > MAX_CELLS:
        text = f"It has {len(table.cells)} cells, too many to draw. GET /v1/profiles/{profile_id} returns the record."
        return message(request, "A large profile", text, status=200, back="/profiles")
    values: dict[str, Any] = {"id": profile_id, "table": table, "publisher": publisher, "created_s": created_s}
    values |= {"cap": cap.strip(), "job": job, "curve": curve, **_choice(table, curve, cap)}
    return respond(request, "profile.html", section="Profiles", **values)


@router.get("/runs")
def runs(request: Request, identity: Reader) -> Response:
    """List the newest finished training runs."""
    with request.app.state.database.session(reads_only=True) as session:
        rows, total = views.runs(session, "", views.PAGE_ROWS)
    return respond(request, "runs.html", section="Runs", runs=rows, total=total)


@router.get("/runs/{run_id}")
def run(request: Request, identity: Reader, run_id: Name) -> Response:
    """Show one training run: its plan, what it took, its charts, and what the guard did."""
    with request.app.state.database.session(reads_only=True) as session:
        row = views.training(session, run_id)
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
        outdated=views.outdated(record.plan),
        figures=[figure for figure in figures if figure is not None],
        most=views.PAGE_ROWS,
    )


@router.get("/models")
def models(request: Request, identity: Reader) -> Response:
    """List the models."""
    with request.app.state.database.session(reads_only=True) as session:
        rows = model_catalog.listing(session, limit=views.PAGE_ROWS)
        total = session.scalar(select(func.count()).select_from(ModelRow)) or 0
    return respond(request, "models.html", section="Models", models=rows, total=total)


@router.get("/login")
def login(request: Request, next: str = "/") -> Response:
    """Show the sign-in form."""
    if not security.requires_token(request):
        return RedirectResponse(_local_path(next), 303)
    return respond(request, "login.html", next=_local_path(next), problem=None)


@router.post("/login")
def sign_in(request: Request, fields: Fields) -> Response:
    """Sign in with a token."""
    next = _local_path(fields.get("next", "/"))
    answer = RedirectResponse(next, 303)
    try:
        security.sign_in(request, answer, fields.get("token", ""))
    except Problem as problem:
        if problem.status != 401:
            raise
        reason = f"Sign-in failed: {problem.what}."
        return respond(request, "login.html", status=401, next=next, problem=reason)
    return answer


@router.post("/logout")
def sign_out(request: Request, identity: Reader) -> Response:
    """Sign out."""
    answer = RedirectResponse("/login", 303)
    security.sign_out(request, answer)
    return answer


def _change(request: Request, job_id: str, change: Callable[[Session, str, float], bool]) -> Response:
    try:
        with request.app.state.database.session() as session:
            is_there = change(session, job_id, time.time())
    except queue.WrongState as error:  # it has ended meanwhile
        return message(request, "Too late", f"{error}.", status=409, back=f"/jobs/{job_id}")
    request.app.state.job_answers.forget(job_id)
    return RedirectResponse(f"/jobs/{job_id}", 303) if is_there else not_found(request, "job", "/jobs")


def _local_path(path: str) -> str:
    """Validate a redirect target: a path of this server, or "/" for anything else."""
    try:
        parts = urlsplit(path)
    except ValueError:  # a bracket that is not closed
        return "/"
    is_ours = not parts.scheme and not parts.netloc and path.startswith("/") and "\\" not in path
    return path if is_ours and not path.startswith("//") and path.isprintable() else "/"


def _curves(files: FileStore, status: SweepStatus) -> tuple[list[LearningCurve], int]:
    """Read the learning curves so far; return them and the number of unreadable ones."""
    curves, lost_runs = [], 0
    for run in status.runs:
        if run.curve is not None:
            try:
                curves.append(LearningCurve.model_validate_json(files.read(run.curve)))
            except OutputError:
                lost_runs += 1
    return curves, lost_runs


def _choice(table: ProfileTable, curve: SampleEfficiency | None, cap: str) -> dict[str, Any]:
    """Plan with the profile under the cap, and draw it as the report does."""
    problem = ""
    wanted = PowerCap.parse(cap) if cap.strip() else PowerCap()
    chosen: Plan | None = None
    if (outdated := views.outdated(table, curve)) is not None:
        problem = outdated
    elif curve is not None and table.measured:
        try:
            chosen = plan(table, curve, cap=wanted)
        except WattuneError as error:
            problem = f"{error}."
    figures: list[Figure | None] = []
    if table.measured:
        figures += [heat_maps.time_map(table, chosen), heat_maps.power_map(table, chosen)]
    if chosen is not None:
        figures.append(batch_size_charts.time_to_target(chosen, table, curve))
    if curve is not None:
        figures.append(batch_size_charts.samples_to_target(curve))
    return {"problem": problem, "chosen": chosen, "figures": [figure for figure in figures if figure is not None]}


def _sum(values: Iterable[float | None]) -> float | None:
    """Sum of the known values; None if there is none, or if it overflows: a record may hold any number."""
    known = [value for value in values if value is not None]
    total = sum(known)
    return total if known and math.isfinite(total) else None
