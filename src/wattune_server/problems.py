"""Error responses as application/problem+json (RFC 9457), with the fields what, value, allowed and hint."""

from __future__ import annotations

import errno
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from wattune.errors import InputError, OutputError, WattuneError
from wattune.records.base import in_words
from wattune_server.jobs.queue import QueueFull, WrongState
from wattune_server.store import StoreUnavailable

if TYPE_CHECKING:
    from starlette.types import Scope

RETRY_S = 5
"""Retry-After in seconds if the store is full or unavailable."""

MAX_CHARS = 500
"""Maximum number of characters of a value in an error response."""

_TEMPORARY = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EFBIG}
"""System errors that are temporary or that an operator can fix: the request itself was correct."""


class Problem(InputError):
    """Error response to a request, which says the same as an ``InputError``."""

    def __init__(
        self, status: int, what: str, *, value: object = None, headers: dict[str, str] | None = None, **more: str | None
    ):
        super().__init__(_plain(what), value=None if value is None else _plain(value), **more)
        self.status = status
        self.headers = headers or {}


def as_problem(error: BaseException) -> Problem | None:
    """Map an error of wattune, the store or the framework to a problem; None for an unexpected error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, (StoreUnavailable, OutputError)):
        return _unavailable(str(error))
    if isinstance(error, QueueFull):
        return Problem(429, str(error), headers={"Retry-After": "600"})
    if isinstance(error, InputError):
        status = 409 if isinstance(error, WrongState) else 422
        return Problem(status, error.what, value=error.value, allowed=error.allowed, hint=error.hint)
    if isinstance(error, WattuneError):
        return Problem(422, str(error))
    if isinstance(error, OSError) and error.errno in _TEMPORARY:
        return _unavailable(f"cannot write to the store: {error.strerror}")
    if isinstance(error, RequestValidationError):
        first: dict[str, Any] = error.errors()[0]
        value = None if first["type"] == "missing" else first.get("input")
        return Problem(422, " ".join(map(str, first["loc"])), value=value, allowed=in_words(first))
    if isinstance(error, HTTPException):
        return Problem(error.status_code, str(error.detail), headers=dict(error.headers or {}))
    if isinstance(error, ClientDisconnect):
        return Problem(400, "the client disconnected before the end of the body")
    return None


def wants_page(scope: Scope) -> bool:
    """True if a browser asks for a page, not a program for data."""
    accept = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return not scope["path"].startswith("/v1/") and b"text/html" in accept


def answer(problem: Problem, scope: Scope) -> Response:
    """Build the response: a page for browsers, if the application has any, or else problem+json."""
    page = getattr(scope["app"].state, "problem_page", None) if "app" in scope and wants_page(scope) else None
    if page is not None:
        response: Response = page(Request(scope), problem)
    else:
        said = {name: getattr(problem, name) for name in ("what", "value", "allowed", "hint")}
        content = {
            "type": "about:blank",
            "title": HTTPStatus(problem.status).phrase,
            "status": problem.status,
            "detail": str(problem),
            **{name: text for name, text in said.items() if text is not None},
        }
        response = JSONResponse(content, problem.status, media_type="application/problem+json")
    response.headers.update(problem.headers)
    return response


def install(app: FastAPI, page: Callable[[Request, Problem], Response] | None = None) -> None:
    """Register the handlers for all errors that ``as_problem`` maps. ``page``: builds the response to a browser."""
    app.state.problem_page = page

    async def handle(request: Request, error: Exception) -> Response:
        problem = as_problem(error)
        assert problem is not None
        if problem.status == 401 and wants_page(request.scope):
            query = request.url.query
            place = request.scope["path"] + (f"?{query}" if query else "")
            return RedirectResponse(f"/login?next={quote(place)}", 303)
        return answer(problem, request.scope)

    for kind in (WattuneError, RequestValidationError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, handle)


def _unavailable(what: str) -> Problem:
    return Problem(503, what, hint=f"try again in {RETRY_S} s", headers={"Retry-After": str(RETRY_S)})


def _plain(value: object) -> str:
    """Format any value as one printable line, truncated."""
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split()).encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 3]}..."
