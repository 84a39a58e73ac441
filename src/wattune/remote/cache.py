"""Files kept on this machine: a cache of a server's data for when it is unavailable, and a durable outbox of uploads.

Each upload is a file until the server has acknowledged it, so that none is lost.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from wattune.errors import OutputError, RecordError, ServerError, ServerRefused, ServerUnavailable
from wattune.files import cache_folders, read_json, write_json
from wattune.records.served import Strict, digest
from wattune.remote.connection import UNTRUSTED

PRIVATE = 0o700
"""Permissions of the folders, which other users must not read."""


class CacheEntry(NamedTuple):
    """A value from the cache, and the day it was stored, such as 2026-11-20."""

    value: Any
    day: str


class Cache:
    """Cache folder of one server: ``$XDG_CACHE_HOME/wattune/servers/<host-port>``, or in ``parent``.

    Raises: OutputError if it cannot be written. A folder for temporary files would lose the outbox.
    """

    def __init__(self, url: str, parent: Path | None = None):
        self.folder = (parent or cache_folders()[0] / "servers") / _name(url)
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise OutputError(
                f"cannot write to {self.folder}", value=error.strerror or str(error), hint="set XDG_CACHE_HOME"
            ) from error

    def put(self, kind: str, name: str, value: object) -> None:
        """Store a JSON value. Raises: OutputError."""
        write_json(self.path(kind, name), value)

    def get(self, kind: str, name: str) -> CacheEntry | None:
        """Read a value; None if it is missing or unreadable."""
        path = self.path(kind, name)
        try:
            value, stored_s = read_json(path), path.stat().st_mtime
        except (RecordError, OSError):
            return None
        return CacheEntry(value, f"{datetime.fromtimestamp(stored_s, timezone.utc):%Y-%m-%d}")

    def secret(self) -> bytes:
        """32 random bytes of this machine, which never leave it. Raises: OutputError."""
        with file_lock(self.folder / "secret.lock", blocking=True):
            entry = self.get("secret", "key")
            if entry is not None and re.fullmatch("[0-9a-f]{64}", str(entry.value)):
                return bytes.fromhex(str(entry.value))
            key = secrets.token_bytes(32)
            self.put("secret", "key", key.hex())
            return key

    def path(self, kind: str, name: str, suffix: str = ".json") -> Path:
        """Path of a value."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise OutputError("name of a cached value", value=name, allowed="letters, digits, dots and dashes")
        return self.folder / kind / f"{name}{suffix}"


@contextmanager
def file_lock(path: Path, *, blocking: bool) -> Iterator[bool]:
    """Lock a file among the processes of this machine; yield True if it is locked by this process.

    Without ``blocking``, yields False if another process holds the lock. The lock ends with the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _name(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    name = f"{re.sub(r'[^A-Za-z0-9.]', '_', parts.hostname or '')}-{port}"
    # Servers behind one address differ in their paths.
    return name + (f"-{hashlib.sha256(parts.path.encode()).hexdigest()[:8]}" if parts.path.strip("/") else "")


class Upload(Strict):
    """A record to be posted."""

    path: str
    params: dict[str, str]
    body: dict[str, Any]

    @cached_property
    def key(self) -> str:
        """Hash of the content."""
        return digest(self.model_dump())


PERMANENT = (400, 413, 415, 422)
"""Statuses of an invalid upload, for which a retry is pointless."""

NOT_DUE_TO_UPLOAD = (401, 403, UNTRUSTED)
"""Statuses caused by the token or the server's certificate, which affect all uploads."""

BACKOFF_S = 60.0
"""Backoff in seconds before this process retries an upload that failed on the server."""


class Outbox:
    """A folder of pending uploads.

    The server names a record by its content, so it stores a repeated upload once. If it rejects an upload permanently,
    the upload is moved to the folder ``refused`` and reported through ``notify``.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None]):
        self.folder = folder
        self._notify = notify
        self._lock = threading.Lock()
        self._not_before_s: dict[str, float] = {}

    def put(self, upload: Upload) -> None:
        """Store an upload until it is delivered. Raises: OutputError, OSError."""
        if not any(name.endswith(f"-{upload.key}.json") for name in self.pending()):
            write_json(self.folder / f"{time.time_ns():020d}-{upload.key}.json", upload.model_dump())

    def pending(self) -> list[str]:
        """List the file names of the pending uploads, oldest first."""
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith(".json") and name[0] != ".")
        except FileNotFoundError:
            return []

    def deliver(self, send: Callable[[Upload], Any], answers: dict[str, Any]) -> None:
        """Send the pending uploads in order; ``answers`` receives key -> response.

        Stops if the server is unavailable or rejects the token. An upload that fails on its own does not block the
        others; it is retried after ``BACKOFF_S``. Sends nothing while another process on this machine is sending.

        Raises: the first ServerError or ServerRefused; OSError.
        """
        if not self.pending():
            return
        first: ServerError | ServerRefused | None = None
        with self._lock, file_lock(self.folder / "lock", blocking=False) as is_locked:
            for name in self.pending() if is_locked else ():
                if time.monotonic() < self._not_before_s.get(name, 0.0):
                    continue
                path = self.folder / name
                try:
                    upload = Upload.model_validate(read_json(path))
                    answers[upload.key] = send(upload)
                except (RecordError, ValidationError) as error:
                    if path.exists():
                        self._refuse(path, str(error))
                    continue  # another process has delivered it
                except (ServerError, ServerRefused) as error:
                    status = error.status if isinstance(error, ServerRefused) else None
                    if isinstance(error, ServerUnavailable) or status in NOT_DUE_TO_UPLOAD:
                        raise
                    if status in PERMANENT:
                        self._refuse(path, str(error))
                        continue
                    first = first or error
                    self._not_before_s[name] = time.monotonic() + BACKOFF_S
                    continue
                path.unlink(missing_ok=True)
        if first is not None:
            raise first

    def _refuse(self, path: Path, why: str) -> None:
        folder = self.folder / "refused"
        folder.mkdir(exist_ok=True)
        os.replace(path, folder / path.name)
        self._notify(f"the server rejected an upload, which was moved to {folder / path.name}: {why}")
