"""Building blocks of the routes: path and query parameters, required scopes, and responses."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Query
from pydantic_core import to_json
from starlette.responses import Response

from wattune.records.served import DEVICE_NAME, ID, MODEL_NAME
from wattune_server.security import require

NO_NUL = r"^[^\x00]*$"
"""Pattern that excludes NUL, which PostgreSQL cannot store."""

ModelPath = Annotated[str, Path(pattern=MODEL_NAME)]
DevicePath = Annotated[str, Path(pattern=DEVICE_NAME)]
IdPath = Annotated[str, Path(pattern=ID)]
ModelQuery = Annotated[str | None, Query(pattern=MODEL_NAME)]
Limit = Annotated[int, Query(ge=1, le=100)]

READ, DEVICE, ADMIN = ([Depends(require(scope))] for scope in ("read", "device", "admin"))
"""Dependencies of a route that takes a token of a scope."""


def answer(content: object, status: int = 200) -> Response:
    """Build a JSON response."""
    return Response(to_json(content), status, media_type="application/json")
