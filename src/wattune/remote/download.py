"""Resumable download of a file from the server, verified by its hash."""

from __future__ import annotations

import os
import re
from pathlib import Path

from wattune.errors import OutputError, ServerError
from wattune.files import sha256_of
from wattune.records.served import ServedFile
from wattune.remote.cache import file_lock
from wattune.remote.connection import Connection

ATTEMPTS = 4
"""Maximum number of attempts of a download."""


class _Damaged(ServerError):
    """The downloaded file does not match its description."""


def is_whole(path: Path, expected: ServedFile) -> bool:
    """True if the file exists and has the expected size and hash."""
    try:
        return path.stat().st_size == expected.bytes and sha256_of(path) == expected.sha256
    except OSError:
        return False


def download(connection: Connection, at: str, expected: ServedFile, path: Path) -> Path:
    """Download the file at the server's path ``at`` to ``path``, atomically.

    Raises: ServerUnavailable if the connection is lost; ServerError if the content never matches its description;
    ServerRefused; OutputError.
    """
    part = path.with_suffix(".part")
    try:
        # If another process on this machine is downloading the file, wait for it instead of downloading twice.
        with file_lock(path.with_suffix(".lock"), blocking=True):
            if not is_whole(path, expected):
                connection.retrying(ATTEMPTS, _Damaged)(_fetch, connection, at, expected, part)
                os.replace(part, path)
    except OSError as error:
        raise OutputError(f"cannot write {path}", value=error.strerror or str(error)) from error
    return path


def _fetch(connection: Connection, at: str, expected: ServedFile, part: Path) -> None:
    """Complete the partial file. Raises: ServerUnavailable; _Damaged, after which the next attempt starts over."""
    _continue(connection, at, expected, part)
    if not is_whole(part, expected):
        part.unlink(missing_ok=True)
        raise _Damaged(f"the file from {connection.url} does not match its SHA-256")


def _continue(connection: Connection, at: str, expected: ServedFile, part: Path) -> None:
    offset = part.stat().st_size if part.exists() else 0
    headers = {"Accept": "application/octet-stream", "Accept-Encoding": "identity"}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": f'"{expected.sha256}"'}
    with connection.stream("GET", at, headers=headers) as response:
        if response.status_code == 416:
            part.unlink(missing_ok=True)
            return
        if response.status_code == 206:
            match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if match is None or int(match[1]) != offset:
                part.unlink(missing_ok=True)
                return
        else:
            offset = 0
        with part.open("r+b" if offset else "wb") as file:
            file.seek(offset)
            # As received: with chunks of a fixed size, the last one would be lost if the connection breaks.
            for content in response.iter_bytes():
                offset += len(content)
                if offset > expected.bytes:
                    raise ServerError(f"the file from {connection.url} is larger than expected")
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
