"""Records on their way to the server: each is a file until the server has it, so that none is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattune.errors import RecordError, ServerAway, ServerError, ServerRefused
from wattune.files import read_json, write_json
from wattune.records.served import digest
from wattune.remote.cache import held
from wattune.remote.connection import UNTRUSTED

Send = Callable[[dict[str, Any]], Any]
"""Delivers one upload: its ``method``, ``path``, ``params``, ``body`` and ``key``."""

FOR_GOOD = (400, 413, 415, 422)
"""Statuses that say that an upload is wrong, and will be however often it is sent."""

NOT_OF_THE_UPLOAD = (401, 403, UNTRUSTED)
"""Statuses of the token and of the server: nothing can be said of the upload itself, and none gets through."""

REST_S = 60.0
"""How long an upload that the server failed at is not sent again by this process."""


class Outbox:
    """A folder of uploads. The key of one is of its content: the server takes the same upload once, however often it
    comes. One that the server refuses for good is moved to ``refused`` beside them, and said through ``tell``."""

    def __init__(self, folder: Path, tell: Callable[[str], None]):
        self.folder = folder
        self._tell = tell
        self._turn = threading.Lock()
        self._not_before_s: dict[str, float] = {}

    def put(self, upload: dict[str, Any]) -> None:
        """Keep what ``upload`` gave until it is delivered. Raises: OutputError, OSError."""
        key = upload["key"]
        if not any(name.endswith(f"-{key}.json") for name in self.waiting()):
            write_json(self.folder / f"{time.time_ns():020d}-{key}.json", upload)

    def waiting(self) -> list[str]:
        """Names of the files that wait, the oldest first."""
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith(".json") and name[0] != ".")
        except FileNotFoundError:
            return []

    def deliver(self, send: Send, answers: dict[str, Any]) -> None:
        """Send what waits, in its order, as long as the server is there and takes the token; ``answers`` gets
        key -> answer. One that fails by itself holds up no other, and is not tried again for ``REST_S``.

        Nothing is sent while another process of this machine does. Raises: ServerError and ServerRefused, the first
        that there was; OSError.
        """
        if not self.waiting():
            return
        first: ServerError | ServerRefused | None = None
        with self._turn, held(self.folder / "lock", waits=False) as mine:
            for name in self.waiting() if mine else ():
                if time.monotonic() < self._not_before_s.get(name, 0.0):
                    continue
                path = self.folder / name
                try:
                    kept = _upload(read_json(path))
                    answers[kept["key"]] = send(kept)
                except RecordError as error:
                    if path.exists():
                        self._refuse(path, str(error))
                    continue  # another process has delivered it
                except ServerAway:
                    raise
                except ServerError as error:
                    first = first or error
                    self._not_before_s[name] = time.monotonic() + REST_S
                    continue
                except ServerRefused as error:
                    if error.status in NOT_OF_THE_UPLOAD:
                        raise
                    if error.status in FOR_GOOD:
                        self._refuse(path, str(error))
                        continue
                    first = first or error
                    self._not_before_s[name] = time.monotonic() + REST_S
                    continue
                path.unlink(missing_ok=True)
        if first is not None:
            raise first

    def _refuse(self, path: Path, why: str) -> None:
        place = self.folder / "refused"
        place.mkdir(exist_ok=True)
        os.replace(path, place / path.name)
        self._tell(f"an upload was refused and is kept in {place / path.name}: {why}")


def upload(method: str, path: str, params: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    """An upload with its key."""
    key = digest([method, path, params, body])
    return {"method": method, "path": path, "params": params, "body": body, "key": key}


def _upload(found: object) -> dict[str, Any]:
    """Raises: RecordError for what ``upload`` never gave."""
    if isinstance(found, dict) and found.keys() == {"method", "path", "params", "body", "key"}:
        texts = all(isinstance(found[name], str) for name in ("method", "path", "key"))
        if texts and isinstance(found["params"], dict) and isinstance(found["body"], dict):
            return found
    raise RecordError("it is no upload")
