"""Units of work: who works on which, until when nobody else may, and what came of it.

A worker holds a unit by a lease that it renews; each claim has a ``holder`` of its own, and what an older one brings is
refused, so that a worker which was taken for dead and comes back changes nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError
from sqlalchemy import CursorResult, and_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from wattune.errors import RecordError
from wattune.records.served import ServedModel, SweepRequest
from wattune.server.jobs.queue import CHOOSE, OPEN, add_runs, advance, end, locked
from wattune.server.store.inserting import insert_new
from wattune.server.store.tables import FileRow, JobRow, UnitRow

LEASE_S = 30.0
"""How long a unit is a worker's after it last said that it is at work."""

BEAT_EVERY_S = 5.0
"""How often a worker says so."""

ATTEMPTS = 5
"""How often a unit is tried before somebody has to look."""


Outcome = list[tuple[int, int, int | None]] | dict[str, Any]
"""What a step chose: the runs that come next (batch size, seed, budget in samples), or the finished record."""


@dataclass(frozen=True)
class Claim:
    """A unit that a worker holds. ``known``: of a step that chooses, the hashes of all curves of the job so far."""

    unit_id: int
    job_id: str
    holder: str
    model: ServedModel
    request: SweepRequest
    batch_size: int
    seed: int
    budget_samples: int | None
    attempt: int
    known: tuple[str, ...] = ()

    @property
    def chooses(self) -> bool:
        """Whether it trains nothing, but chooses what is trained next."""
        return self.batch_size == CHOOSE


@dataclass(frozen=True)
class Trained:
    """What came of a run: its curve is a file of the store."""

    curve_sha256: str
    bytes: int
    samples: int
    reached: bool


def is_waiting(session: Session, now_s: float) -> bool:
    """Whether there may be something to claim; it needs no writer's transaction."""
    return session.scalar(_claimable(now_s).with_only_columns(UnitRow.id).limit(1)) is not None


def claim(session: Session, worker: str, now_s: float) -> Claim | None:
    """Take the oldest unit that waits; None where nothing does, or somebody else was quicker.

    A job that cannot be read, as one of another version, has failed: it would else be claimed again for ever.
    """
    found = session.execute(_claimable(now_s).with_only_columns(UnitRow.id, UnitRow.job_id).limit(1)).first()
    if found is None:
        return None
    unit_id, job_id = found
    job = locked(session, job_id)
    if job is None or job.state not in OPEN:
        return None
    try:
        model = ServedModel.parse(job.model, source=f"the model of job {job.id}")
        request = SweepRequest.model_validate(job.request)
    except (RecordError, ValidationError) as error:
        end(session, job, "failed", f"the job cannot be read: {error}"[:500], now_s)
        return None
    holder = f"{worker}:{secrets.token_hex(8)}"
    taken = session.execute(
        update(UnitRow)
        .where(UnitRow.id == unit_id, UnitRow.state == "waiting")
        .values(state="running", holder=holder, lease_until_s=now_s + LEASE_S, attempts=UnitRow.attempts + 1)
    )
    if cast("CursorResult[Any]", taken).rowcount != 1:
        return None
    job.state = "running"
    unit = session.get(UnitRow, unit_id, populate_existing=True)
    assert unit is not None
    curves = select(UnitRow.curve_sha256).where(
        UnitRow.job_id == job_id, UnitRow.state == "done", UnitRow.batch_size != CHOOSE
    )
    known = session.scalars(curves.order_by(UnitRow.id)) if unit.batch_size == CHOOSE else ()
    return Claim(
        unit_id=unit.id,
        job_id=job.id,
        holder=holder,
        model=model,
        request=request,
        batch_size=unit.batch_size,
        seed=unit.seed,
        budget_samples=unit.budget_samples,
        attempt=unit.attempts,
        known=tuple(sha256 for sha256 in known if sha256 is not None),
    )


def beat(session: Session, held: Claim, now_s: float) -> bool:
    """Hold on to a unit; whether it still is this worker's."""
    renewed = session.execute(
        update(UnitRow)
        .where(UnitRow.id == held.unit_id, UnitRow.holder == held.holder, UnitRow.state == "running")
        .values(lease_until_s=now_s + LEASE_S)
    )
    return cast("CursorResult[Any]", renewed).rowcount == 1


def finish(session: Session, held: Claim, result: Trained, now_s: float) -> bool:
    """Keep what came of a run; False, and nothing is kept, where the unit is not this worker's any more."""
    job, unit = _held(session, held)
    if job is None or unit is None:
        return False
    file = {"sha256": result.curve_sha256, "kind": "curve", "bytes": result.bytes, "created_s": now_s}
    insert_new(session, FileRow, file)
    unit.curve_sha256, unit.samples, unit.reached = result.curve_sha256, result.samples, result.reached
    _done(unit, now_s)
    session.flush()
    advance(session, job, now_s)
    return True


def decide(session: Session, held: Claim, outcome: Outcome, now_s: float) -> bool:
    """Keep what a step chose: the runs that come next, or the finished curve; False where the unit was lost."""
    job, unit = _held(session, held)
    if job is None or unit is None or job.state not in OPEN:
        return False
    _done(unit, now_s)
    if isinstance(outcome, dict):
        job.curve, job.state, job.reason, job.finished_s = outcome, "done", None, now_s
        session.flush()
    else:
        add_runs(session, job, outcome, now_s)
    return True


