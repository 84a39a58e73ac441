"""Worker on another machine: claims units over the API of a server, and keeps the files that they need in a folder."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import ValidationError

from wattune.errors import InputError, Interrupted, ServerError, ServerRefused, WattuneError
from wattune.records import LearningCurve
from wattune.records.served import DEVICE_NAME
from wattune.remote.cache import Cache
from wattune.remote.connection import Connection
from wattune.remote.download import download, is_whole
from wattune.server import logs
from wattune.server.jobs.claims import Claim, Outcome, WorkerDevice, content, torch_version
from wattune.server.settings import memory_for
from wattune.server.store import FileStore
from wattune.version import __version__

WAIT_S = 20
"""Time in whole seconds after which the server answers that there is no unit."""

SHORT_S = 5.0
"""Timeout in seconds of a renewal, and of a release at the end."""

NOT_HELD = 409
"""Status of a report for a unit that the worker no longer holds."""


class RemoteQueue:
    """Queue of units behind the API of a server. ``folder``: for files and unfinished runs of this server."""

    def __init__(self, connection: Connection, name: str, folder: Path, device: WorkerDevice):
        self.name = name
        self.files = FileStore(folder / "files")
        # A run is resumed on the processor that it began on.
        self.work = folder / f"work-{device}"
        self._connection, self._device = connection, device
        self._claim, self._is_used = secrets.token_hex(16), False
        self._first: Claim | None = None

    def connect(self) -> None:
        """Claim a first unit, without waiting for one.

        Raises: InputError if the server does not answer; ServerRefused if it does not take this worker.
        """
        try:
            self._first = self._claimed(0)
        except ServerError as error:
            raise InputError(str(error)) from error

    def claim(self) -> Claim | None:
        """Claim a unit; None if there is none after ``WAIT_S``. Raises: ServerError, ServerRefused."""
        first, self._first = self._first, None
        return first or self._claimed(WAIT_S)

    def fetch(self, claim: Claim) -> None:
        """Download the files of a unit that are not here yet. Raises: ServerError, ServerRefused, OutputError."""
        for file in claim.files:
            path = self.files.path(file.sha256)
            if not is_whole(path, file):
                download(self._connection, f"/v1/files/{file.sha256}", file, path)

    def renew(self, claim: Claim) -> bool:
        """Renew the lease; False if the worker no longer holds the unit. Raises: ServerError."""
        try:
            return self._reported(claim, "renew", retries=False, timeout_s=SHORT_S)
        except ServerRefused:  # e.g. a token that was revoked: the next claim says so
            return False

    def finish(self, claim: Claim, curve: LearningCurve) -> bool:
        """Send the curve of a run; False if the worker no longer holds the unit. Raises: ServerError, ServerRefused."""
        sha256 = hashlib.sha256(content(curve)).hexdigest()
        return self._reported(claim, "finish", {"sha256": sha256, "curve": curve.dump()})

    def choose(self, claim: Claim, outcome: Outcome) -> bool:
        """Send a choice; False if the worker no longer holds the unit. Raises: ServerError, ServerRefused."""
        return self._reported(claim, "choice", {"record" if isinstance(outcome, dict) else "runs": outcome})

    def fail(self, claim: Claim, reason: str, *, is_final: bool) -> bool:
        """Report a failed attempt; False if the worker no longer holds the unit. Raises: ServerError, ServerRefused."""
        return self._reported(claim, "fail", {"reason": reason, "is_final": is_final})

    def release(self, claim: Claim) -> None:
        """Requeue the unit; the attempt does not count. Raises: ServerError, ServerRefused."""
        self._reported(claim, "release")

    def give_back(self) -> None:
        """Release the unit that is held now, or may be: the answer to a claim may have been missed. Tries once."""
        with suppress(WattuneError):
            self._post("release", self._claim, {}, retries=False, timeout_s=SHORT_S)

    def _claimed(self, wait_s: int) -> Claim | None:
        # After a lost answer the same name again, which gets the same unit.
        if self._is_used:
            self._claim, self._is_used = secrets.token_hex(16), False
        body = {"wattune": __version__, "torch": torch_version(), "device": self._device}
        data = self._post("claim", self._claim, body, headers={"Prefer": f"wait={wait_s}"})
        if data is None:
            return None
        self._is_used = True
        try:
            return Claim.model_validate(data)
        except ValidationError as error:
            raise ServerError(f"the server {self._connection.url} returned an invalid unit") from error

    def _reported(self, claim: Claim, route: str, body: dict[str, Any] | None = None, **options: Any) -> bool:
        try:
            self._post(route, claim.holder.rpartition(":")[2], body or {}, **options)
        except ServerRefused as error:
            if error.status != NOT_HELD:
                raise
            return False
        return True

    def _post(self, route: str, claim: str, body: dict[str, Any], **options: Any) -> Any:
        whole = {"worker": self.name, "claim": claim, **body}
        return self._connection.request("POST", f"/v1/units/{route}", body=whole, **options)


def work(url: str, token: str | None, name: str, device: WorkerDevice, say: Callable[[str], None]) -> None:
    """Work on the units of a server until a signal arrives: SIGTERM returns, SIGINT raises Interrupted.

    ``say`` is called with messages for the user. In both cases the unit in hand is released.

    Raises: InputError if there is no such server or device; ServerRefused if the server does not take this worker.
    """
    if not re.fullmatch(DEVICE_NAME, name):
        raise InputError("name of the worker", value=name, allowed="up to 64 letters, digits, '.', '_' and '-'")
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from wattune.algorithms.allocator import keep_freed_memory
    from wattune.server.jobs.sweep_unit import train_here
    from wattune.server.jobs.worker import Worker
    from wattune.server.jobs.worker_process import limit_memory

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device", value=device, allowed="cpu", hint="torch finds no CUDA device on this machine")
    connection = Connection(url, token=token)
    queue = RemoteQueue(connection, name, Cache(connection.url).folder / "worker", device)
    if connection.sends_plain_token:
        say(f"the token is sent to {connection.url} unencrypted; use https to encrypt it")
    signals: list[int] = []
    with _interrupts(signals):
        try:
            queue.connect()
            # One thread, as the server's own workers: the sums of a run depend on their number.
            torch.set_num_threads(1)
            logs.configure()
            if device == "cpu":
                keep_freed_memory()
                limit_memory(memory_for(1))
            say(f"{name} works for {connection.url} on {device}; Ctrl-C stops it")
            Worker(queue, train=partial(train_here, on="gpu" if device == "cuda" else "cpu")).run()
        except KeyboardInterrupt:
            queue.give_back()
            if signal.SIGTERM not in signals:
                raise Interrupted("interrupted: the run in hand is trained again, by this worker or another") from None
        finally:
            connection.close()


@contextmanager
def _interrupts(signals: list[int]) -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGINT and SIGTERM, and add the signal to ``signals``."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
