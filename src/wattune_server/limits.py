"""Limits: body size, request rate, and failed authentications per minute."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import anyio
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from wattune.errors import InputError
from wattune_server.problems import Problem, answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = ("/healthz", "/readyz")
"""Paths for health checks: no rate limit, no authentication."""

BODY_BYTES_PER_S = 50_000
"""Rate at which a body must arrive after its first seconds: a byte now and then must not hold a connection."""

REMEMBERED = 10_000
"""Maximum number of clients tracked by a limit, least recently seen evicted first."""


_PUBLIC = len("Bearer wt_0123456789ab")


Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


class Limits(BaseSettings):
    """Limits in bytes, seconds and requests per second, each from the environment, e.g. ``WATTUNE_LIMIT_BURST``.

    ``rate_per_s`` and ``burst``: requests from one address with one token. ``failures_per_min``: failed authentications
    from one address. ``headers_s`` and ``body_s``: time in which headers or a body must be complete; a body has a
    second more for each ``BODY_BYTES_PER_S``. ``bodies_per_address``: bodies of one client that are waited for.
    ``sweeps_per_token``: open jobs of one device token. ``runner_silence_s``: time after which the process of a sweep
    is killed that gives no sign of life. ``threads``: worker threads; further requests queue. Requests are mostly
    CPU-bound, so under the GIL the library's default of 40 threads makes every request several times slower.
    """

    model_config = SettingsConfigDict(env_prefix="WATTUNE_LIMIT_", frozen=True, extra="forbid")

    header_bytes: Count = 64 * 2**10
    headers_s: Rate = 10.0
    bodies_per_address: Count = 50
    sweeps_per_token: Count = 3
    runner_silence_s: Annotated[float, Field(ge=3)] = 30.0
    json_bytes: Count = 8 * 2**20
    form_bytes: Count = 4 * 2**10
    rate_per_s: Rate = 50.0
    burst: Count = 200
    failures_per_min: Rate = 10.0
    body_s: Rate = 10.0
    threads: Count = 4


def limits_from_environment() -> Limits:
    """Read the limits. Raises: InputError for a value that is not valid."""
    try:
        return Limits()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"WATTUNE_LIMIT_{str(first['loc'][0]).upper()}"
        raise InputError(name, value=first["input"], allowed=first["msg"]) from None


@dataclass
class Buckets:
    """Token buckets by key: each holds at most ``burst`` tokens and gains ``rate_per_s``.

    Source: Turner, New directions in communications (or which way to the information age?), 1986.
    """

    rate_per_s: float
    burst: float
    now_s: Callable[[], float] = time.monotonic
    _held: OrderedDict[object, tuple[float, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, key: object) -> float:
        """Take one token; return 0, or the seconds to wait if the bucket is empty."""
        with self._lock:
            now_s = self.now_s()
            tokens, then_s = self._held.pop(key, (self.burst, now_s))
            tokens = min(self.burst, tokens + (now_s - then_s) * self.rate_per_s)
            wait_s = 0.0 if tokens >= 1 else (1 - tokens) / self.rate_per_s
            self._held[key] = (tokens - 1 if tokens >= 1 else tokens, now_s)
            if len(self._held) > REMEMBERED:
                self._held.popitem(last=False)
            return wait_s


def too_many(what: str, wait_s: float) -> Problem:
    """Build the response to a client that exceeds a rate limit."""
    seconds = max(1, round(wait_s + 0.5))
    return Problem(429, what, hint=f"try again in {seconds} s", headers={"Retry-After": str(seconds)})


class Limiter:
    """Middleware that rejects requests above the rate limit, and bodies that are too large or stall.

    Pure ASGI: a body is counted while it streams, whether or not it has a Content-Length.
    """

    def __init__(self, app: ASGIApp, limits: Limits):
        self._app = app
        self._limits = limits
        self._buckets = Buckets(limits.rate_per_s, limits.burst)
        # Per address, whatever tokens it presents: invalid tokens are free to invent.
        self._addresses = Buckets(10 * limits.rate_per_s, 10 * limits.burst)
        self._awaited: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            address = (scope.get("client") or ("",))[0]
            # Only the public half of a token: an invalid one fails authentication, which has its own limit.
            public = headers.get(b"authorization", b"")[:_PUBLIC]
            if wait_s := self._addresses.take(address) or self._buckets.take((address, public)):
                raise too_many("too many requests", wait_s)
            if b"transfer-encoding" in headers and b"content-length" in headers:
                # A proxy in front may believe the other length (RFC 9112, 6.3).
                what = "Content-Length together with Transfer-Encoding"
                raise Problem(400, what, allowed="one of them", headers={"Connection": "close"})
            limits = self._limits
            max_bytes = limits.json_bytes if scope["path"].startswith("/v1/") else limits.form_bytes
            length = headers.get(b"content-length", b"0")
            if not length.isdigit() or int(length[:20]) > max_bytes:
                raise _too_large(max_bytes)
        except Problem as problem:
            await answer(problem, scope)(scope, receive, send)
            return
        body = _Body(receive, max_bytes, limits, self._awaited, address)
        await self._app(scope, body.receive, send)


class _Body:
    """A request body: counts its bytes, and times out if they come too slowly. A client may send few of them slowly.

    ``awaited``: by address, the number of bodies whose next part has not arrived.
    """

    def __init__(self, receive: Receive, max_bytes: int, limits: Limits, awaited: Counter[str], address: str):
        self._receive = receive
        self._max_bytes = max_bytes
        self._limits = limits
        self._awaited, self._address = awaited, address
        self._begun_s = anyio.current_time()
        self._bytes = 0
        self._is_complete = False

    async def receive(self) -> Message:
        if self._is_complete:  # the next message is the disconnect, which has no timeout
            return await self._receive()
        if self._awaited[self._address] >= self._limits.bodies_per_address:
            what, headers = "too many bodies of one client arrive slowly", {"Connection": "close", "Retry-After": "10"}
            raise Problem(429, what, allowed=f"{self._limits.bodies_per_address} at a time", headers=headers)
        self._awaited[self._address] += 1
        try:
            limit_s = self._limits.body_s + self._bytes / BODY_BYTES_PER_S
            with anyio.fail_after(self._begun_s + limit_s - anyio.current_time()):
                message = await self._receive()
        except TimeoutError:
            # The rest of the body would be read as the next request.
            headers = {"Connection": "close"}
            raise Problem(408, "timed out reading the request body", value=f"{limit_s:g} s", headers=headers) from None
        finally:
            self._awaited[self._address] -= 1
            if not self._awaited[self._address]:
                del self._awaited[self._address]
        self._bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        return message


def _too_large(max_bytes: int) -> Problem:
    return Problem(413, "the body is too large", allowed=f"at most {max_bytes} bytes", headers={"Connection": "close"})
