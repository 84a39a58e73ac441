"""What a device keeps of a server: models, weights, curves and profiles, for when the server is away."""

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
"""Permissions of the folders: what waits to be delivered is nobody else's business."""


@dataclass(frozen=True)
class Kept:
    """A value from the cache, and the day that it is of, as 2026-11-20."""

    value: Any
    day: str


class Cache:
    """The folder of one server: ``$XDG_CACHE_HOME/wattune/servers/<host-port>``, or in ``parent``.

    Where the user's cache cannot be written, it is in the temporary folder, in one that is this user's alone. Raises:
    OutputError where neither can.
    """

    def __init__(self, url: str, parent: Path | None = None):
        parents = [parent] if parent is not None else [place / "servers" for place in cache_folders()]
        for index, place in enumerate(parents):
            self.folder = place / _name(url)
            try:
                if index:
                    _own(place.parent)
                self.folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
                with tempfile.TemporaryFile(dir=self.folder):
                    break
            except OSError as error:
                if index == len(parents) - 1:
                    raise OutputError(f"cannot write to {self.folder}", value=error.strerror or str(error)) from error

    def put(self, kind: str, name: str, value: object) -> None:
        """Keep a JSON value as of now. Raises: OutputError."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        write_json(self.path(kind, name), {"kept_at": now, "value": value})

    def get(self, kind: str, name: str) -> Kept | None:
        """The value that was kept, None where there is none, or none that can be read."""
        try:
            found = read_json(self.path(kind, name))
        except RecordError:
            return None
        if not isinstance(found, dict) or "value" not in found:
            return None
        return Kept(found["value"], str(found.get("kept_at", "an unknown day"))[:10])

    def path(self, kind: str, name: str, suffix: str = ".json") -> Path:
        """Where a value of this kind and name is."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise OutputError("name in the cache", value=name, allowed="letters, digits, dots and dashes")
        return self.folder / kind / f"{name}{suffix}"


@contextmanager
def held(path: Path, *, waits: bool) -> Iterator[bool]:
    """Hold a lock file among the processes of this machine. Gives whether it is held: without ``waits``, one that
    another process holds is not. It is gone with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # a system without: then one process alone should use the cache
        yield True
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _own(folder: Path) -> None:
    """Make a folder in which nobody else can write or read. Raises: OSError where another user has made it before."""
    folder.mkdir(exist_ok=True, mode=PRIVATE)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or (hasattr(os, "getuid") and found.st_uid != os.getuid()):
        raise PermissionError(errno.EPERM, "it is another user's", str(folder))
    if stat.S_IMODE(found.st_mode) != PRIVATE:
        folder.chmod(PRIVATE)


def _name(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    name = f"{re.sub(r'[^A-Za-z0-9.]', '_', parts.hostname or '')}-{port}"
    # Two servers behind one address differ in their paths.
    return name + (f"-{hashlib.sha256(parts.path.encode()).hexdigest()[:8]}" if parts.path.strip("/") else "")
