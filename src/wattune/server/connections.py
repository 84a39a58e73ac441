"""Limits on connections, below the ASGI application, which sees a request only once its headers are complete.

A connection must deliver complete headers within a deadline and a size, and the number of connections is limited. A
new connection above the limit replaces the idle connection that was used least recently, so that silent sockets keep
nobody out; if none is idle, the new one is closed. All connections may come from one proxy, so addresses do not count.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from wattune.server.limits import Limits
    from wattune.server.settings import Settings

RESERVED_FILES = 128
"""File descriptors that connections leave for the database, files and logs."""

REPORT_EVERY_S = 10.0
"""Minimum interval between log lines about closed connections: a flood must not fill the log."""

log = logging.getLogger("wattune.server.connections")


def configured(app: Any, settings: Settings, **options: Any) -> uvicorn.Config:
    """Configure uvicorn for an application, with the settings' limits on its connections."""
    limits = fitting(settings.limits)
    protocol = partial(BoundedProtocol, gate=Gate(limits))
    return uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type]  # uvicorn only calls it
        h11_max_incomplete_event_size=limits.header_bytes,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        # Without a proxy, any local user could forge the client address.
        proxy_headers=settings.proxy is not None,
        forwarded_allow_ips=settings.proxy,
        **options,
    )


def fitting(limits: Limits) -> Limits:
    """Raise the process's limit of open files as far as it may, and limit the connections to what then fits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.connections + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = limits.connections if soft == resource.RLIM_INFINITY else max(16, soft - RESERVED_FILES)
    return limits.model_copy(update={"connections": min(limits.connections, most)})


@dataclass
class Gate:
    """The open connections of one server, least recently used first."""

    limits: Limits
    _open: dict[BoundedProtocol, None] = field(default_factory=dict)
    _closed: Counter[str] = field(default_factory=Counter)
    _reported_s: float = float("-inf")

    def enter(self, connection: BoundedProtocol) -> bool:
        """Register a connection; False if it must be closed because no other one is idle."""
        if len(self._open) >= self.limits.connections:
            oldest = next((other for other in self._open if other.is_idle), None)
            self.report("too many connections", connection.address)
            if oldest is None:
                return False
            self.leave(oldest)
            oldest.transport.abort()
        self._open[connection] = None
        return True

    def use(self, connection: BoundedProtocol) -> None:
        """Move a connection to the end: it was used just now."""
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def leave(self, connection: BoundedProtocol) -> None:
        """Unregister a connection."""
        self._open.pop(connection, None)

    def report(self, reason: str, address: str) -> None:
        """Log why connections were closed, at most once every ``REPORT_EVERY_S``."""
        self._closed[f"{reason} from {address or 'an unknown address'}"] += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            most = ", ".join(f"{what} ({count})" for what, count in self._closed.most_common(3))
            log.warning("closed %d connections: %s", self._closed.total(), most)
            self._closed.clear()


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 connection with a deadline for the headers of each request. uvicorn's own timeout covers only the time
    between two requests, and ends with the first byte of the next one."""

    def __init__(self, *args: Any, gate: Gate, **options: Any):
        super().__init__(*args, **options)
        self._gate = gate
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """IP address of the client."""
        return self.client[0] if self.client else ""

    @property
    def is_idle(self) -> bool:
        """True unless a request with complete headers awaits its response."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the deadline of the first request."""
        super().connection_made(transport)
        if self._gate.enter(self):
            self._watch()
        else:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadline."""
        self._gate.leave(self)
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        self._watch()
        super().data_received(data)

    def handle_events(self) -> None:
        """End the deadline once headers are complete; begin the next one if they are followed by a part of others."""
        super().handle_events()
        if not self.is_idle:
            self._unwatch()
        elif self.conn.trailing_data[0]:
            self._watch()

    def on_response_complete(self) -> None:
        """Note that the connection was used."""
        self._gate.use(self)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Reject a malformed request, or headers that are too large."""
        self._unwatch()
        self._gate.report("malformed or too large headers", self.address)
        super().send_400_response(msg)

    def _watch(self) -> None:
        if self._deadline is None and self.is_idle:
            self._deadline = self.loop.call_later(self._gate.limits.headers_s, self._too_late)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing() and self.is_idle:
            self._gate.report("no complete request in time", self.address)
            self.transport.abort()