def fail(session: Session, held: Claim, reason: str, now_s: float, *, is_final: bool = False) -> bool:
    """An attempt came to nothing. ``is_final``: no other can do better, and the job has failed.

    False where the unit is not this worker's any more.
    """
    job, unit = _held(session, held)
    if job is None or unit is None:
        return False
    if is_final:
        unit.state, unit.reason, unit.finished_s = "parked", reason, now_s
        unit.holder = unit.lease_until_s = None
        session.flush()
        if job.state in OPEN:
            end(session, job, "failed", reason, now_s)
    else:
        _again(session, job, unit, reason, now_s)
    return True


def release(session: Session, held: Claim, now_s: float) -> None:
    """Give a unit back that was not tried to its end: the attempt does not count."""
    job, unit = _held(session, held)
    if job is not None and unit is not None:
        _refund(session, job, unit, now_s)


def release_all(session: Session, now_s: float) -> int:
    """Give back every unit that somebody holds, when no worker is alive; how many there were."""
    return _each(session, UnitRow.holder.is_not(None), _refund, now_s)


def release_worker(session: Session, worker: str, now_s: float, *, reason: str | None = None) -> int:
    """Give back what a worker held that is no more. ``reason``: it died, and the attempts count; None: they do not."""

    def lost(session: Session, job: JobRow, unit: UnitRow, now_s: float) -> None:
        _again(session, job, unit, reason or "", now_s)

    return _each(session, UnitRow.holder.startswith(f"{worker}:", autoescape=True), lost if reason else _refund, now_s)


def release_expired(session: Session, now_s: float) -> int:
    """Give back what nobody has renewed in time; the attempts count."""

    def lost(session: Session, job: JobRow, unit: UnitRow, now_s: float) -> None:
        _again(session, job, unit, f"the worker did not answer for {LEASE_S:.0f} s", now_s)

    return _each(session, UnitRow.lease_until_s < now_s, lost, now_s)


def late(session: Session, now_s: float) -> set[str]:
    """The workers that have not renewed a lease in time."""
    holders = session.scalars(select(UnitRow.holder).where(UnitRow.state == "running", UnitRow.lease_until_s < now_s))
    return {holder.rpartition(":")[0] for holder in holders if holder is not None}


def _claimable(now_s: float) -> Any:
    waits = and_(UnitRow.state == "waiting", UnitRow.not_before_s <= now_s)
    chosen = select(UnitRow).join(JobRow, JobRow.id == UnitRow.job_id).where(waits, JobRow.state.in_(OPEN))
    return chosen.order_by(UnitRow.created_s, UnitRow.id)


def _held(session: Session, held: Claim) -> tuple[JobRow | None, UnitRow | None]:
    job = locked(session, held.job_id)
    unit = session.get(UnitRow, held.unit_id, populate_existing=True)
    is_held = unit is not None and unit.holder == held.holder and unit.state == "running"
    return (job, unit) if is_held else (None, None)


def _each(session: Session, which: ColumnElement[bool], change: Any, now_s: float) -> int:
    """Change all running units of a kind, job by job; the jobs in one order, so that no two wait for each other."""
    chosen = select(UnitRow.job_id, UnitRow.id).where(UnitRow.state == "running", which)
    count = 0
    for job_id, unit_id in session.execute(chosen.order_by(UnitRow.job_id, UnitRow.id)).all():
        job = locked(session, job_id)
        again = select(UnitRow).where(UnitRow.id == unit_id, UnitRow.state == "running", which)
        unit = session.scalars(again.execution_options(populate_existing=True)).one_or_none()
        if job is not None and unit is not None:
            change(session, job, unit, now_s)
            count += 1
    return count


def _done(unit: UnitRow, now_s: float) -> None:
    unit.state, unit.reason, unit.finished_s = "done", None, now_s
    unit.holder = unit.lease_until_s = None


def _refund(session: Session, job: JobRow, unit: UnitRow, now_s: float) -> None:
    unit.attempts -= 1
    _wait(session, job, unit, now_s, now_s)


def _again(session: Session, job: JobRow, unit: UnitRow, reason: str, now_s: float) -> None:
    """Try it again, later each time; or park it, and its job."""
    unit.reason = reason
    if unit.attempts < ATTEMPTS:
        _wait(session, job, unit, now_s + 2.0 ** (unit.attempts - 1), now_s)
        return
    unit.state, unit.finished_s, unit.holder, unit.lease_until_s = "parked", now_s, None, None
    session.flush()
    if job.state in OPEN:
        what = (
            "choosing the next runs" if unit.batch_size == CHOOSE else f"batch size {unit.batch_size}, seed {unit.seed}"
        )
        end(session, job, "parked", f"{what}: {unit.attempts} attempts, the last one: {reason}", now_s)


def _wait(session: Session, job: JobRow, unit: UnitRow, not_before_s: float, now_s: float) -> None:
    # Of a job that has ended meanwhile nothing waits any more.
    is_open = job.state in OPEN
    unit.state, unit.not_before_s = "waiting" if is_open else "cancelled", not_before_s
    unit.finished_s = None if is_open else now_s
    unit.holder = unit.lease_until_s = None
    session.flush()
