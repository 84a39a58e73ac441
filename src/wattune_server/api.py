"""The HTTP API. Each route declares the scope of the token that it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic_core import to_json
from sqlalchemy.orm import Session
from starlette.responses import FileResponse, Response

from wattune.records import ProfileTable, TrainingRecord
from wattune.records.served import (
    ARCHITECTURE,
    DEVICE_NAME,
    ID,
    INPUT_SHAPE,
    MODEL_NAME,
    DeviceStatus,
    ServedModel,
    SweepRequest,
)
from wattune_server.bodies import body
from wattune_server.jobs import queue
from wattune_server.jobs.answers import JobAnswers
from wattune_server.problems import Problem
from wattune_server.security import Identity, check_device, require
from wattune_server.store import model_catalog, records
from wattune_server.store.schema import JobRow, ProfileRow, TrainingRow
from wattune_server.store.statuses import READER_S

READY_S = 1.0
"""Cache time of a successful readiness check, which needs no authentication."""

ModelPath = Annotated[str, Path(pattern=MODEL_NAME)]
DevicePath = Annotated[str, Path(pattern=DEVICE_NAME)]
IdPath = Annotated[str, Path(pattern=ID)]
Device = Annotated[str, Query(pattern=DEVICE_NAME)]

READ, DEVICE, ADMIN = ([Depends(require(scope))] for scope in ("read", "device", "admin"))
"""Dependencies of a route that takes a token of a scope."""

router = APIRouter()
# Routes are matched in order, so those that a fleet calls most come first.


@router.put("/v1/devices/{name}", dependencies=DEVICE)
async def put_device(  # async: it needs no thread, since a status is only kept in memory here
    request: Request, name: DevicePath, status: Annotated[DeviceStatus, Depends(body(DeviceStatus))]
) -> Response:
    """Report the status of a device. It is written within a second."""
    if status.device != name:
        raise Problem(422, "device in the body differs from the path", value=status.device, allowed=name)
    check_device(request, name)
    request.app.state.statuses.put(status, time.time())
    return Response(status_code=204)


@router.post("/v1/jobs", dependencies=DEVICE)
def post_job(request: Request, sweep: Annotated[SweepRequest, Depends(body(SweepRequest))]) -> Response:
    """Submit a sweep: how many samples does each batch size of a model need?

    The same request is the same job: a failed or parked one is returned unchanged, a cancelled one is restarted.
    """
    database = request.app.state.database
    with database.session(reads_only=True) as session:
        model = model_catalog.get(session, sweep.model)
        if model is None:
            raise _unknown("model", sweep.model)
        # Fleets repeat the same request, and an existing job needs no write transaction.
        existing = queue.status(session, sweep.key(model.digest))
    if existing is not None and existing.state != "cancelled":
        return _answer(existing.model_dump(mode="json"))
    with database.session() as session:
        identity: Identity = request.state.identity
        owner = None if identity.limited is None else identity.limited.id  # the open jobs of an admin are not counted
        most = request.app.state.settings.limits.sweeps_per_token
        job, is_new = queue.submit(session, model, sweep, time.time(), owner=owner, most=most)
        status = queue.status(session, job.id)
        assert status is not None
    request.app.state.job_answers.forget(status.job)
    return _answer(status.model_dump(mode="json"), 201 if is_new else 200)


@router.get("/v1/jobs/{job}", dependencies=READ)
async def get_job(request: Request, job: IdPath) -> Response:
    """Get the status of a job; status 304 if the client knows it, by If-None-Match."""
    answers: JobAnswers = request.app.state.job_answers
    status = await answers.get(job)
    if status is None:
        raise _unknown("job", job)
    tag = f'"{status.tag}"'
    if request.headers.get("if-none-match", "").removeprefix("W/") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(status.content, 200, {"ETag": tag}, "application/json")


@router.get("/v1/jobs/{job}/curve", dependencies=READ)
def get_curve(request: Request, job: IdPath) -> Response:
    """Get the curve of a job; status 409 while it is not done."""
    with request.app.state.database.session(reads_only=True) as session:
        row = session.get(JobRow, job)
        if row is None:
            raise _unknown("job", job)
        if row.curve is None:
            raise Problem(409, f"job {job} is not done", value=row.state, hint=row.reason)
        return _answer(row.curve)


@router.get("/v1/models", dependencies=READ)
def get_models(
    request: Request,
    architecture: Annotated[str, Query(pattern=ARCHITECTURE)],
    input_shape: Annotated[str, Query(pattern=INPUT_SHAPE)],
) -> Response:
    """List the models of an architecture and input size, such as resnet18 and 3x32x32, in order of name."""
    with request.app.state.database.session(reads_only=True) as session:
        models = model_catalog.listing(session, factory=architecture)
    return _answer({"models": [model.dump() for model in models if model.size == f"{architecture}@{input_shape}"]})


@router.get("/v1/models/{name}", dependencies=READ)
def get_model(request: Request, name: ModelPath) -> Response:
    """Get a model: everything that a device needs to train it, except the weights."""
    return _answer(_model(request, name).dump())


@router.delete("/v1/models/{name}", dependencies=ADMIN)
def delete_model(request: Request, name: ModelPath) -> Response:
    """Remove a model. Rejected while a job of it is waiting or running."""
    with request.app.state.database.session() as session:
        if jobs := queue.in_use(session, name):
            raise Problem(409, f"waiting or running jobs of {name}", value=jobs, hint="cancel them first")
        if not model_catalog.delete(session, name):
            raise _unknown("model", name)
    return Response(status_code=204)


@router.get("/v1/models/{name}/weights", dependencies=READ)
def get_weights(request: Request, name: ModelPath) -> Response:
    """Get the weights, a safetensors file."""
    weights = _model(request, name).weights
    if weights is None:
        raise Problem(404, f"{name} has no weights; it is initialized randomly")
    path = request.app.state.files.path(weights.sha256)
    if not path.is_file():
        raise Problem(503, f"the weights of {name} are missing from the store", hint="restore it from a backup")
    # A whole file answers a request for a part, too; the framework would send parts, and plain text about wrong ones.
    request.scope["headers"] = [header for header in request.scope["headers"] if header[0] != b"range"]
    return _Parts(path, headers={"Accept-Ranges": "none"}, media_type="application/octet-stream")


def _model(request: Request, name: str) -> ServedModel:
    with request.app.state.database.session(reads_only=True) as session:
        model = model_catalog.get(session, name)
    if model is None:
        raise _unknown("model", name)
    return model


class _Parts(FileResponse):
    chunk_size = 2**20  # few large chunks, because each is read in another thread


@router.get("/v1/profiles/{profile}", dependencies=READ)
def get_profile(request: Request, profile: IdPath) -> Response:
    """Get a profile."""
    return _record(request, ProfileRow, profile, "profile")


@router.get("/v1/trainings/{training}", dependencies=READ)
def get_training(request: Request, training: IdPath) -> Response:
    """Get the record of a training run."""
    return _record(request, TrainingRow, training, "training run")


@router.post("/v1/profiles", dependencies=DEVICE)
async def post_profile(
    request: Request, device: Device, profile: Annotated[ProfileTable, Depends(body(ProfileTable))]
) -> Response:
    """Publish a profile."""
    check_device(request, device)
    return await _added(request, lambda session: records.add_profile(session, profile, device, time.time()))


@router.post("/v1/trainings", dependencies=DEVICE)
async def post_training(
    request: Request,
    device: Device,
    record: Annotated[TrainingRecord, Depends(body(TrainingRecord))],
    model: Annotated[str | None, Query(pattern=MODEL_NAME)] = None,
) -> Response:
    """Upload the record of a finished training run."""
    check_device(request, device)
    return await _added(request, lambda session: records.add_training(session, record, device, model, time.time()))


def _record(request: Request, table: type[ProfileRow | TrainingRow], record_id: str, kind: str) -> Response:
    with request.app.state.database.session(reads_only=True) as session:
        record = records.get(session, table, record_id)
    if record is None:
        raise _unknown(kind, record_id)
    return _answer(record)


async def _added(request: Request, add: Callable[[Session], tuple[str, bool]]) -> Response:
    def call() -> tuple[str, bool]:
        with request.app.state.database.session() as session:
            return add(session)

    # In a thread of another kind than reads, which need not wait while the disk is slow.
    record_id, is_new = await to_thread.run_sync(call, limiter=request.app.state.writes)
    return _answer({"id": record_id}, 201 if is_new else 200)


@router.get("/healthz")
async def get_health() -> Response:  # async: the threads may all be waiting for the database
    """Check that the process responds."""
    return _answer({"status": "alive"})


@router.get("/readyz")
def get_readiness(request: Request) -> Response:
    """Check that the database responds and the folder is writable; a success is cached for one second."""
    state, now_s = request.app.state, time.monotonic()
    if now_s - state.ready_s >= READY_S:
        state.database.ping()
        state.files.check_writable()
        state.ready_s = now_s
    return _answer({"status": "ready"})


@router.get("/metrics", dependencies=READ)
def get_metrics(request: Request) -> Response:
    """Get the metrics in Prometheus' text format."""
    request.app.state.statuses.flush(READER_S)
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _unknown(kind: str, name: str) -> Problem:
    return Problem(404, f"no such {kind}", value=name)


def _answer(content: object, status: int = 200) -> Response:
    """Build a JSON response."""
    return Response(to_json(content), status, media_type="application/json")
