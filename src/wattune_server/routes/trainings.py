"""Records of finished training runs; they contain no training data."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from wattune.records import TrainingRecord
from wattune.records.served import DEVICE_NAME
from wattune_server.bodies import body
from wattune_server.problems import Problem
from wattune_server.routes.endpoint import DEVICE, READ, IdPath, ModelQuery, answer
from wattune_server.security import check_device
from wattune_server.store import training_records

router = APIRouter(prefix="/v1/trainings")


@router.post("", dependencies=DEVICE)
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
    return answer({"id": training_id}, 201 if is_new else 200)


@router.get("/{training}", dependencies=READ)
def get_training(request: Request, training: IdPath) -> Response:
    """Get the record of a training run."""
    with request.app.state.database.session(reads_only=True) as session:
        record = training_records.get(session, training)
    if record is None:
        raise Problem(404, "no such training run", value=training)
    return answer(record)
