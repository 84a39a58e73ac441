"""Building blocks of the routes: path and query parameters, responses, and their OpenAPI description."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Depends, Path, Query
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from wattune.records import Record
from wattune.records.served import DEVICE_NAME, MODEL_NAME
from wattune.server.security import require
from wattune.server.store.tokens import Scope

ID = r"^[0-9a-f]{32}$"
NO_NUL = r"^[^\x00]*$"
"""Pattern that excludes NUL, which PostgreSQL cannot store."""

MAX_WAIT_S = 25.0
"""Maximum time in seconds for which a response waits for a change; proxies and clients give up after 30 s or more."""

ModelPath = Annotated[str, Path(pattern=MODEL_NAME)]
DevicePath = Annotated[str, Path(pattern=DEVICE_NAME)]
IdPath = Annotated[str, Path(pattern=ID)]
ModelQuery = Annotated[str | None, Query(pattern=MODEL_NAME)]
DeviceQuery = Annotated[str | None, Query(pattern=DEVICE_NAME)]
IdQuery = Annotated[str | None, Query(pattern=ID)]
Limit = Annotated[int, Query(ge=1, le=100)]


class Created(BaseModel):
    """Id of a stored resource."""

    id: str


class ProblemDetails(BaseModel):
    """Error response (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    what: str | None = None
    value: str | None = None
    allowed: str | None = None
    hint: str | None = None


_PROBLEM = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}}


def route(
    scope: Scope | None,
    answer: Any = None,
    *,
    status: int = 200,
    also: Sequence[int] = (),
    takes: type[BaseModel] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Build the arguments of a route: required scope, response model, other statuses, and body model."""
    responses: dict[int | str, Any] = {
        other: {} if other in (204, 304) or answer is None else {"model": answer} for other in also
    }
    responses |= {
        "4XX": {"description": "The request was rejected.", **_PROBLEM},
        "5XX": {"description": "The server failed; try again later.", **_PROBLEM},
    }
    extra = more.pop("openapi_extra", {})
    if takes is not None:
        schema: dict[str, Any] = {"$ref": f"#/components/schemas/{takes.__name__}"}
        if issubclass(takes, Record):  # nested records have no such field
            schema = {"allOf": [schema], "required": ["record"]}
        extra = {**extra, "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    if scope is not None:
        extra = {**extra, "x-scope": scope, "security": [{"token": []}, {}]}
    return {
        "dependencies": [] if scope is None else [Depends(require(scope))],
        "response_model": answer,
        "status_code": status,
        "responses": responses,
        "openapi_extra": extra,
        **more,
    }


def answer(content: object, status: int = 200, **headers: str) -> Response:
    """Build a JSON response; write "_" for "-" in the names of ``headers``."""
    http_headers = {name.replace("_", "-"): text for name, text in headers.items()}
    return Response(to_json(content), status, http_headers, "application/json")


def is_cached(request: Request, tag: str) -> bool:
    """True if the client has the content with this tag."""
    header = request.headers.get("if-none-match", "")
    return header.strip() == "*" or f'"{tag}"' in (etag.strip().removeprefix("W/") for etag in header.split(","))


def wait_s(request: Request) -> float:
    """Time in seconds for which the client lets the response wait for a change (RFC 7240)."""
    match = re.search(r"(?:^|[,;\s])wait=(\d{1,4})(?:[,;\s]|$)", request.headers.get("prefer", ""))
    return min(MAX_WAIT_S, float(match[1])) if match else 0.0
