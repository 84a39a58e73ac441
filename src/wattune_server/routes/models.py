"""Models and their weights."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from wattune.records.served import ServedModel
from wattune_server.jobs import queue
from wattune_server.problems import Problem
from wattune_server.routes.endpoint import ADMIN, READ, ModelPath, answer
from wattune_server.store import model_catalog

router = APIRouter(prefix="/v1/models")


@router.get("/{name}", dependencies=READ)
def get_model(request: Request, name: ModelPath) -> Response:
    """Get a model: everything that a device needs to train it, except the weights."""
    return answer(_model(request, name).dump())


@router.delete("/{name}", dependencies=ADMIN)
def delete_model(request: Request, name: ModelPath) -> Response:
    """Remove a model. Rejected while a job of it is waiting or running."""
    with request.app.state.database.session() as session:
        if jobs := queue.in_use(session, name):
            raise Problem(409, f"waiting or running jobs of {name}", value=jobs, hint="cancel them first")
        if not model_catalog.delete(session, name):
            raise _unknown(name)
    return Response(status_code=204)


@router.get("/{name}/weights", dependencies=READ)
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
        raise _unknown(name)
    return model


def _unknown(name: str) -> Problem:
    return Problem(404, "no such model", value=name)


class _Parts(FileResponse):
    chunk_size = 2**20  # few large chunks, because each is read in another thread
