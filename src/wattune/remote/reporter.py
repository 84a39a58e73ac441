"""How a device is doing, told to the server from beside its work, which never waits for it and never fails by it."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

from pydantic import ValidationError
from typing_extensions import Self

from wattune.errors import ServerAway, ServerRefused, WattuneError
from wattune.records import Plan
from wattune.records.served import DeviceStatus
from wattune.remote.server import STATUS_S, Server

LEAST_S = 1.0
"""Seconds between two messages at least."""

MOST_S = 15.0
"""Seconds between two messages at most: the server then sees that the device is still there."""


class Reporter:
    """A context around a run; inside, ``tell`` says what has changed, and the newest state is what is sent.

    On leaving, the last state is sent; a server that does not answer holds the end up by a few seconds at most.
    """

    def __init__(self, server: Server, first: DeviceStatus):
        self._server = server
        self._status = first
        self._plan: tuple[Plan, str | None, str | None] | None = None
        self._turn = threading.Lock()
        self._news = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def __enter__(self) -> Self:
        self._news.set()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # Its kind and no more: the text of an error may quote what it was about.
            self.tell(step="failed", says=f"ended by {kind.__name__}")
        self._end.set()
        self._news.set()
        self._thread.join(3 * STATUS_S)

    @property
    def status(self) -> DeviceStatus:
        """The newest state."""
        with self._turn:
            return self._status

    def tell(self, **changes: Any) -> None:
        """Fields of ``DeviceStatus`` that have changed. What no status can say, such as a metric that is NaN, is None;
        a share is cut to 0..1."""
        known = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in changes.items()}
        if "share" in known:
            known["share"] = min(1.0, max(0.0, known["share"] or 0.0))
        if known.get("says") is not None:
            known["says"] = str(known["says"])[:500]
        with self._turn:
            try:
                self._status = DeviceStatus.model_validate({**self._status.model_dump(), **known})
            except ValidationError:  # rather old news than none
                return
        self._news.set()

    def tell_plan(self, plan: Plan, *, profile: str | None, job: str | None) -> None:
        """The plan, and the names of the profile and the job that it comes from."""
        with self._turn:
            self._plan = (plan, profile, job)
        self.tell(batch_size=plan.batch_size, clock_mhz=plan.clock_mhz)

    def _run(self) -> None:
        while not self._end.is_set():
            self._news.wait(MOST_S)
            self._news.clear()
            self._send_safely()
            self._end.wait(LEAST_S)
        if self._news.is_set():
            self._send_safely()

    def _send_safely(self) -> None:
        with suppress(Exception):  # of what the client tells of: a callback of the caller's, who is not in this thread
            self._send()

    def _send(self) -> None:
        with self._turn:
            status, plan = self._status, self._plan
        try:
            self._server.put_status(status)
        except (WattuneError, OSError) as error:
            self._say(error, "how this device is doing")
            return  # the next state is newer anyway
        if plan is None:
            return
        try:
            self._server.put_plan(status.device, plan[0], profile=plan[1], job=plan[2])
        except ServerRefused as error:  # again it would be so again
            self._say(error, "the plan")
        except (WattuneError, OSError) as error:
            self._say(error, "the plan")
            return
        with self._turn:
            if self._plan is plan:
                self._plan = None

    def _say(self, error: Exception, what: str) -> None:
        if not isinstance(error, ServerAway):  # of which the client itself tells
            self._server.tell_once(f"{what} is not told to the server: {error}")
