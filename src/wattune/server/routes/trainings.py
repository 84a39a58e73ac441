"""Records of finished training runs; they contain no training data."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from wattune.records import TrainingRecord
from wattune.records.served import DEVICE_NAME
from wattune.server.bodies import body
from wattune.server.problems import Problem
from wattune.server.routes.endpoint import (
    Created,
    DeviceQuery,
    IdPath,
    IdQuery,
    Limit,
    ModelQuery,
    answer,
    route,
)
from wattune.server.security import check_device
from wattune.server.store import retention, training_records
from wattune.server.store.schema import TrainingRow

router = APIRouter(prefix="/v1/trainings", tags=["trainings"])


class TrainingSummary(BaseModel):
    """A training run without its record. ``created_s``: time of the upload, in seconds since 1970."""

    id: str
    device: str
    model: str | None
    created_s: float


@router.post("", **route("device", Created, also=(201,), takes=TrainingRecord))
def post_training(
    request: Request,
    device: Annotated[str, Query(pattern=DEVICE_NAME)],
    record: Annotated[TrainingRecord, Depends(body(TrainingRecord))],
    model: ModelQuery = None,
) -> Response:
    """Upload the record of a finished training run. A duplicate is stored once, as first received."""
    check_device(request, device)
    with request.app.state.database.session() as session:
        training_id, is_new = training_records.add(session, record, device, model, time.time())
    location = f"/v1/trainings/{training_id}"
    return answer({"id": training_id}, 201 if is_new else 200, Location=location)


@router.get("", **route("read", list[TrainingSummary]))
def list_trainings(
    request: Request,
    device: DeviceQuery = None,
    model: ModelQuery = None,
    limit: Limit = 50,
    before: IdQuery = None,
) -> Response:
    """List the training runs, newest first, starting after ``before``."""
    with request.app.state.database.session(reads_only=True) as session:
        found = training_records.listing(session, device=device, model=model, limit=limit, before=before)
    return answer(found)


@router.get("/{training}", **route("read", TrainingRecord))
def get_training(request: Request, training: IdPath) -> Response:
    """Get the record of a training run."""
    with request.app.state.database.session(reads_only=True) as session:
        record = training_records.get(session, training)
    if record is None:
        raise _unknown(training)
    return answer(record)


@router.delete("/{training}", **route("admin", status=204))
def delete_training(request: Request, training: IdPath) -> Response:
    """Remove a training run."""
    with request.app.state.database.session() as session:
        if not retention.remove(session, TrainingRow, training):
            raise _unknown(training)
    return Response(status_code=204)


def _unknown(training: str) -> Problem:
    return Problem(404, "no such training run", value=training, hint="GET /v1/trainings")
