"""Models on offer, and their weights."""

from __future__ import annotations

import base64
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import FileResponse, Response

from wattune.records.served import MODEL_NAME, ServedModel
from wattune.server.bodies import body
from wattune.server.jobs import queue
from wattune.server.problems import Problem
from wattune.server.routes.parts import Limit, ModelPath, answer, route
from wattune.server.store import models

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("", **route("read", list[ServedModel]))
def list_models(
    request: Request, limit: Limit = 100, after: Annotated[str, Query(pattern=MODEL_NAME)] | None = None
) -> Response:
    """The models, by name; those behind ``after``."""
    with request.app.state.database.session(reads_only=True) as session:
        found = models.listing(session, after=after or "", limit=limit)
    return answer([model.dump() for model in found])


@router.get("/{name}", **route("read", ServedModel, also=(304,)))
def get_model(request: Request, name: ModelPath) -> Response:
    """A model: all that a device needs to train it, but for the weights."""
    with request.app.state.database.session(reads_only=True) as session:
        found = models.get_record(session, name)
    if found is None:
        raise _unknown(name)
    record, digest = found
    if _is_known(request, digest):
        return Response(status_code=304, headers={"ETag": f'"{digest}"'})
    return answer(record, ETag=f'"{digest}"')


@router.put("/{name}", **route("admin", ServedModel, also=(201,), takes=ServedModel))
def put_model(request: Request, name: ModelPath, model: Annotated[ServedModel, Depends(body(ServedModel))]) -> Response:
    """Offer a model, in place of one of the same name. Its files have to be there."""
    if model.model != name:
        raise Problem(422, "the name in the body", value=model.model, allowed=name)
    with request.app.state.database.session() as session:
        is_new = models.put(session, model, time.time())
    return answer(model.dump(), 201 if is_new else 200, ETag=f'"{model.digest}"')


@router.delete("/{name}", **route("admin", status=204))
def delete_model(request: Request, name: ModelPath) -> Response:
    """Offer a model no more. Refused while a job of it is waiting or running."""
    with request.app.state.database.session() as session:
        if jobs := queue.in_use(session, name):
            raise Problem(409, f"jobs of {name} that are waiting or running", value=jobs, hint="cancel them first")
        if not models.delete(session, name):
            raise _unknown(name)
    return Response(status_code=204)


@router.get(
    "/{name}/weights",
    **route("read", also=(206, 304), response_class=FileResponse),
)
def get_weights(request: Request, name: ModelPath) -> Response:
    """The weights, a safetensors file; in parts with Range."""
    weights = _model(request, name).weights
    if weights is None:
        raise Problem(404, f"{name} has no weights: it begins with random ones")
    sha256 = weights.sha256
    path = request.app.state.files.path(sha256)
    if not path.is_file():
        raise Problem(503, f"the weights of {name} are missing from the store", hint="restore it from a backup")
    headers = {
        "ETag": f'"{sha256}"',
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:",
        "Cache-Control": "private, no-cache",
    }
    if _is_known(request, sha256):
        return Response(status_code=304, headers=headers)
    _check_range(request, weights.bytes)
    return _Weights(path, headers=headers, media_type="application/octet-stream")


class _Weights(FileResponse):
    chunk_size = 2**20  # each part is read in another thread: few large ones


def _model(request: Request, name: str) -> ServedModel:
    with request.app.state.database.session(reads_only=True) as session:
        model = models.get(session, name)
    if model is None:
        raise _unknown(name)
    return model


def _unknown(name: str) -> Problem:
    return Problem(404, "no such model", value=name, hint="GET /v1/models")


def _is_known(request: Request, tag: str) -> bool:
    told = request.headers.get("if-none-match", "")
    return told.strip() == "*" or f'"{tag}"' in (one.strip().removeprefix("W/") for one in told.split(","))


def _check_range(request: Request, size: int) -> None:
    # What follows answers a range that it does not take with plain text; ours says what is wrong.
    asked = request.headers.get("range")
    if asked is None:
        return
    unit, _, parts = asked.partition("=")
    begin, dash, end = parts.strip().partition("-")
    digits = all(part.isdecimal() and len(part) < 20 for part in (begin, end) if part)
    if unit.strip().lower() != "bytes" or not dash or not digits or not (begin or end):
        raise Problem(400, "the header Range", value=asked, allowed="one range of bytes, such as bytes=0-1023")
    if begin and end and int(end) < int(begin):
        raise Problem(400, "the header Range", value=asked, allowed="an end behind its beginning")
    if (int(begin) if begin else size - int(end)) >= size:
        raise Problem(416, "the header Range", value=asked, headers={"Content-Range": f"bytes */{size}"})
