"""Plans, computed from profiles and curves that are sent or referenced; nothing is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Depends, Request
from pydantic import BeforeValidator, Field, ValidationError
from sqlalchemy.orm import Session
from starlette.responses import Response

from wattune.cap import CapSide, PowerCap
from wattune.goal import TIME, Goal
from wattune.planning import plan
from wattune.records import Plan, ProfileTable, Record, SampleEfficiency
from wattune.records.base import BatchSize, NotNegative, Positive
from wattune.records.served import Strict
from wattune.server.bodies import body
from wattune.server.problems import Problem
from wattune.server.routes.endpoint import ID, answer, route
from wattune.server.store import profiles
from wattune.server.store.schema import JobRow

router = APIRouter(prefix="/v1/plans", tags=["plans"])

CELLS = 4096
"""Maximum number of cells of a profile; planning time is quadratic, 0.1 s for this many."""

ParsedRecord = TypeVar("ParsedRecord", bound=Record)


def _parse(kind: type[ParsedRecord]) -> Callable[[object], ParsedRecord | None]:
    def parse(data: object) -> ParsedRecord | None:
        return None if data is None else kind.parse(data, source=f"the body, field {kind.name}")

    return parse


Id = Annotated[str, Field(pattern=ID)]


class PlanRequest(Strict):
    """A profile or its id; an efficiency curve or the job that produced it; other fields as in ``wattune.plan``."""

    profile: Annotated[ProfileTable | None, BeforeValidator(_parse(ProfileTable))] = None
    profile_id: Id | None = None
    efficiency: Annotated[SampleEfficiency | None, BeforeValidator(_parse(SampleEfficiency))] = None
    job: Id | None = None
    cap_w: Positive | None = None
    cap_side: CapSide = "module"
    margin_w: NotNegative = 0.0
    cap_window: Positive | Literal["peak"] | None = None
    goal: Goal = TIME
    batch_size: BatchSize | None = None
    memory_bytes: Positive | None = None


@router.post("", **route("read", Plan, takes=PlanRequest))
def post_plan(request: Request, plan_request: Annotated[PlanRequest, Depends(body(PlanRequest))]) -> Response:
    """Compute the batch size and the clock that train fastest under a cap, or are best for another goal."""
    with request.app.state.database.session(reads_only=True) as session:
        profile, efficiency = _profile(session, plan_request), _efficiency(session, plan_request)
    if len(profile.cells) + len(profile.aborted) > CELLS:
        raise Problem(422, "cells of the profile", value=len(profile.cells), allowed=f"at most {CELLS}")
    try:
        result = plan(
            profile,
            efficiency,
            cap=PowerCap(
                plan_request.cap_w, plan_request.cap_side, plan_request.margin_w, window=plan_request.cap_window
            ),
            goal=plan_request.goal,
            batch_size=plan_request.batch_size,
            memory_bytes=plan_request.memory_bytes,
        )
        return answer(result.dump())
    except (ArithmeticError, ValidationError, ValueError) as error:  # values of no real board, such as 1e308 s
        raise Problem(422, "cannot plan with these values", value=str(error)) from error


def _profile(session: Session, plan_request: PlanRequest) -> ProfileTable:
    if (plan_request.profile is None) == (plan_request.profile_id is None):
        raise Problem(422, "profile and profile_id", allowed="one of them")
    if plan_request.profile is not None:
        return plan_request.profile
    assert plan_request.profile_id is not None
    record = profiles.get(session, plan_request.profile_id)
    if record is None:
        raise Problem(404, "no such profile", value=plan_request.profile_id, hint="GET /v1/profiles")
    return ProfileTable.parse(record, source=f"profile {plan_request.profile_id}")


def _efficiency(session: Session, plan_request: PlanRequest) -> SampleEfficiency | None:
    if plan_request.efficiency is not None and plan_request.job is not None:
        raise Problem(422, "efficiency and job", allowed="one of them, or neither")
    if plan_request.job is None:
        return plan_request.efficiency
    row = session.get(JobRow, plan_request.job)
    if row is None:
        raise Problem(404, "no such job", value=plan_request.job, hint="GET /v1/jobs")
    if row.curve is None:
        raise Problem(409, f"job {plan_request.job} is not done", value=row.state, hint=row.reason)
    return SampleEfficiency.parse(row.curve, source=f"the curve of job {plan_request.job}")
