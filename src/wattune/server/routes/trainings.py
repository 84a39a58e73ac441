"""Training records: what a training took and how it ended; never what it was trained on."""

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
from wattune.server.routes.parts import DeviceQuery, IdPath, IdQuery, Limit, Made, ModelQuery, answer, route
from wattune.server.security import Identity
from wattune.server.store import answers, trainings

router = APIRouter(prefix="/v1/trainings", tags=["trainings"])


class Listed(BaseModel):
    """A training without its record. ``created_s``: when it came in, in seconds since 1970."""

    id: str
    device: str
    model: str | None
    created_s: float


@router.post("", **route("device", Made, also=(201,), takes=TrainingRecord))
def post_training(
    request: Request,
    device: Annotated[str, Query(pattern=DEVICE_NAME)],
    record: Annotated[TrainingRecord, Depends(body(TrainingRecord))],
    model: ModelQuery = None,
    idempotency_key: Annotated[str | None, Header(pattern=r"^[!-~]{1,200}$")] = None,
) -> Response:
    """Hand in a finished training. The same record twice is kept once, as it came first; with the same
    Idempotency-Key the answer is the same, too."""
    now_s = time.time()
    with request.app.state.database.session() as session:

        def keep() -> tuple[int, dict[str, str]]:
            made, is_new = trainings.add(session, record, device, model, now_s)
            return 201 if is_new else 200, {"id": made}

        if idempotency_key is None:
            status, told, is_old = (*keep(), False)
        else:
            identity: Identity = request.state.identity
            # A key is its sender's own: it says nothing of what another one sent under it.
            key = [identity.token or "", "POST /v1/trainings", idempotency_key]
            asked = f"{device} {model} {record.model_dump_json()}"
            done = answers.once(session, key, asked, keep, now_s)
            if done is None:
                raise Problem(422, "the Idempotency-Key was used for another request", value=idempotency_key)
            status, told, is_old = done
    replayed = {"Idempotency_Replayed": "true"} if is_old else {}
    return answer(told, status, Location=f"/v1/trainings/{told['id']}", **replayed)


@router.get("", **route("read", list[Listed]))
def list_trainings(
    request: Request,
    device: DeviceQuery = None,
    model: ModelQuery = None,
    limit: Limit = 50,
    before: IdQuery = None,
) -> Response:
    """The trainings, the newest first; those behind ``before``."""
    with request.app.state.database.session(reads_only=True) as session:
        return answer(trainings.listing(session, device=device, model=model, limit=limit, before=before))


@router.get("/{training}", **route("read", TrainingRecord))
def get_training(request: Request, training: IdPath) -> Response:
    """A training."""
    with request.app.state.database.session(reads_only=True) as session:
        record = trainings.get(session, training)
    if record is None:
        raise Problem(404, "no such training", value=training, hint="GET /v1/trainings")
    return answer(record)
