"""JSON bodies, read strictly: what two programs could understand differently, or none could keep, is refused.

Duplicate keys, NaN and infinity, numbers that no double or 64-bit integer holds, half characters, deep nesting.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from wattune.records import Record
from wattune.server.problems import Problem

DEPTH = 64
VALUES = 1_000_000
"""Values of a body at most: 8 MiB of "[]," would otherwise become hundreds of MiB of lists."""

SMALL_BYTES = 4096
"""A body that is read sooner than another thread could take it over."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_ODD = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")

Body = TypeVar("Body", bound=BaseModel)


def body(kind: type[Body]) -> Callable[[Request], Awaitable[Body]]:
    """A dependency: the request's body as a value or a record. Put it behind the one that authenticates."""

    async def read(request: Request) -> Body:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise Problem(415, "the header Content-Type", value=content_type, allowed="application/json")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Problem(415, "the header Content-Encoding", allowed="identity: the body as it is")
        content = await request.body()
        if len(content) <= SMALL_BYTES:
            return _parsed(kind, content)
        return await run_in_threadpool(_parsed, kind, content)

    return read


def parse_json(content: bytes) -> Any:
    """The value of a JSON text. Raises: Problem 400 saying what is wrong with it."""
    if not content.strip():
        raise Problem(400, "the body is empty", allowed="JSON")
    if sum(map(content.count, (b",", b"[", b"{"))) > VALUES:
        raise Problem(400, "the JSON has too many values", allowed=f"at most {VALUES}")
    _check_depth(content)
    try:
        data = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_fits,
        )
        if _ODD.search(content):
            _check_texts(data)
    except (ValueError, RecursionError) as error:
        raise Problem(
            400, "the body is not JSON that can be kept", value=str(error), allowed="RFC 8259, UTF-8"
        ) from None
    return data


def _parsed(kind: type[Body], content: bytes) -> Body:
    data = parse_json(content)
    if issubclass(kind, Record):
        return kind.parse(data, source="the body")
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the whole of it"
        allowed = first["msg"].removeprefix("Value error, ")
        raise Problem(422, f"the body, field {place}", value=first.get("input"), allowed=allowed) from None


def _check_depth(content: bytes) -> None:
    depth = 0
    for bracket in _STRING.sub(b"", content).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH:
            raise Problem(400, "the JSON is nested too deep", allowed=f"at most {DEPTH} levels")


def _check_texts(data: Any) -> None:
    left = [data]
    while left:
        value = left.pop()
        if isinstance(value, str):
            value.encode()  # half a character is an error
            if "\0" in value:
                raise ValueError("a text with the character 0")
        elif isinstance(value, list):
            left.extend(value)
        elif isinstance(value, dict):
            left.extend(value.keys())
            left.extend(value.values())


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name[:100]!r} stands there twice")
            seen.add(name)
    return found


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON knows")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a number")
    return value


def _fits(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text[:40]} is too large for an integer")
    return int(text)
