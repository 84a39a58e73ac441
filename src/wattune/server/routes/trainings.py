"""Records of finished training runs; they contain no training data."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from wattune.records import TrainingRecord
from wattune.records.served import DEVICE_NAME
from wattune.server.bodies import body
from wattune.server.problems import Problem
from wattune.server.routes.endpoint import Created, DeviceQuery, IdPath, IdQuery, Limit, ModelQuery, answer, route
from wattune.server.security import Identity, check_device
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
    idempotency_key: Annotated[str | None, Header(pattern=r"^[!-~]{1,200}$")] = None,
) -> Response:
    """Upload the record of a finished training run.

    A duplicate is stored once, as first received; with the same Idempotency-Key the response is replayed as well.
    """
    check_device(request, device)
    now_s = time.time()
    with request.app.state.database.session() as session:

        def store() -> tuple[int, dict[str, str]]:
            training_id, is_new = training_records.add(session, record, device, model, now_s)
            return 201 if is_new else 200, {"id": training_id}

        if idempotency_key is None:
            status, content, is_replayed = (*store(), False)
        else:
            identity: Identity = request.state.identity
            # Keys are scoped to the token, so that a client learns nothing about the keys of another one.
            key = [identity.token or "", "POST /v1/trainings", idempotency_key]
            fingerprint = f"{device} {model} {record.model_dump_json()}"
            response = training_records.once(session, key, fingerprint, store, now_s)
            if response is None:
                raise Problem(422, "the Idempotency-Key was used for another request", value=idempotency_key)
            status, content, is_replayed = response
    headers = {"Idempotency_Replayed": "true"} if is_replayed else {}
    return answer(content, status, Location=f"/v1/trainings/{content['id']}", **headers)


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
        return answer(training_records.listing(session, device=device, model=model, limit=limit, before=before))


@router.get("/{training}", **route("read", TrainingRecord))
def get_training(request: Request, training: IdPath) -> Response:
    """Get the record of a training run."""
    with request.app.state.database.session(reads_only=True) as session:
        record = training_records.get(session, training)
    if record is None:
        raise Problem(404, "no such training run", value=training, hint="GET /v1/trainings")
    return answer(record)


@router.delete("/{training}", **route("admin", status=204))
def delete_training(request: Request, training: IdPath) -> Response:
    """Remove a training run."""
    with request.app.state.database.session() as session:
        if not retention.remove(session, TrainingRow, training):
            raise Problem(404, "no such training run", value=training, hint="GET /v1/trainings")
    return Response(status_code=204)
