"""Outermost middleware: request ids, timing, metrics, access log, security headers, and unexpected errors."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders

from wattune_server import problems
from wattune_server.logs import REQUESTS
from wattune_server.problems import Problem, as_problem
from wattune_server.prometheus import Metrics

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")

DEFAULTS = {
    # Plain data that a browser must neither run nor display.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Headers of a response that sets none of its own."""

_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Telemetry:
    """Middleware that identifies, times, counts and logs each request. Pure ASGI, so that responses can stream."""

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self._app = app
        self._metrics = metrics
        self._process, self._count = secrets.token_hex(3), itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client_id = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = client_id.decode() if _ID.fullmatch(client_id) else f"{self._process}{next(self._count):010x}"
        begin_s, status, sent_bytes = time.perf_counter(), 0, 0

        async def send_observed(message: Message) -> None:
            nonlocal status, sent_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(scope, message, request_id)
            elif message["type"] == "http.response.body":
                if scope["method"] == "HEAD":
                    message = {**message, "body": b""}
                sent_bytes += len(message.get("body", b""))
            await send(message)

        # Load balancers ask by HEAD: the same answer as to GET, whose body the protocol leaves out.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        failure: BaseException | None = None
        try:
            await self._app(inner, receive, send_observed)
        except Exception as error:
            problem = as_problem(error)
            failure = error if problem is None else None
            if status == 0:
                response = problem or Problem(
                    500, "internal server error", hint=f"see the server's log, request {request_id}"
                )
                await problems.answer(response, inner)(inner, receive, send_observed)
            elif problem is None:
                raise  # cut the connection: a truncated response must not look complete
        finally:
            seconds = time.perf_counter() - begin_s
            if status == 503 and "app" in inner:
                inner["app"].state.ready_s = float("-inf")  # so that the next readiness check is not cached
            route = getattr(inner.get("route"), "path", None) or "other"
            # The method is client input as well: arbitrary names would create an unbounded number of series.
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._metrics.count(method, route, status, seconds)
            token = getattr(inner.get("state", {}).get("identity"), "token", None)
            REQUESTS.log(
                40 if failure else 20,
                "request",
                exc_info=failure,
                extra={
                    "request": request_id,
                    "method": method,
                    "path": scope["path"],
                    "route": route,
                    "status": status,
                    "ms": round(seconds * 1000, 1),
                    "bytes": sent_bytes,
                    "client": (scope.get("client") or (None,))[0],
                    "token": getattr(token, "name", None),
                },
            )


def _add_headers(scope: Scope, message: Message, request_id: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["X-Request-Id"] = request_id
    for name, value in DEFAULTS.items():
        headers.setdefault(name, value)
    if not scope["path"].startswith("/static/"):
        headers.setdefault("Cache-Control", "no-store")
    if scope.get("scheme") == "https":
        headers.setdefault("Strict-Transport-Security", "max-age=31536000")
