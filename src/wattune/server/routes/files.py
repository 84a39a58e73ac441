"""Files that workers need: weights of models and data of proxies, never data of a device."""

from __future__ import annotations

import base64

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from wattune.records.served import ServedFile
from wattune.server.problems import Problem
from wattune.server.routes.endpoint import FilePath, is_cached, route
from wattune.server.store.schema import FileRow

router = APIRouter(prefix="/v1/files", tags=["files"])


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
