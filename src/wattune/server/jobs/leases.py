"""Leases on units of work, and their results.

A worker holds a unit by a lease that it renews. Each claim has a unique ``holder``, and results from earlier holders
are rejected, so a worker whose lease expired cannot change anything if it comes back.
"""

from __future__ import annotations

import secrets
from typing import Any, cast

from pydantic import ValidationError
from sqlalchemy import CursorResult, and_, exists, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from wattune.errors import RecordError
from wattune.records.served import ServedModel, SweepRequest
from wattune.server.jobs.claims import LEASE_S, RENEWALS, Claim, Outcome, RunResult
from wattune.server.jobs.queue import CHOOSE, add_runs, advance, end, locked
from wattune.server.store.schema import OPEN, FileRow, JobRow, UnitRow, insert_new

ATTEMPTS = 5
"""Maximum number of attempts of a unit before its job is parked."""

MAX_BACKOFF_S = 2.0 ** (ATTEMPTS - 2)
"""Longest time in seconds for which a unit waits for its next attempt."""


def is_waiting(session: Session, now_s: float) -> bool:
    """True if there may be a unit to claim; a read-only transaction is enough."""
    return any(session.scalar(query) is not None for query in _claimable_jobs(now_s))


def claim(session: Session, worker: str, now_s: float, lease_s: float = LEASE_S) -> Claim | None:
    """Claim the next unit of the oldest job that has been begun, or else of the oldest; None if there is none.

    In this order the first of many jobs is done after its own work, not after nearly all of it. A job that cannot be
    read, e.g. one of another version, is marked as failed: otherwise it would be claimed forever.
    """
    # PostgreSQL: a job that another worker is just changing is skipped, instead of all waiting for the same one.
    queries = (query.with_for_update(skip_locked=True) for query in _claimable_jobs(now_s))
    job_id = next((found for query in queries if (found := session.scalar(query)) is not None), None)
    job = None if job_id is None else session.get(JobRow, job_id, populate_existing=True)
    if job is None:
        return None
    unit_id = session.scalar(
        select(UnitRow.id).where(UnitRow.job_id == job.id, _waits(now_s)).order_by(UnitRow.id).limit(1)
    )
    try:
        model = ServedModel.parse(job.model, source=f"the model of job {job.id}")
        request = SweepRequest.model_validate(job.request)
    except (RecordError, ValidationError) as error:
        end(session, job, "failed", f"the job cannot be read: {error}"[:500], now_s)
        return None
    holder = f"{worker}:{secrets.token_hex(8)}"
    claim_result = session.execute(
        update(UnitRow)
        .where(UnitRow.id == unit_id, UnitRow.state == "waiting")
        .values(state="running", holder=holder, lease_until_s=now_s + lease_s, attempts=UnitRow.attempts + 1)
    )
    if cast("CursorResult[Any]", claim_result).rowcount != 1:
        return None
    job.state = "running"
    unit = session.get(UnitRow, unit_id, populate_existing=True)
    assert unit is not None
    return _claim_of(session, unit, holder, model, request, lease_s)


def _claim_of(
    session: Session, unit: UnitRow, holder: str, model: ServedModel, request: SweepRequest, lease_s: float
) -> Claim:
    done = (row for row in runs(session, unit.job_id) if row.state == "done") if unit.batch_size == CHOOSE else ()
    return Claim(
        unit_id=unit.id,
        job_id=unit.job_id,
        holder=holder,
        model=model,
        request=request,
        batch_size=unit.batch_size,
        seed=unit.seed,
        budget_samples=unit.budget_samples,
        attempt=unit.attempts,
        lease_s=lease_s,
        curve_hashes=tuple(row.curve_sha256 for row in done if row.curve_sha256 is not None),
    )


def runs(session: Session, job_id: str) -> list[UnitRow]:
    """List the runs of a job in their order, without its choices."""
    query = select(UnitRow).where(UnitRow.job_id == job_id, UnitRow.batch_size != CHOOSE).order_by(UnitRow.id)
    return list(session.scalars(query))


