"""Local cache of a server's models, weights, curves and profiles, for use while the server is unavailable."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wattune.errors import OutputError, RecordError
from wattune.files import cache_folders, read_json, write_json

PRIVATE = 0o700
"""Permissions of the folders, which other users must not read."""


@dataclass(frozen=True)
class CacheEntry:
    """A value from the cache, and the day it was stored, such as 2026-11-20."""

    value: Any
    day: str


class Cache:
    """Cache folder of one server: ``$XDG_CACHE_HOME/wattune/servers/<host-port>``, or in ``parent``.

    If the user's cache is not writable, a private folder in the temporary folder is used. Raises: OutputError if that
    is not writable either.
    """

    def __init__(self, url: str, parent: Path | None = None):
        parents = [parent] if parent is not None else [folder / "servers" for folder in cache_folders()]
        for index, candidate in enumerate(parents):
            self.folder = candidate / _name(url)
            try:
                if index:
                    _make_private(candidate.parent)
                self.folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
                with tempfile.TemporaryFile(dir=self.folder):
                    break
            except OSError as error:
                if index == len(parents) - 1:
                    raise OutputError(f"cannot write to {self.folder}", value=error.strerror or str(error)) from error

    def put(self, kind: str, name: str, value: object) -> None:
        """Store a JSON value with the current time. Raises: OutputError."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        write_json(self.path(kind, name), {"kept_at": now, "value": value})

    def get(self, kind: str, name: str) -> CacheEntry | None:
        """Read a value; None if it is missing or unreadable."""
        try:
            entry = read_json(self.path(kind, name))
        except RecordError:
            return None
        if not isinstance(entry, dict) or "value" not in entry:
            return None
        return CacheEntry(entry["value"], str(entry.get("kept_at", "an unknown day"))[:10])

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
    try:
        import fcntl
    except ImportError:  # systems without file locks support only one process per cache
        yield True
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if blocking else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _make_private(folder: Path) -> None:
    """Create a folder that only this user can access. Raises: OSError if it belongs to another user."""
    folder.mkdir(exist_ok=True, mode=PRIVATE)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
        raise PermissionError(errno.EPERM, "the folder belongs to another user", str(folder))
    if stat.S_IMODE(status.st_mode) != PRIVATE:
        folder.chmod(PRIVATE)


def _name(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    name = f"{re.sub(r'[^A-Za-z0-9.]', '_', parts.hostname or '')}-{port}"
    # Servers behind one address differ in their paths.
    return name + (f"-{hashlib.sha256(parts.path.encode()).hexdigest()[:8]}" if parts.path.strip("/") else "")
