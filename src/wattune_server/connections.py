"""The HTTP server below the application, with a deadline for the headers of each request.

A reverse proxy limits the connections of each client. Silent connections end at the deadline, and until then the
process may open as many files as the system lets it.
"""

from __future__ import annotations

import logging
import resource
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn

if TYPE_CHECKING:
    from wattune_server.settings import Settings

OPEN_FILES = 65_536
"""Number of files, connections among them, that the process asks the system for."""

ENOUGH_FILES = 4096
"""Number of open files with which silent connections were seen to keep nobody out."""

SHUTDOWN_S = 5
"""Timeout in seconds of open requests after a signal."""

log = logging.getLogger("wattune_server.connections")


class Server(uvicorn.Server):
    """HTTP server of an application that also ends connections whose headers are late.

    uvicorn's own timeout covers only the time between two requests, and ends with the first byte of the next one.
    ``signals``: those that arrived before; with any, it stops at once. ``on_start`` is called when it is ready.
    """

    def __init__(
        self,
        app: Any,
        settings: Settings,
        *,
        signals: Sequence[int] = (),
        on_start: Callable[[], None] = lambda: None,
    ):
        raise_open_files()
        config = uvicorn.Config(
            app,
            http="h11",
            h11_max_incomplete_event_size=settings.limits.header_bytes,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            ws="none",
            # Without a proxy, any local user could forge the client address.
            proxy_headers=settings.proxy is not None,
            forwarded_allow_ips=settings.proxy,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
        super().__init__(config)
        self._signals, self._on_start = signals, on_start
        self._headers_s = settings.limits.headers_s
        self._waiting: dict[Any, tuple[object, float]] = {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and report that the server is ready."""
        await super().startup(sockets)
        self.should_exit = self.should_exit or bool(self._signals)
        if not self.should_exit:
            self._on_start()

    async def on_tick(self, counter: int) -> bool:
        """Look at the connections once a second."""
        if counter % 10 == 0:
            self._end_late()
        return await super().on_tick(counter)

    def _end_late(self) -> None:
        """End each connection that has waited for whole headers since its last response, for longer than it may."""
        before, self._waiting = self._waiting, {}
        now_s = time.monotonic()
        connections: Any = tuple(self.server_state.connections)
        for connection in connections:
            last = connection.cycle
            if last is None or last.response_complete:
                answered, since_s = before.get(connection, (last, now_s))
                self._waiting[connection] = (last, since_s if answered is last else now_s)
                # Until the client has read the response it has nothing to send, unless the next request has begun.
                is_sending = connection.transport.get_write_buffer_size() and not connection.conn.trailing_data[0]
                if now_s - self._waiting[connection][1] > self._headers_s and not is_sending:
                    connection.transport.abort()


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
