"""Published profiles."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from wattune.records import ProfileTable
from wattune.records.served import DEVICE_NAME, SHA256
from wattune_server.bodies import body
from wattune_server.problems import Problem
from wattune_server.routes.endpoint import DEVICE, READ, IdPath, Limit, answer
from wattune_server.security import check_device
from wattune_server.store import profiles

router = APIRouter(prefix="/v1/profiles")


@router.get("", dependencies=READ)
def list_profiles(request: Request, key: Annotated[str, Query(pattern=SHA256)], limit: Limit = 50) -> Response:
    """List the profiles with a key, newest first. ``key``: SHA-256 of the profile key as canonical JSON."""
    with request.app.state.database.session(reads_only=True) as session:
        return answer(profiles.listing(session, key=key, limit=limit))


@router.get("/{profile}", dependencies=READ)
def get_profile(request: Request, profile: IdPath) -> Response:
    """Get a profile."""
    with request.app.state.database.session(reads_only=True) as session:
        record = profiles.get(session, profile)
    if record is None:
        raise Problem(404, "no such profile", value=profile)
    return answer(record)


@router.post("", dependencies=DEVICE)
def post_profile(
    request: Request,
    device: Annotated[str, Query(pattern=DEVICE_NAME)],
    profile: Annotated[ProfileTable, Depends(body(ProfileTable))],
) -> Response:
    """Publish a profile. A duplicate is stored once."""
    check_device(request, device)
    with request.app.state.database.session() as session:
        profile_id, is_new = profiles.put(session, profile, device, time.time())
    return answer({"id": profile_id}, 201 if is_new else 200)
