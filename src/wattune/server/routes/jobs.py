"""Proxy sweeps as jobs, their curves and the learning curves of their runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from wattune.records import LearningCurve, SampleEfficiency
from wattune.records.served import SweepRequest, SweepState, SweepStatus
from wattune.server.bodies import body
from wattune.server.jobs import queue
from wattune.server.jobs.watch import JobAnswer, JobWatch
from wattune.server.limits import too_many
from wattune.server.problems import Problem
from wattune.server.routes.endpoint import (
    MAX_WAIT_S,
    IdPath,
    IdQuery,
    Limit,
    ModelQuery,
    answer,
    is_cached,
    route,
    wait_s,
)
from wattune.server.security import Identity
from wattune.server.store import model_catalog, retention
from wattune.server.store.schema import OPEN, JobRow

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

NonNegative = Annotated[int, Path(ge=0, le=2**31 - 1)]


@router.post("", **route("device", SweepStatus, also=(201,), takes=SweepRequest))
def post_job(request: Request, sweep: Annotated[SweepRequest, Depends(body(SweepRequest))]) -> Response:
    """Submit a sweep: how many samples does each batch size of a model need?

    The same request is the same job: a failed or parked one is returned unchanged, a cancelled one is restarted.
    """
    database = request.app.state.database
    with database.session(reads_only=True) as session:
        model = model_catalog.get(session, sweep.model)
        if model is None:
            raise Problem(404, "no such model", value=sweep.model, hint="GET /v1/models")
        # Fleets repeat the same request, and an existing job needs no write transaction.
        existing = queue.status(session, sweep.key(model.digest))
    if existing is not None and existing.state != "cancelled":
        return answer(existing.model_dump(mode="json"), 200, Location=f"/v1/jobs/{existing.job}")
    with database.session() as session:
        owner, most = _owner(request), request.app.state.settings.limits.sweeps_per_token
        job, is_new = queue.submit(session, model, sweep, time.time(), owner=owner, most=most)
        status = queue.status(session, job.id)
        assert status is not None
    request.app.state.job_watch.forget(status.job)
    return answer(status.model_dump(mode="json"), 201 if is_new else 200, Location=f"/v1/jobs/{status.job}")


@router.get("", **route("read", list[SweepStatus]))
def list_jobs(
    request: Request,
    state: Annotated[SweepState | None, Query()] = None,
    model: ModelQuery = None,
    limit: Limit = 50,
    before: IdQuery = None,
) -> Response:
    """List the jobs without their runs, newest first, starting after ``before``."""
    with request.app.state.database.session(reads_only=True) as session:
        statuses = queue.listing(session, state=state, model=model, limit=limit, before=before)
    return answer([status.model_dump(mode="json") for status in statuses])


@router.get("/{job}", **route("read", SweepStatus, also=(304,)))
async def get_job(request: Request, job: IdPath) -> Response:
    """Get the status of a job.

    With If-None-Match and ``Prefer: wait=20`` (RFC 7240), the response waits until the status has changed, for that
    many seconds at most.
    """
    watch: JobWatch = request.app.state.job_watch
    status = watch.fresh(job) or await run_in_threadpool(watch.read, job)
    if status is None:
        raise _unknown(job)
    if not is_cached(request, status.tag):
        return _as_json(status)
    token, most = request.state.identity.token, request.app.state.settings.limits.polls_per_token
    if token is not None and watch.waits(token) >= most:
        raise too_many(f"more than {most} requests of one token wait", MAX_WAIT_S)
    changed = await watch.changed(job, status.tag, wait_s(request), token)
    return Response(status_code=304, headers={"ETag": f'"{status.tag}"'}) if changed is None else _as_json(changed)


@router.post("/{job}/cancel", **route("admin", SweepStatus))
def cancel_job(request: Request, job: IdPath) -> Response:
    """Cancel a job; finished runs are kept."""
    return _change(request, queue.cancel, job)


@router.post("/{job}/retry", **route("admin", SweepStatus))
def retry_job(request: Request, job: IdPath) -> Response:
    """Restart a job that has ended without a curve."""
    return _change(request, queue.retry, job)


@router.delete("/{job}", **route("admin", status=204))
def delete_job(request: Request, job: IdPath) -> Response:
    """Remove a job that has ended, with its runs."""
    with request.app.state.database.session() as session:
        row = queue.locked(session, job)
        if row is None:
            raise _unknown(job)
        if row.state in OPEN:
            raise Problem(409, f"job {job} has not ended", value=row.state, hint="cancel it first")
        retention.remove(session, JobRow, job)
    request.app.state.job_watch.forget(job)
    return Response(status_code=204)


@router.get("/{job}/curve", **route("read", SampleEfficiency))
def get_curve(request: Request, job: IdPath) -> Response:
    """Get the curve of a job; status 409 while it is not done."""
    with request.app.state.database.session(reads_only=True) as session:
        row = session.get(JobRow, job)
        if row is None:
            raise _unknown(job)
        if row.curve is None:
            raise Problem(409, f"job {job} is not done", value=row.state, hint=row.reason)
        return answer(row.curve)


@router.get("/{job}/runs/{batch_size}/{seed}", **route("read", LearningCurve))
def get_run(request: Request, job: IdPath, batch_size: NonNegative, seed: NonNegative) -> Response:
    """Get the learning curve of one proxy run, byte for byte as it was stored."""
    with request.app.state.database.session(reads_only=True) as session:
        status = queue.status(session, job)
    if status is None:
        raise _unknown(job)
    run = next((run for run in status.runs if (run.batch_size, run.seed) == (batch_size, seed)), None)
    if run is None:
        raise Problem(404, f"job {job} has no finished run of batch size {batch_size} and seed {seed}")
    assert run.curve is not None  # only an earlier server listed runs that are not finished
    content = request.app.state.files.read(run.curve)
    return Response(content, media_type="application/json", headers={"ETag": f'"{run.curve}"'})


def _owner(request: Request) -> str | None:
    """Id of the token whose open jobs are counted; None for an admin and without authentication."""
    identity: Identity = request.state.identity
    return identity.token if identity.is_limited else None


def _change(request: Request, change: Callable[[Session, str, float], SweepStatus | None], job: str) -> Response:
    with request.app.state.database.session() as session:
        status = change(session, job, time.time())
    if status is None:
        raise _unknown(job)
    request.app.state.job_watch.forget(job)
    return answer(status.model_dump(mode="json"))


def _as_json(status: JobAnswer) -> Response:
    return Response(status.content, 200, {"ETag": f'"{status.tag}"'}, "application/json")


def _unknown(job: str) -> Problem:
    return Problem(404, "no such job", value=job, hint="GET /v1/jobs")
