"""Who asks, and whether they may.

Scopes: read < device < admin. A program shows a token, a browser the cookie of its session; where no token was ever
made, everything is open to the users of this machine, and to no page of another site that runs in their browsers.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from wattune.server.limits import REMEMBERED, Buckets, too_many
from wattune.server.problems import Problem
from wattune.server.sessions import COOKIE, LASTS_S, Sessions
from wattune.server.store import tokens
from wattune.server.store.tokens import SCOPES, Scope, Token

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf-token"
RECENT_S = 1.0
SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class Identity:
    """Who asks. ``token`` and ``name``: of the token; None where none is needed."""

    scope: Scope
    by: Literal["token", "session", "nothing"]
    token: str | None = None
    name: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether this includes that scope."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)


@dataclass
class Recent:
    """Tokens that were found good a moment ago, by a hash of their text: a device that asks four times a second is
    looked up once. What is revoked opens nothing after ``RECENT_S``."""

    _held: dict[bytes, tuple[Token, float]] = field(default_factory=dict)

    def keep(self, text: str, token: Token, now_s: float) -> None:
        """Remember one."""
        if len(self._held) >= REMEMBERED:
            self._held.clear()
        self._held[_digest(text)] = (token, now_s + RECENT_S)

    def find(self, headers: list[str], now_s: float) -> Token | None:
        """The token of a header Authorization; None where it has to be looked up."""
        if len(headers) != 1 or not headers[0].startswith("Bearer wt_"):
            return None
        token, until_s = self._held.get(_digest(headers[0][len("Bearer ") :]), (None, 0.0))
        good = token is not None and now_s < until_s and tokens.why_not(token, now_s) is None
        return token if good else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


Check = Callable[[Request], Awaitable[Identity]]


def require(scope: Scope) -> Check:
    """A dependency: who asks, where they may. Raises: Problem 401, 403 or 429."""

    async def check(request: Request) -> Identity:
        return await _allowed(request, scope, form=False)

    return check


def require_form(scope: Scope) -> Check:
    """As ``require``, for the forms of a page: the route has to call ``check_form`` on what it got."""

    async def check(request: Request) -> Identity:
        return await _allowed(request, scope, form=True)

    return check


def csrf_token(request: Request) -> str:
    """The value of the field ``csrf`` of every form of a page."""
    return _sessions(request).csrf(request.cookies.get(COOKIE))


def check_form(request: Request, given: object) -> None:
    """Raises: Problem 403 where a form was not made by a page of ours, in this session."""
    check_origin(request)
    if not isinstance(given, str) or not hmac.compare_digest(csrf_token(request).encode(), given.encode()):
        raise Problem(403, "the form is not of this session", hint="load the page again")


def sign_in(request: Request, response: Response, text: str) -> Identity:
    """Begin a session with the token of this text, whose cookie ``response`` sets. Raises: Problem 401 or 429."""
    row = _by_token(request, text.strip())
    response.set_cookie(
        COOKIE,
        _sessions(request).begin(row.id),
        max_age=LASTS_S,
        httponly=True,
        samesite="strict",
        secure=request.app.state.settings.has_tls or request.url.scheme == "https",
        path="/",
    )
    return _identity(row, "session")


def sign_out(request: Request, response: Response) -> None:
    """End the session."""
    _sessions(request).end(request.cookies.get(COOKIE, ""))
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


def asks_for_token(request: Request) -> bool:
    """Whether nobody gets in without one."""
    if request.app.state.settings.requires_token:
        return True
    with request.app.state.database.session(reads_only=True) as session:
        return tokens.any_made(session)


def check_origin(request: Request) -> None:
    """Raises: Problem 403 where a page of another site asks: it would act with rights that are not its own."""
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin")
    ours = origin is None or _split(origin).netloc == request.headers.get("host", "")
    if site not in ("none", "same-origin") or not ours:
        raise Problem(403, "a page of another site asks", value=origin or site, hint="open the server's own page")


async def _allowed(request: Request, scope: Scope, *, form: bool) -> Identity:
    now_s = time.time()
    token = _recent(request).find(request.headers.getlist("authorization"), now_s)
    if token is not None:
        request.app.state.used_s[token.id] = now_s
        identity = _identity(token, "token")
    else:
        identity = await run_in_threadpool(_identify, request, form=form)
    if not identity.may(scope):
        raise Problem(
            403,
            "the token's scope",
            value=identity.scope,
            allowed=scope,
            hint=f"wattune token make NAME --scope {scope}",
        )
    request.state.identity = identity
    return identity


def _identify(request: Request, *, form: bool) -> Identity:
    given = request.headers.getlist("authorization")
    if given:
        kind, _, text = given[0].partition(" ")
        if len(given) > 1 or kind.lower() != "bearer":
            raise _unknown(request, "the header Authorization", allowed="Bearer wt_...")
        return _identity(_by_token(request, text.strip()), "token")
    cookie = request.cookies.get(COOKIE)
    token = None if cookie is None else _sessions(request).token(cookie)
    if token is not None:
        with request.app.state.database.session(reads_only=True) as session:
            row = tokens.find_id(session, token, time.time())
        if isinstance(row, Token):
            check_origin(request)
            if request.method not in SAFE and not form:
                check_form(request, request.headers.get(CSRF_HEADER))
            return _identity(row, "session")
    if asks_for_token(request):
        raise Problem(
            401,
            "a token is needed",
            hint="wattune token make NAME --scope device, on the server's machine",
            headers={"WWW-Authenticate": 'Bearer realm="wattune"'},
        )
    check_local(request)
    return Identity("admin", "nothing")


def check_local(request: Request) -> None:
    """Raises: Problem 403 where the name that was asked for is not this machine's own: a page elsewhere can give its
    own name this machine's address, and would then count as ours."""
    host = request.headers.get("host", "")
    if (_split(f"//{host}").hostname or "") not in LOCAL_NAMES:
        raise Problem(403, "the header Host", value=host, allowed=", ".join(LOCAL_NAMES))
    check_origin(request)


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:  # a bracket that is not closed
        raise Problem(400, "the headers Host and Origin", value=text, allowed="addresses") from error


def _by_token(request: Request, text: str) -> Token:
    database, now_s = request.app.state.database, time.time()
    with database.session(reads_only=True) as session:
        row = tokens.find(session, text, now_s)
    if isinstance(row, str):
        raise _unknown(request, row)
    request.app.state.used_s[row.id] = now_s
    _recent(request).keep(text, row, now_s)
    return row


def _unknown(request: Request, what: str, *, allowed: str | None = None) -> Problem:
    # A right token is taken however often others failed at the same address: 256 random bits are not guessed, and a
    # neighbour behind the same address must not be able to lock a device out.
    failures: Buckets = request.app.state.failures
    address = request.client.host if request.client else ""
    if wait_s := failures.take(address):
        return too_many("too many failed authentications", wait_s)
    error = {"WWW-Authenticate": 'Bearer realm="wattune", error="invalid_token"'}
    return Problem(401, what, allowed=allowed, hint="wattune token list, on the server's machine", headers=error)


def _identity(row: Token, by: Literal["token", "session"]) -> Identity:
    return Identity(row.scope, by, row.id, row.name)


def _recent(request: Request) -> Recent:
    recent: Recent = request.app.state.recent
    return recent


def _sessions(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions
