"""Strict parsing of JSON bodies: what no database stores is rejected.

Rejected are NaN and infinity, numbers outside double or 64-bit integer range, NUL, lone surrogates, and deep nesting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from wattune.records import Record
from wattune.records.base import in_words
from wattune_server.problems import Problem

VALUES = 1_000_000
"""Maximum number of values in a body: 8 MiB of "[]," would otherwise become hundreds of MiB of lists."""

SMALL_BYTES = 4096
"""Size up to which parsing in place is faster than handing the body to another thread."""

_SUSPICIOUS = re.compile(rb"\0|u0000|\d{19}|[eE][+-]?\d{3}")
"""Signs of a value that may be NUL or out of range. Few bodies have one."""

Body = TypeVar("Body", bound=BaseModel)


def body(kind: type[Body]) -> Callable[[Request], Awaitable[Body]]:
    """Build a dependency that parses the body as a model or a record. List it after the one that authenticates."""

    async def read(request: Request) -> Body:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise Problem(415, "the header Content-Type", value=content_type, allowed="application/json")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Problem(415, "the header Content-Encoding", allowed="identity, i.e. an uncompressed body")
        content = await request.body()
        if len(content) <= SMALL_BYTES:
            return _validate(kind, content)
        return await run_in_threadpool(_validate, kind, content)

    return read


def parse_json(content: bytes) -> Any:
    """Parse a JSON text. Raises: Problem 400 with the reason."""
    if not content.strip():
        raise Problem(400, "the body is empty", allowed="JSON")
    if sum(map(content.count, (b",", b"[", b"{"))) > VALUES:
        raise Problem(400, "the JSON has too many values", allowed=f"at most {VALUES}")
    try:
        data = from_json(content, allow_inf_nan=False)
        if _SUSPICIOUS.search(content):
            _check_values(data)
    except ValueError as error:
        raise Problem(400, "the body is not valid JSON", value=str(error), allowed="RFC 8259, UTF-8") from None
    return data


def _validate(kind: type[Body], content: bytes) -> Body:
    data = parse_json(content)
    if issubclass(kind, Record):
        return kind.parse(data, source="the body")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "(root)"
        allowed = in_words(first)
        raise Problem(422, f"the body, field {place}", value=first.get("input"), allowed=allowed) from None


def _check_values(data: Any) -> None:
    """Check each text and number. Raises: ValueError."""
    stack = [data]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack.extend(value.keys())
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, str):
            if "\0" in value:
                raise ValueError("a string contains the NUL character")
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise ValueError("a number is out of range")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("an integer is out of range")