def renew(session: Session, claim: Claim, now_s: float) -> bool:
    """Renew the lease of a unit; False if the worker no longer holds it."""
    update_result = session.execute(
        update(UnitRow)
        .where(UnitRow.id == claim.unit_id, UnitRow.holder == claim.holder, UnitRow.state == "running")
        .values(lease_until_s=now_s + claim.lease_s)
    )
    return cast("CursorResult[Any]", update_result).rowcount == 1


def is_done(session: Session, claim: Claim, curve_sha256: str | None = None) -> bool:
    """True if the result of this very claim is recorded: the answer to that call was lost, and it is repeated."""
    unit = session.get(UnitRow, claim.unit_id)
    return (
        unit is not None and (unit.state, unit.holder) == ("done", claim.holder) and unit.curve_sha256 == curve_sha256
    )


def finish(session: Session, claim: Claim, result: RunResult, now_s: float) -> bool:
    """Record the result of a run, once; False, without recording anything, if the worker no longer holds the unit."""
    job, unit = _held(session, claim)
    if job is None or unit is None:
        return is_done(session, claim, result.curve_sha256)
    file = {"sha256": result.curve_sha256, "kind": "curve", "bytes": result.bytes, "created_s": now_s}
    insert_new(session, FileRow, file)
    unit.curve_sha256, unit.samples, unit.reached = result.curve_sha256, result.samples, result.reached
    _done(unit, now_s)
    session.flush()
    advance(session, job, now_s)
    return True


def record_choice(session: Session, claim: Claim, outcome: Outcome, now_s: float) -> bool:
    """Record a choice, once: the next runs, or the finished curve; False if the worker no longer holds the unit."""
    job, unit = _held(session, claim)
    if job is None or unit is None:
        return is_done(session, claim)
    if job.state not in OPEN:
        return False
    _done(unit, now_s)
    if isinstance(outcome, dict):
        job.curve, job.state, job.reason, job.finished_s = outcome, "done", None, now_s
        session.flush()
    else:
        add_runs(session, job, outcome, now_s)
    return True


def fail(session: Session, claim: Claim, reason: str, now_s: float, *, is_final: bool = False) -> bool:
    """Record a failed attempt. ``is_final``: a retry is pointless, and the job fails.

    Returns False if the worker no longer holds the unit.
    """
    job, unit = _held(session, claim)
    if job is None or unit is None:
        return False
    if is_final:
        unit.state, unit.reason, unit.finished_s = "parked", reason, now_s
        unit.holder = unit.lease_until_s = None
        session.flush()
        if job.state in OPEN:
            end(session, job, "failed", reason, now_s)
    else:
        _retry_or_park(session, job, unit, reason, now_s)
    return True


def release(session: Session, claim: Claim, now_s: float) -> None:
    """Requeue a unit whose attempt was interrupted; the attempt does not count."""
    job, unit = _held(session, claim)
    if job is not None and unit is not None:
        _refund(session, job, unit, now_s)


def release_all(session: Session, now_s: float) -> int:
    """Requeue every unit that is held, when no worker is alive; return their number."""
    return _each(session, UnitRow.holder.is_not(None), _refund, now_s)


def release_worker(session: Session, worker: str, now_s: float, *, reason: str | None = None) -> int:
    """Requeue the units of a worker that has ended. ``reason``: it crashed, and the attempts count; None: they do not.

    Returns the number of units.
    """

    def requeue(session: Session, job: JobRow, unit: UnitRow, now_s: float) -> None:
        _retry_or_park(session, job, unit, reason or "", now_s)

    return _each(
        session, UnitRow.holder.startswith(f"{worker}:", autoescape=True), requeue if reason else _refund, now_s
    )


def release_expired(session: Session, now_s: float, lease_s: float = LEASE_S) -> int:
    """Requeue units whose lease has expired; the attempts count. Returns their number."""

    def requeue(session: Session, job: JobRow, unit: UnitRow, now_s: float) -> None:
        _retry_or_park(session, job, unit, f"the lease expired: the worker did not respond for {lease_s:.0f} s", now_s)

    return _each(session, _expired(now_s, lease_s), requeue, now_s)


