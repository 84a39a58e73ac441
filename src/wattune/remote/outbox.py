"""Records on their way to the server: each is a file until the server has it, so that none is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattune.errors import RecordError, ServerRefused
from wattune.files import read_json, write_json
from wattune.records.served import digest
from wattune.remote.cache import held

Send = Callable[[dict[str, Any]], Any]
"""Delivers one upload: its ``method``, ``path``, ``params``, ``body`` and ``key``."""


class Outbox:
    """A folder of uploads. The key of one is of its content: the server takes the same upload once, however often it
    comes. One that the server refuses for good is moved to ``refused`` beside them, and said through ``tell``."""

    def __init__(self, folder: Path, tell: Callable[[str], None]):
        self.folder = folder
        self._tell = tell
        self._turn = threading.Lock()

    def put(self, method: str, path: str, params: dict[str, str], body: dict[str, Any]) -> str:
        """Keep an upload until it is delivered, and say its key. Raises: OutputError."""
        key = digest([method, path, params, body])
        if not any(name.endswith(f"-{key}.json") for name in self.waiting()):
            upload = {"method": method, "path": path, "params": params, "body": body, "key": key}
            write_json(self.folder / f"{time.time_ns():020d}-{key}.json", upload)
        return key

    def waiting(self) -> list[str]:
        """Names of the files that wait, the oldest first."""
        try:
            return sorted(name for name in os.listdir(self.folder) if name.endswith(".json") and name[0] != ".")
        except FileNotFoundError:
            return []

    def deliver(self, send: Send, answers: dict[str, Any]) -> None:
        """Send what waits, in its order, up to the first that does not get through; ``answers`` gets key -> answer.

        Nothing is sent while another process of this machine does. Raises: ServerError, and ServerRefused where
        the server wants another token.
        """
        if not self.waiting():
            return
        with self._turn, held(self.folder / "lock", waits=False) as mine:
            for name in self.waiting() if mine else ():
                path = self.folder / name
                try:
                    upload = read_json(path)
                    assert isinstance(upload, dict)
                    answers[str(upload["key"])] = send(upload)
                except RecordError as error:
                    if path.exists():
                        self._refuse(path, str(error))
                    continue  # another process has delivered it
                except ServerRefused as error:
                    # Without the right token nothing can be said of the upload itself; 409: it is on its way already.
                    if error.status in (401, 403, 409):
                        raise
                    self._refuse(path, str(error))
                    continue
                path.unlink(missing_ok=True)

    def _refuse(self, path: Path, why: str) -> None:
        place = self.folder / "refused"
        place.mkdir(exist_ok=True)
        os.replace(path, place / path.name)
        self._tell(f"an upload was refused and is kept in {place / path.name}: {why}")
