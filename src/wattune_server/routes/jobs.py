"""Proxy sweeps as jobs, their curves and the learning curves of their runs."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from wattune.records.served import SweepRequest
from wattune_server.bodies import body
from wattune_server.jobs import queue
from wattune_server.jobs.answers import JobAnswers
from wattune_server.problems import Problem
from wattune_server.routes.endpoint import DEVICE, READ, IdPath, answer
from wattune_server.security import Identity
from wattune_server.store import model_catalog
from wattune_server.store.schema import JobRow

router = APIRouter(prefix="/v1/jobs")


@router.post("", dependencies=DEVICE)
def post_job(request: Request, sweep: Annotated[SweepRequest, Depends(body(SweepRequest))]) -> Response:
    """Submit a sweep: how many samples does each batch size of a model need?

    The same request is the same job: a failed or parked one is returned unchanged, a cancelled one is restarted.
    """
    database = request.app.state.database
    with database.session(reads_only=True) as session:
        model = model_catalog.get(session, sweep.model)
        if model is None:
            raise Problem(404, "no such model", value=sweep.model)
        # Fleets repeat the same request, and an existing job needs no write transaction.
        existing = queue.status(session, sweep.key(model.digest))
    if existing is not None and existing.state != "cancelled":
        return answer(existing.model_dump(mode="json"))
    with database.session() as session:
        owner, most = _owner(request), request.app.state.settings.limits.sweeps_per_token
        job, is_new = queue.submit(session, model, sweep, time.time(), owner=owner, most=most)
        status = queue.status(session, job.id)
        assert status is not None
    request.app.state.job_answers.forget(status.job)
    return answer(status.model_dump(mode="json"), 201 if is_new else 200)


@router.get("/{job}", dependencies=READ)
async def get_job(request: Request, job: IdPath) -> Response:
    """Get the status of a job; status 304 if the client knows it, by If-None-Match."""
    answers: JobAnswers = request.app.state.job_answers
    status = answers.fresh(job) or await run_in_threadpool(answers.read, job)
    if status is None:
        raise _unknown(job)
    tag = f'"{status.tag}"'
    if request.headers.get("if-none-match", "").removeprefix("W/") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(status.content, 200, {"ETag": tag}, "application/json")


@router.get("/{job}/curve", dependencies=READ)
def get_curve(request: Request, job: IdPath) -> Response:
    """Get the curve of a job; status 409 while it is not done."""
    with request.app.state.database.session(reads_only=True) as session:
        row = session.get(JobRow, job)
        if row is None:
            raise _unknown(job)
        if row.curve is None:
            raise Problem(409, f"job {job} is not done", value=row.state, hint=row.reason)
        return answer(row.curve)


def _owner(request: Request) -> str | None:
    """Id of the token whose open jobs are counted; None for an admin and without authentication."""
    identity: Identity = request.state.identity
    return identity.token if identity.is_limited else None


def _unknown(job: str) -> Problem:
    return Problem(404, "no such job", value=job)