def expired_workers(session: Session, now_s: float, lease_s: float = LEASE_S) -> set[str]:
    """Names of the workers with an expired lease."""
    holders = session.scalars(select(UnitRow.holder).where(UnitRow.state == "running", _expired(now_s, lease_s)))
    return {holder.rpartition(":")[0] for holder in holders if holder is not None}


def _claimable_jobs(now_s: float) -> list[Any]:
    """Queries for the oldest job with a unit to claim: of those that have been begun, and of the others."""
    has_unit = exists().where(UnitRow.job_id == JobRow.id, _waits(now_s))
    order = JobRow.created_s, JobRow.id
    return [
        select(JobRow.id).where(JobRow.state == state, has_unit).order_by(*order).limit(1)
        for state in ("running", "waiting")
    ]


def _waits(now_s: float) -> ColumnElement[bool]:
    # No unit waits for longer than ``MAX_BACKOFF_S``, so a later time is from before the clock was set back.
    is_due = or_(UnitRow.not_before_s <= now_s, UnitRow.not_before_s > now_s + MAX_BACKOFF_S)
    return and_(UnitRow.state == "waiting", is_due)


def _expired(now_s: float, lease_s: float) -> ColumnElement[bool]:
    # The same holds for leases, which a living worker renews.
    return or_(UnitRow.lease_until_s < now_s, UnitRow.lease_until_s > now_s + lease_s * (1 + 1 / RENEWALS))


def _held(session: Session, claim: Claim) -> tuple[JobRow | None, UnitRow | None]:
    job = locked(session, claim.job_id)
    unit = session.get(UnitRow, claim.unit_id, populate_existing=True)
    is_held = unit is not None and unit.holder == claim.holder and unit.state == "running"
    return (job, unit) if is_held else (None, None)


def _each(session: Session, condition: ColumnElement[bool], change: Any, now_s: float) -> int:
    """Change all matching running units, job by job in a fixed order, which prevents deadlocks."""
    query = select(UnitRow.job_id, UnitRow.id).where(UnitRow.state == "running", condition)
    count = 0
    for job_id, unit_id in session.execute(query.order_by(UnitRow.job_id, UnitRow.id)).all():
        job = locked(session, job_id)
        still_matches = select(UnitRow).where(UnitRow.id == unit_id, UnitRow.state == "running", condition)
        unit = session.scalars(still_matches.execution_options(populate_existing=True)).one_or_none()
        if job is not None and unit is not None:
            change(session, job, unit, now_s)
            count += 1
    return count


def _done(unit: UnitRow, now_s: float) -> None:
    # The holder stays, so that the same report again is known.
    unit.state, unit.reason, unit.finished_s, unit.lease_until_s = "done", None, now_s, None


def _refund(session: Session, job: JobRow, unit: UnitRow, now_s: float) -> None:
    unit.attempts -= 1
    _requeue(session, job, unit, now_s, now_s)


def _retry_or_park(session: Session, job: JobRow, unit: UnitRow, reason: str, now_s: float) -> None:
    """Requeue a unit with exponential backoff, or park it and its job after ``ATTEMPTS``."""
    unit.reason = reason
    if unit.attempts < ATTEMPTS:
        _requeue(session, job, unit, now_s + 2.0 ** (unit.attempts - 1), now_s)
        return
    unit.state, unit.finished_s, unit.holder, unit.lease_until_s = "parked", now_s, None, None
    session.flush()
    if job.state in OPEN:
        what = (
            "choosing the next runs" if unit.batch_size == CHOOSE else f"batch size {unit.batch_size}, seed {unit.seed}"
        )
        end(session, job, "parked", f"{what}: {unit.attempts} attempts, the last one: {reason}", now_s)


def _requeue(session: Session, job: JobRow, unit: UnitRow, not_before_s: float, now_s: float) -> None:
    # If the job has ended meanwhile, the unit is cancelled instead.
    is_open = job.state in OPEN
    unit.state, unit.not_before_s = "waiting" if is_open else "cancelled", not_before_s
    unit.finished_s = None if is_open else now_s
    unit.holder = unit.lease_until_s = None
    session.flush()
