"""Plans: arithmetic on what is sent or named; nothing is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request
from pydantic import BeforeValidator, Field, ValidationError
from sqlalchemy.orm import Session
from starlette.responses import Response

from wattune.planning import plan
from wattune.records import CapSide, EfficiencyCurve, Plan, ProfileTable, Record
from wattune.records.base import BatchSize, NotNegative, Positive
from wattune.records.served import Strict
from wattune.server.bodies import body
from wattune.server.problems import Problem
from wattune.server.routes.parts import ID, answer, route
from wattune.server.store import profiles
from wattune.server.store.tables import JobRow

router = APIRouter(prefix="/v1/plans", tags=["plans"])

CELLS = 4096
"""Cells of a profile that is planned with here: it takes a tenth of a second, and with more the square of it."""

Given = TypeVar("Given", bound=Record)


def _parse(kind: type[Given]) -> Callable[[object], Given | None]:
    def parse(data: object) -> Given | None:
        return None if data is None else kind.parse(data, source=f"the body, field {kind.name}")

    return parse


Id = Annotated[str, Field(pattern=ID)]


class PlanRequest(Strict):
    """A profile, or the id of one; an efficiency curve, or the job that made it; the rest as in ``wattune.plan``."""

    profile: Annotated[ProfileTable | None, BeforeValidator(_parse(ProfileTable))] = None
    profile_id: Id | None = None
    efficiency: Annotated[EfficiencyCurve | None, BeforeValidator(_parse(EfficiencyCurve))] = None
    job: Id | None = None
    cap_w: Positive | None = None
    cap_side: CapSide = "module"
    margin_w: NotNegative = 0.0
    batch_size: BatchSize | None = None
    memory_bytes: Positive | None = None


@router.post("", **route("read", Plan, takes=PlanRequest))
def post_plan(request: Request, asked: Annotated[PlanRequest, Depends(body(PlanRequest))]) -> Response:
    """The batch size and the clock that train fastest under a cap."""
    with request.app.state.database.session(reads_only=True) as session:
        profile, efficiency = _profile(session, asked), _efficiency(session, asked)
    if len(profile.cells) + len(profile.aborted) > CELLS:
        raise Problem(422, "cells of the profile", value=len(profile.cells), allowed=f"at most {CELLS}")
    try:
        made = plan(
            profile,
            efficiency,
            cap_w=asked.cap_w,
            cap_side=asked.cap_side,
            margin_w=asked.margin_w,
            batch_size=asked.batch_size,
            memory_bytes=asked.memory_bytes,
        )
        return answer(made.dump())
    except (ArithmeticError, ValidationError, ValueError) as error:  # figures of no board, as 1e308 s
        raise Problem(422, "figures that no plan can be made of", value=str(error)) from error


def _profile(session: Session, asked: PlanRequest) -> ProfileTable:
    if (asked.profile is None) == (asked.profile_id is None):
        raise Problem(422, "profile and profile_id", allowed="one of them")
    if asked.profile is not None:
        return asked.profile
    assert asked.profile_id is not None
    record = profiles.get(session, asked.profile_id)
    if record is None:
        raise Problem(404, "no such profile", value=asked.profile_id, hint="GET /v1/profiles")
    return ProfileTable.parse(record, source=f"profile {asked.profile_id}")


def _efficiency(session: Session, asked: PlanRequest) -> EfficiencyCurve | None:
    if asked.efficiency is not None and asked.job is not None:
        raise Problem(422, "efficiency and job", allowed="one of them, or neither")
    if asked.job is None:
        return asked.efficiency
    row = session.get(JobRow, asked.job)
    if row is None:
        raise Problem(404, "no such job", value=asked.job, hint="GET /v1/jobs")
    if row.curve is None:
        raise Problem(409, f"job {asked.job} is not done", value=row.state, hint=row.reason)
    return EfficiencyCurve.parse(row.curve, source=f"the curve of job {asked.job}")
