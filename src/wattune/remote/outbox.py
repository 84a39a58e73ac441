"""Durable outbox of uploads: each is a file until the server has acknowledged it, so that none is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattune.errors import RecordError, ServerError, ServerRefused, ServerUnavailable
from wattune.files import read_json, write_json
from wattune.records.served import digest
from wattune.remote.cache import file_lock
from wattune.remote.connection import UNTRUSTED

Send = Callable[[dict[str, Any]], Any]
"""Function that sends one upload: a dict of ``method``, ``path``, ``params``, ``body`` and ``key``."""

PERMANENT = (400, 413, 415, 422)
"""Statuses of an invalid upload, for which a retry is pointless."""

NOT_DUE_TO_UPLOAD = (401, 403, UNTRUSTED)
"""Statuses caused by the token or the server's certificate, which affect all uploads."""

BACKOFF_S = 60.0
"""Backoff in seconds before this process retries an upload that failed on the server."""


class Outbox:
    """A folder of pending uploads.

    The idempotency key of an upload is a hash of its content, so the server stores a repeated upload once. If the
    server rejects an upload permanently, it is moved to the folder ``refused`` and reported through ``notify``.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None]):
        self.folder = folder
        self._notify = notify
        self._lock = threading.Lock()
        self._not_before_s: dict[str, float] = {}

    def put(self, upload: dict[str, Any]) -> None:
        """Store an upload until it is delivered. Raises: OutputError, OSError."""
        key = upload["key"]
        if not any(name.endswith(f"-{key}.json") for name in self.pending()):
            write_json(self.folder / f"{time.time_ns():020d}-{key}.json", upload)

    def pending(self) -> list[str]:
        """List the file names of the pending uploads, oldest first."""
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith(".json") and name[0] != ".")
        except FileNotFoundError:
            return []

    def deliver(self, send: Send, answers: dict[str, Any]) -> None:
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
                    content = _checked(read_json(path))
                    answers[content["key"]] = send(content)
                except RecordError as error:
                    if path.exists():
                        self._refuse(path, str(error))
                    continue  # another process has delivered it
                except ServerUnavailable:
                    raise
                except ServerError as error:
                    first = first or error
                    self._not_before_s[name] = time.monotonic() + BACKOFF_S
                    continue
                except ServerRefused as error:
                    if error.status in NOT_DUE_TO_UPLOAD:
                        raise
                    if error.status in PERMANENT:
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


def upload(method: str, path: str, params: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    """Build an upload with its idempotency key."""
    key = digest([method, path, params, body])
    return {"method": method, "path": path, "params": params, "body": body, "key": key}


def _checked(content: object) -> dict[str, Any]:
    """Check the content of an upload's file. Raises: RecordError."""
    if isinstance(content, dict) and content.keys() == {"method", "path", "params", "body", "key"}:
        are_texts = all(isinstance(content[name], str) for name in ("method", "path", "key"))
        if are_texts and isinstance(content["params"], dict) and isinstance(content["body"], dict):
            return content
    raise RecordError("not a valid upload")
