"""Strict parsing of JSON bodies: ambiguous or unstorable input is rejected.

Rejected are duplicate keys, NaN and infinity, numbers outside double or 64-bit integer range, lone surrogates, and deep
nesting.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from wattune.records import Record
from wattune.records.base import in_words
from wattune.server.problems import Problem

DEPTH = 64
VALUES = 1_000_000
"""Maximum number of values in a body: 8 MiB of "[]," would otherwise become hundreds of MiB of lists."""

SMALL_BYTES = 4096
"""Size up to which parsing in place is faster than handing the body to another thread."""

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_SPECIAL = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")

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
    _check_depth(content)
    try:
        data = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
        )
        if _SPECIAL.search(content):
            _check_texts(data)
    except (ValueError, RecursionError) as error:
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


def _check_depth(content: bytes) -> None:
    depth = 0
    for bracket in _STRING.sub(b"", content).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEPTH:
            raise Problem(400, "the JSON is nested too deeply", allowed=f"at most {DEPTH} levels")


def _check_texts(data: Any) -> None:
    stack = [data]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            value.encode()  # raises on a lone surrogate
            if "\0" in value:
                raise ValueError("a string contains the NUL character")
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, dict):
            stack.extend(value.keys())
            stack.extend(value.values())


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise ValueError(f"duplicate key {name[:100]!r}")
            names.add(name)
    return result


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not a valid JSON number")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is out of range for a number")
    return value


def _parse_int(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text[:40]} is out of range for an integer")
    return int(text)
