"""Authentication and authorization.

Scopes: read < device < admin. A program authenticates with a token, a browser with its session
cookie. If no token was ever created, users of this machine have full access, but pages of other sites in their browsers
have none.

A session is a random value in a cookie, whose hash is stored. What a browser changes with it must come from our own
pages by the headers that each browser sends (Valsorda, Cross-Site Request Forgery, 2025).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from wattune_server.limits import REMEMBERED, Buckets, too_many
from wattune_server.problems import Problem
from wattune_server.store import Database, sessions, tokens
from wattune_server.store.tokens import SCOPES, Scope, Token
from wattune_server.threads import SharedReads

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
TOKEN_CACHE_S = 1.0
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Identity(NamedTuple):
    """The authenticated client. ``token``: None without authentication."""

    by: Literal["token", "session", "nothing"]
    token: Token | None = None

    @property
    def scope(self) -> Scope:
        """Scope of the client: everything without authentication, which is for users of this machine."""
        return "admin" if self.token is None else self.token.scope

    def may(self, scope: Scope) -> bool:
        """True if this identity has the scope."""
        return scope in SCOPES.get(self.scope, ())  # a stored token may have a scope of an earlier version

    @property
    def limited(self) -> Token | None:
        """Token of a client that may change only what is its own; None if it may change everything."""
        return None if self.may("admin") else self.token


@dataclass
class TokenCache:
    """Cache of verified tokens, by a hash of their text, which is emptied when the table of tokens has changed.

    It is valid for ``TOKEN_CACHE_S`` after a look at the table's state, by a clock that nobody sets back: that long, a
    token that was revoked is still accepted. One request in that time looks, whatever the number of tokens.
    """

    _database: Database
    _entries: dict[bytes, Token] = field(default_factory=dict)
    _state: object = None
    _until_s: float = float("-inf")
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _looks: SharedReads = field(default_factory=SharedReads)

    def keep(self, text: str, token: Token, state: object, read_s: float) -> None:
        """Add a token, verified in the same transaction as the table's ``state``, which began at ``read_s``."""
        self._see(state, read_s)
        with self._lock:
            if len(self._entries) >= REMEMBERED:
                self._entries.clear()
            if state == self._state:
                self._entries[_digest(text)] = token

    async def find(self, headers: list[str], now_s: float) -> Token | None:
        """Find the token of an Authorization header; None if it must be looked up in the database.

        Raises: StoreUnavailable.
        """
        if len(headers) != 1 or not headers[0].startswith("Bearer wt_"):
            return None
        key = _digest(headers[0][len("Bearer ") :])
        if key in self._entries and time.monotonic() >= self._until_s:
            await self._looks.get(None, self._look)
        token = self._entries.get(key)
        return token if token is not None and tokens.rejection(token, now_s) is None else None

    def _look(self) -> None:
        read_s = time.monotonic()
        with self._database.session(reads_only=True) as session:
            self._see(tokens.state(session), read_s)

    def _see(self, state: object, read_s: float) -> None:
        with self._lock:
            if state != self._state:
                self._entries.clear()
            self._state, self._until_s = state, read_s + TOKEN_CACHE_S


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


Check = Callable[[Request], Awaitable[Identity]]


def require(scope: Scope) -> Check:
    """Build a dependency that authenticates a request and checks its scope. Raises: Problem 401, 403 or 429."""

    async def check(request: Request) -> Identity:
        return await _authorized(request, scope)

    return check


async def form(request: Request) -> dict[str, str]:
    """Read the fields of a form. List it after the dependency that authenticates, so that strangers' stay unread."""
    return {name: text for name, text in (await request.form()).items() if isinstance(text, str)}


def check_device(request: Request, device: str) -> None:
    """Check that the client may write for a device. Raises: Problem 403."""
    identity: Identity = request.state.identity
    if (token := identity.limited) is not None and token.device != device:
        hint = f"wattune-server token make NAME --scope device --device {device}, on the server's machine"
        raise Problem(403, "the token belongs to another device", value=device, allowed=token.device, hint=hint)


def sign_in(request: Request, response: Response, text: str) -> None:
    """Begin a session with a token and set its cookie on ``response``. Raises: Problem 401, 403 or 429."""
    check_origin(request, changes=True)
    row = _by_token(request, text.strip())
    with request.app.state.database.session() as session:
        value = sessions.begin(session, row.id, time.time())
    response.set_cookie(
        request.app.state.settings.session_cookie,
        value,
        max_age=sessions.LIFETIME_S,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )


