"""How much anybody may ask for: bodies by size, requests by rate, failed authentications by minute."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from wattune.server.problems import Problem, respond

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = ("/healthz", "/readyz")
"""What a monitor asks: no rate limit, no authentication."""

REMEMBERED = 10_000
"""Clients that a limit keeps in mind: those seen last."""


_PUBLIC = len("Bearer wt_0123456789ab")


@dataclass(frozen=True)
class Limits:
    """Bytes, seconds and requests per second.

    ``rate_per_s`` and ``burst``: requests of one address with one token. ``failures_per_min``: failed authentications
    of one address. ``silence_s``: how long a body may pause.
    """

    json_bytes: int = 8 * 2**20
    form_bytes: int = 64 * 2**10
    file_bytes: int = 2 * 2**30
    rate_per_s: float = 50.0
    burst: int = 200
    failures_per_min: float = 10.0
    silence_s: float = 30.0


@dataclass
class Buckets:
    """Token buckets by key: each holds at most ``burst`` and gains ``rate_per_s``.

    Source: Turner, New directions in communications (or which way to the information age?), 1986.
    """

    rate_per_s: float
    burst: float
    now_s: Callable[[], float] = time.monotonic
    _held: OrderedDict[object, tuple[float, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, key: object) -> float:
        """Take one; gives 0, or the seconds to wait where there is none."""
        with self._lock:
            return self._take(key, self.now_s())

    def _take(self, key: object, now_s: float) -> float:
        held, then_s = self._held.pop(key, (self.burst, now_s))
        held = min(self.burst, held + (now_s - then_s) * self.rate_per_s)
        wait_s = 0.0 if held >= 1 else (1 - held) / self.rate_per_s
        self._held[key] = (held - 1 if held >= 1 else held, now_s)
        if len(self._held) > REMEMBERED:
            self._held.popitem(last=False)
        return wait_s


def too_many(what: str, wait_s: float) -> Problem:
    """The answer to somebody who asks too often."""
    seconds = max(1, round(wait_s + 0.5))
    return Problem(429, what, hint=f"try again in {seconds} s", headers={"Retry-After": str(seconds)})


class Limiter:
    """Refuses requests that come too fast, and ends bodies that are too long or stand still, before any of it is used.

    Pure ASGI: a body is counted while it streams, whether or not its length was told.
    """

    def __init__(self, app: ASGIApp, limits: Limits):
        self._app = app
        self._limits = limits
        self._buckets = Buckets(limits.rate_per_s, limits.burst)
        # Of an address, however many tokens it claims to have: a made-up one costs nothing.
        self._addresses = Buckets(10 * limits.rate_per_s, 10 * limits.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            address = (scope.get("client") or ("",))[0]
            # Only the public half of a token: a made-up one ends in a failed authentication, which has its own limit.
            claimed = headers.get(b"authorization", b"")[:_PUBLIC]
            if wait_s := self._addresses.take(address) or self._buckets.take((address, claimed)):
                raise too_many("too many requests", wait_s)
            most = self._most(scope["path"])
            length = headers.get(b"content-length", b"0")
            if not length.isdigit() or int(length[:20]) > most:
                raise _too_large(most)
        except Problem as problem:
            await respond(problem)(scope, receive, send)
            return
        body = _Body(receive, most, self._limits.silence_s)
        await self._app(scope, body.receive, send)

    def _most(self, path: str) -> int:
        if path.startswith("/v1/files/"):
            return self._limits.file_bytes
        return self._limits.json_bytes if path.startswith("/v1/") else self._limits.form_bytes


class _Body:
    """Counts what comes in."""

    def __init__(self, receive: Receive, most: int, silence_s: float):
        self._receive = receive
        self._most = most
        self._silence_s = silence_s
        self._bytes = 0
        self._whole = False

    async def receive(self) -> Message:
        if self._whole:  # what still comes is the end of the connection, which may take its time
            return await self._receive()
        try:
            with anyio.fail_after(self._silence_s):
                message = await self._receive()
        except TimeoutError:
            raise Problem(408, "the rest of the request did not come", value=f"{self._silence_s:g} s") from None
        self._bytes += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._bytes > self._most:
            raise _too_large(self._most)
        return message


def _too_large(most: int) -> Problem:
    return Problem(413, "the body is too large", allowed=f"at most {most} bytes", headers={"Connection": "close"})
