"""Files of models (weights, and data of proxies; never data of a device), and curves of runs."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, Response

from wattune.files import PART_BYTES
from wattune.records.served import ServedFile
from wattune.server.problems import Problem
from wattune.server.routes.endpoint import FilePath, answer, is_cached, route
from wattune.server.store import model_catalog
from wattune.server.store.schema import FileRow
from wattune.server.uploads import FileKind, check_file

router = APIRouter(prefix="/v1/files", tags=["files"])

_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


class StoredFile(BaseModel):
    """A file in the store."""

    sha256: str
    kind: FileKind
    bytes: int


@router.put(
    "/{sha256}",
    **route("admin", StoredFile, also=(201,), openapi_extra={"requestBody": {"required": True, "content": _BINARY}}),
)
async def put_file(request: Request, sha256: FilePath, kind: Annotated[FileKind, Query()]) -> Response:
    """Store a file under the hash of its content, after validating it."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "the header Content-Encoding", allowed="identity, i.e. an uncompressed file")
    with request.app.state.files.incoming() as file:
        actual, size = await _write(request, file)
        if actual != sha256:
            raise Problem(422, "SHA-256 of the body", value=actual, allowed=sha256, hint="the upload was corrupted")
        is_new = await run_in_threadpool(_keep, request.app.state, file, sha256, kind, size)
    return answer({"sha256": sha256, "kind": kind, "bytes": size}, 201 if is_new else 200)


@router.get("/{sha256}", **route("worker", also=(206, 304), response_class=FileResponse))
def get_file(request: Request, sha256: FilePath) -> Response:
    """Get a file that a unit needs; supports Range."""
    with request.app.state.database.session(reads_only=True) as session:
        row = session.get(FileRow, sha256)
    if row is None:
        raise Problem(404, "no such file", value=sha256)
    return send_file(request, ServedFile(sha256=sha256, bytes=row.bytes), f"the file {sha256}")


def send_file(request: Request, file: ServedFile, what: str) -> Response:
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


async def _write(request: Request, file: BinaryIO) -> tuple[str, int]:
    """Write the body; return its hash and size. In large parts, because each is handed to another thread."""
    digest, size, buffer = hashlib.sha256(), 0, bytearray()

    def flush() -> None:
        digest.update(buffer)
        file.write(buffer)
        buffer.clear()

    async for chunk in request.stream():
        buffer += chunk
        size += len(chunk)
        if len(buffer) >= PART_BYTES:
            await run_in_threadpool(flush)
    await run_in_threadpool(flush)
    return digest.hexdigest(), size


def _keep(state: Any, file: BinaryIO, sha256: str, kind: FileKind, size: int) -> bool:
    if size == 0:
        raise Problem(422, "the body is empty", allowed=f"a file of the kind {kind}")
    file.flush()
    os.fsync(file.fileno())  # before the transaction, which blocks other writers
    check_file(Path(file.name), kind)
    with state.database.session() as session:
        is_new = model_catalog.add_file(session, sha256, kind, size, time.time())
        # The row first: if the database is unavailable, no orphaned file is left.
        if is_new or not state.files.holds(sha256):
            state.files.keep(file, sha256)
    return is_new
