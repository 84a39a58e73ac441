"""Published profiles."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from wattune.records import Kind, ProfileTable
from wattune.records.served import DEVICE_NAME, SHA256
from wattune.server.bodies import body
from wattune.server.problems import Problem
from wattune.server.routes.endpoint import Created, IdPath, IdQuery, Limit, answer, route
from wattune.server.security import check_device
from wattune.server.store import profiles, retention
from wattune.server.store.schema import ProfileRow

router = APIRouter(prefix="/v1/profiles", tags=["profiles"])


class ProfileSummary(BaseModel):
    """A profile without its table. ``created_s``: time of publication, in seconds since 1970."""

    id: str
    board: str
    workload: str
    algorithm: str
    kind: Kind | None
    publisher: str
    created_s: float


@router.get("", **route("read", list[ProfileSummary]))
def list_profiles(
    request: Request,
    key: Annotated[str | None, Query(pattern=SHA256)] = None,
    limit: Limit = 50,
    before: IdQuery = None,
) -> Response:
    """List profiles, newest first, starting after ``before``. ``key``: SHA-256 of the profile key as canonical JSON."""
    with request.app.state.database.session(reads_only=True) as session:
        summaries = profiles.listing(session, key=key, limit=limit, before=before)
    return answer(summaries)


@router.get("/{profile}", **route("read", ProfileTable))
def get_profile(request: Request, profile: IdPath) -> Response:
    """Get a profile."""
    with request.app.state.database.session(reads_only=True) as session:
        record = profiles.get(session, profile)
    if record is None:
        raise Problem(404, "no such profile", value=profile, hint="GET /v1/profiles")
    return answer(record, ETag=f'"{profile}"')


@router.post("", **route("device", Created, also=(201,), takes=ProfileTable))
def post_profile(
    request: Request,
    device: Annotated[str, Query(pattern=DEVICE_NAME)],
    profile: Annotated[ProfileTable, Depends(body(ProfileTable))],
) -> Response:
    """Publish a profile. A duplicate is stored once."""
    check_device(request, device)
    with request.app.state.database.session() as session:
        profile_id, is_new = profiles.put(session, profile, device, time.time())
    return answer({"id": profile_id}, 201 if is_new else 200, Location=f"/v1/profiles/{profile_id}")


@router.delete("/{profile}", **route("admin", status=204))
def delete_profile(request: Request, profile: IdPath) -> Response:
    """Remove a profile."""
    with request.app.state.database.session() as session:
        if not retention.remove(session, ProfileRow, profile):
            raise Problem(404, "no such profile", value=profile, hint="GET /v1/profiles")
    return Response(status_code=204)
