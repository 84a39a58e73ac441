"""Files that models need: weights, and data of proxies. Never data of a device."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from wattune.files import PART_BYTES
from wattune.server.problems import Problem
from wattune.server.routes.parts import FilePath, answer, route
from wattune.server.store import models
from wattune.server.uploads import FileKind, check_file

router = APIRouter(prefix="/v1/files", tags=["files"])

_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


class Kept(BaseModel):
    """A file of the server."""

    sha256: str
    kind: FileKind
    bytes: int


@router.put(
    "/{sha256}",
    **route("admin", Kept, also=(201,), openapi_extra={"requestBody": {"required": True, "content": _BINARY}}),
)
async def put_file(request: Request, sha256: FilePath, kind: Annotated[FileKind, Query()]) -> Response:
    """Keep a file under the hash of its content, after it was seen to be what it is said to be."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "the header Content-Encoding", allowed="identity: the file as it is")
    with request.app.state.files.incoming() as file:
        found, size = await _write(request, file)
        if found != sha256:
            raise Problem(422, "SHA-256 of the body", value=found, allowed=sha256, hint="it was changed on its way")
        is_new = await run_in_threadpool(_keep, request.app.state, file, sha256, kind, size)
    return answer({"sha256": sha256, "kind": kind, "bytes": size}, 201 if is_new else 200)


async def _write(request: Request, file: BinaryIO) -> tuple[str, int]:
    """Write the body; gives its hash and its size. In large parts: each goes to another thread."""
    hashed, size, held = hashlib.sha256(), 0, bytearray()

    def take() -> None:
        hashed.update(held)
        file.write(held)
        held.clear()

    async for chunk in request.stream():
        held += chunk
        size += len(chunk)
        if len(held) >= PART_BYTES:
            await run_in_threadpool(take)
    await run_in_threadpool(take)
    return hashed.hexdigest(), size


def _keep(state: Any, file: BinaryIO, sha256: str, kind: FileKind, size: int) -> bool:
    if size == 0:
        raise Problem(422, "the body is empty", allowed=f"a file of the kind {kind}")
    file.flush()
    os.fsync(file.fileno())  # before the transaction, in which others wait
    check_file(Path(file.name), kind)
    with state.database.session() as session:
        is_new = models.add_file(session, sha256, kind, size, time.time())
        # The row first: where the database takes none, no file is left that nobody knows of.
        if is_new or not state.files.holds(sha256):
            state.files.keep(file, sha256)
    return is_new
