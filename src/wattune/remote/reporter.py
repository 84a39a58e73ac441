"""Status reports of a device to the server, sent from a background thread that never blocks or fails the run."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from typing_extensions import Self

from wattune.errors import ServerUnavailable, WattuneError
from wattune.records.served import DeviceStatus
from wattune.remote.client import STATUS_S, Client

MIN_INTERVAL_S = 1.0
"""Minimum interval in seconds between two reports."""

HEARTBEAT_S = 15.0
"""Maximum interval in seconds between two reports, so that the server sees that the device is online."""


class Reporter:
    """Context manager around a run: ``update`` changes the status, and the newest status is sent.

    On exit, the last status is sent; an unresponsive server delays the exit by a few seconds at most.
    """

    def __init__(self, client: Client, first: DeviceStatus):
        self._client = client
        self._status = first
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> Self:
        self._changed.set()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            # Only the type: the message of an error may quote private data.
            self.update(step="failed", says=f"ended by {kind.__name__}")
        self._stopping.set()
        self._changed.set()
        self._thread.join(3 * STATUS_S)

    @property
    def status(self) -> DeviceStatus:
        """Newest status."""
        with self._lock:
            return self._status

    def update(self, **changes: Any) -> None:
        """Update fields of ``DeviceStatus``. Non-finite numbers become None, and a share is clipped to 0..1."""
        fields = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in changes.items()}
        if "share" in fields:
            fields["share"] = min(1.0, max(0.0, fields["share"] or 0.0))
        if fields.get("says") is not None:
            fields["says"] = str(fields["says"])[:500]
        with self._lock:
            try:
                self._status = DeviceStatus.model_validate({**self._status.model_dump(), **fields})
            except ValidationError:  # keep the previous status
                return
        self._changed.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.wait(HEARTBEAT_S)
            self._changed.clear()
            self._send()
            self._stopping.wait(MIN_INTERVAL_S)
        if self._changed.is_set():
            self._send()

    def _send(self) -> None:
        with suppress(Exception):  # notifications run a callback of the user, which must not end this thread
            try:
                self._client.put_status(self.status)
            except (WattuneError, OSError) as error:  # the next report is newer anyway
                if not isinstance(error, ServerUnavailable):  # which the client reports itself
                    self._client.notify_once(f"could not send the status of this device to the server: {error}")
