"""Models and their weights."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse, Response

from wattune.records.served import MODEL_NAME, ServedFile, ServedModel
from wattune.server.jobs import queue
from wattune.server.problems import Problem
from wattune.server.routes.endpoint import Limit, ModelPath, answer, is_cached, route
from wattune.server.store import model_catalog

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.get("", **route("read", list[ServedModel]))
def list_models(
    request: Request, limit: Limit = 100, after: Annotated[str, Query(pattern=MODEL_NAME)] | None = None
) -> Response:
    """List the models in order of name, starting after ``after``."""
    with request.app.state.database.session(reads_only=True) as session:
        models = model_catalog.listing(session, after=after or "", limit=limit)
    return answer([model.dump() for model in models])


@router.get("/{name}", **route("read", ServedModel, also=(304,)))
def get_model(request: Request, name: ModelPath) -> Response:
    """Get a model: everything that a device needs to train it, except the weights."""
    with request.app.state.database.session(reads_only=True) as session:
        row = model_catalog.get_record(session, name)
    if row is None:
        raise _unknown(name)
    record, digest = row
    if is_cached(request, digest):
        return Response(status_code=304, headers={"ETag": f'"{digest}"'})
    return answer(record, ETag=f'"{digest}"')


@router.delete("/{name}", **route("admin", status=204))
def delete_model(request: Request, name: ModelPath) -> Response:
    """Remove a model. Rejected while a job of it is waiting or running."""
    with request.app.state.database.session() as session:
        if jobs := queue.in_use(session, name):
            raise Problem(409, f"waiting or running jobs of {name}", value=jobs, hint="cancel them first")
        if not model_catalog.delete(session, name):
            raise _unknown(name)
    return Response(status_code=204)


@router.get(
    "/{name}/weights",
    **route("read", also=(206, 304), response_class=FileResponse),
)
def get_weights(request: Request, name: ModelPath) -> Response:
    """Get the weights, a safetensors file; supports Range."""
    weights = _model(request, name).weights
    if weights is None:
        raise Problem(404, f"{name} has no weights; it is initialized randomly")
    return _send(request, weights, f"the weights of {name}")


def _model(request: Request, name: str) -> ServedModel:
    with request.app.state.database.session(reads_only=True) as session:
        model = model_catalog.get(session, name)
    if model is None:
        raise _unknown(name)
    return model


def _unknown(name: str) -> Problem:
    return Problem(404, "no such model", value=name, hint="GET /v1/models")


def _send(request: Request, file: ServedFile, what: str) -> Response:
    """Build the response with a file of the store, or the part of it that the request asks for."""
    path = request.app.state.files.path(file.sha256)
    if not path.is_file():
        raise Problem(503, "missing from the store", value=what, hint="restore it from a backup")
    headers = {
        "ETag": f'"{file.sha256}"',
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(file.sha256)).decode()}:",
        "Cache-Control": "private, no-cache",
    }
    if is_cached(request, file.sha256):
        return Response(status_code=304, headers=headers)
    _check_range(request, file.bytes)
    return _Parts(path, headers=headers, media_type="application/octet-stream")


class _Parts(FileResponse):
    chunk_size = 2**20  # few large chunks, because each is read in another thread


def _check_range(request: Request, size: int) -> None:
    # Starlette rejects a malformed range with plain text; this gives the reason.
    header = request.headers.get("range")
    if header is None:
        return
    unit, _, parts = header.partition("=")
    begin, dash, end = parts.strip().partition("-")
    digits = all(part.isdecimal() and len(part) < 20 for part in (begin, end) if part)
    if unit.strip().lower() != "bytes" or not dash or not digits or not (begin or end):
        raise Problem(400, "the header Range", value=header, allowed="one range of bytes, such as bytes=0-1023")
    if begin and end and int(end) < int(begin):
        raise Problem(400, "the header Range", value=header, allowed="an end after the beginning")
    if (int(begin) if begin else size - int(end)) >= size:
        raise Problem(416, "the header Range", value=header, headers={"Content-Range": f"bytes */{size}"})
