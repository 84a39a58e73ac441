"""A file of the server by its hash: taken up again where it broke off, and used only where the hash is right."""

from __future__ import annotations

import os
import re
from pathlib import Path

from wattune.errors import OutputError, ServerAway, ServerError
from wattune.files import sha256_of
from wattune.records.served import ServedFile
from wattune.remote.cache import held
from wattune.remote.connection import Connection

ATTEMPTS = 4
"""Times that a download is taken up again before it is given up."""


def is_whole(path: Path, wanted: ServedFile) -> bool:
    """Whether the file is there and is what it should be."""
    try:
        return path.stat().st_size == wanted.bytes and sha256_of(path) == wanted.sha256
    except OSError:
        return False


def download(connection: Connection, at: str, wanted: ServedFile, path: Path) -> Path:
    """Fetch the file that the server has ``at`` this address to ``path``, where it appears whole or not at all.

    Raises: ServerAway where the server is lost; ServerError where what comes is never what was promised;
    ServerRefused; OutputError.
    """
    part = path.with_suffix(".part")
    try:
        # Another process on this machine may be at it: then it is waited for, and nothing is fetched twice.
        with held(path.with_suffix(".lock"), waits=True):
            for attempt in range(ATTEMPTS):
                if is_whole(path, wanted):
                    return path
                try:
                    _fetch(connection, at, wanted, part)
                except ServerAway:
                    if attempt == ATTEMPTS - 1:
                        raise
                    connection.rest(attempt)
                    continue
                if is_whole(part, wanted):
                    os.replace(part, path)
                    return path
                part.unlink(missing_ok=True)  # the next attempt begins at the beginning
    except OSError as error:
        raise OutputError(f"cannot write {path}", value=error.strerror or str(error)) from error
    raise ServerError(f"the weights of {connection.url} are not those of its description (SHA-256)")


def _fetch(connection: Connection, at: str, wanted: ServedFile, part: Path) -> None:
    begun = part.stat().st_size if part.exists() else 0
    headers = {"Accept": "application/octet-stream", "Accept-Encoding": "identity"}
    if begun:
        headers |= {"Range": f"bytes={begun}-", "If-Range": f'"{wanted.sha256}"'}
    with connection.stream("GET", at, headers=headers) as response:
        if response.status_code == 416:
            part.unlink(missing_ok=True)
            return
        if response.status_code == 206:
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if found is None or int(found[1]) != begun:
                part.unlink(missing_ok=True)
                return
        else:
            begun = 0
        with part.open("r+b" if begun else "wb") as file:
            file.seek(begun)
            # Not in chunks of our own, of which the last would be lost where the connection is.
            for content in response.iter_bytes():
                begun += len(content)
                if begun > wanted.bytes:
                    raise ServerError(f"the weights of {connection.url} are longer than its description says")
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
