"""Download of a file from the server, verified by its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from wattune.errors import OutputError, ServerError
from wattune.files import sha256_of, write_bytes
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
    try:
        # If another process on this machine is downloading the file, wait for it instead of downloading twice.
        with file_lock(path.with_suffix(".lock"), blocking=True):
            if not is_whole(path, expected):
                for left in path.parent.glob(f".{path.name}.*"):  # by a process that was killed
                    left.unlink(missing_ok=True)
                fetch = connection.retrying(ATTEMPTS, _Damaged)
                fetch(lambda: write_bytes(path, _content(connection, at, expected)))
    except OSError as error:
        raise OutputError(f"cannot write {path}", value=error.strerror or str(error)) from error
    return path


def _content(connection: Connection, at: str, expected: ServedFile) -> Iterator[bytes]:
    """Receive the file, in parts. Raises: ServerUnavailable, _Damaged, ServerError."""
    headers = {"Accept": "application/octet-stream", "Accept-Encoding": "identity"}
    digest, size = hashlib.sha256(), 0
    with connection.stream("GET", at, headers=headers) as response:
        for part in response.iter_bytes():
            digest.update(part)
            size += len(part)
            if size > expected.bytes:
                raise ServerError(f"the file from {connection.url} is larger than expected")
            yield part
    if digest.hexdigest() != expected.sha256:
        raise _Damaged(f"the file from {connection.url} does not match its SHA-256")