def sign_out(request: Request, response: Response) -> None:
    """End the session."""
    name = request.app.state.settings.session_cookie
    with request.app.state.database.session() as session:
        sessions.end(session, request.cookies.get(name, ""))
    response.delete_cookie(name, httponly=True, samesite="lax")


def requires_token(request: Request) -> bool:
    """True if requests without a token are rejected."""
    if request.app.state.settings.proxy is not None:
        return True
    with request.app.state.database.session(reads_only=True) as session:
        return tokens.any_exist(session)


def check_origin(request: Request, *, changes: bool = False) -> None:
    """Reject cross-site requests, which would act with the user's rights. Raises: Problem 403.

    ``changes``: a browser changes something with a session, and so has to name the origin.
    """
    if _is_link(request):
        return
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    is_ours = origin is None or _split(origin).netloc == request.headers.get("host", "")
    is_unknown = changes and site is None and origin is None
    if site not in (None, "none", "same-origin") or not is_ours or is_unknown:
        raise Problem(403, "cross-site request", value=origin or site, hint="open the server's own page")


async def _authorized(request: Request, scope: Scope) -> Identity:
    cache: TokenCache = request.app.state.token_cache
    token = await cache.find(request.headers.getlist("authorization"), time.time())
    identity = Identity("token", token) if token else await run_in_threadpool(_identify, request)
    if not identity.may(scope):
        raise Problem(
            403,
            "insufficient token scope",
            value=identity.scope,
            allowed=scope,
            hint=f"wattune-server token make {'DEVICE' if scope == 'device' else 'NAME'} --scope {scope}",
        )
    request.state.identity = identity
    return identity


def _identify(request: Request) -> Identity:
    authorization = request.headers.getlist("authorization")
    if authorization:
        kind, _, text = authorization[0].partition(" ")
        if len(authorization) > 1 or kind.lower() != "bearer":
            raise _unknown(request, "the header Authorization", allowed="Bearer wt_...")
        return Identity("token", _by_token(request, text.strip()))
    cookie = request.cookies.get(request.app.state.settings.session_cookie)
    if cookie is not None:
        with request.app.state.database.session(reads_only=True) as session:
            token = sessions.token(session, cookie, time.time())
            row = None if token is None else tokens.find_id(session, token, time.time())
        if isinstance(row, Token):
            check_origin(request, changes=request.method not in SAFE_METHODS)
            return Identity("session", row)
    if requires_token(request):
        raise Problem(
            401,
            "authentication required",
            hint="wattune-server token make DEVICE --scope device, on the server's machine",
            headers={"WWW-Authenticate": 'Bearer realm="wattune"'},
        )
    check_local(request)
    return Identity("nothing")


def check_local(request: Request) -> None:
    """Reject requests for foreign host names, against DNS rebinding. Raises: Problem 403."""
    host = request.headers.get("host", "")
    if (_split(f"//{host}").hostname or "") not in LOCAL_NAMES:
        raise Problem(403, "the header Host", value=host, allowed=", ".join(LOCAL_NAMES))
    check_origin(request)


def _is_link(request: Request) -> bool:
    """True if the user followed a link to a page: it is shown to the user alone, and reading changes nothing."""
    kinds = request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest")
    is_page = not request.url.path.startswith("/v1/")
    return is_page and request.method in ("GET", "HEAD") and kinds == ("navigate", "document")


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:  # a bracket that is not closed
        raise Problem(400, "the headers Host and Origin", value=text, allowed="valid addresses") from error


def _by_token(request: Request, text: str) -> Token:
    database, now_s, read_s = request.app.state.database, time.time(), time.monotonic()
    with database.session(reads_only=True) as session:
        state = tokens.state(session)
        row = tokens.find(session, text, now_s)
    if isinstance(row, str):
        raise _unknown(request, row)
    request.app.state.token_cache.keep(text, row, state, read_s)
    return row


def _unknown(request: Request, what: str, *, allowed: str | None = None) -> Problem:
    # Only failures are limited: 256 random bits cannot be guessed, and a client behind the same address must not be
    # able to lock a device out.
    failures: Buckets = request.app.state.failures
    address = request.client.host if request.client else ""
    if wait_s := failures.take(address):
        return too_many("too many failed authentications", wait_s)
    error = {"WWW-Authenticate": 'Bearer realm="wattune", error="invalid_token"'}
    return Problem(401, what, allowed=allowed, hint="wattune-server token list, on the server's machine", headers=error)
