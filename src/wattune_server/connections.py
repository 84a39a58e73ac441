"""A deadline for the headers of each request, below the ASGI application, which sees only whole headers.

A reverse proxy limits the connections of each client. Silent connections end at the deadline, and until then the
process may open as many files as the system lets it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from wattune_server.settings import Settings

OPEN_FILES = 65_536
"""Number of files, connections among them, that the process asks the system for."""

ENOUGH_FILES = 4096
"""Number of open files with which silent connections were seen to keep nobody out."""

log = logging.getLogger("wattune_server.connections")


def configured(app: Any, settings: Settings, **options: Any) -> uvicorn.Config:
    """Configure uvicorn for an application, with the settings' limits on its connections."""
    raise_open_files()
    return uvicorn.Config(
        app,
        http=partial(BoundedProtocol, headers_s=settings.limits.headers_s),  # type: ignore[arg-type]  # it is only called
        h11_max_incomplete_event_size=settings.limits.header_bytes,
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


def raise_open_files() -> None:
    """Raise the process's limit of open files to ``OPEN_FILES``, as far as it may; warn below ``ENOUGH_FILES``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < ENOUGH_FILES:
        log.warning(
            "the hard limit of open files is %d: silent connections may keep others out; raise it to %d or more "
            "(ulimit -Hn, LimitNOFILE)",
            hard,
            ENOUGH_FILES,
        )
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 connection with a deadline for the headers of each request. uvicorn's own timeout covers only the time
    between two requests, and ends with the first byte of the next one."""

    def __init__(self, *args: Any, headers_s: float, **options: Any):
        super().__init__(*args, **options)
        self._headers_s = headers_s
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """True unless a request with complete headers awaits its response."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the deadline of the first request."""
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadline."""
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

    def _watch(self) -> None:
        if self._deadline is None and self.is_idle:
            self._deadline = self.loop.call_later(self._headers_s, self._too_late)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing() and self.is_idle:
            self.transport.abort()
