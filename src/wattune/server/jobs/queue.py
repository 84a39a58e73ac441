"""Job queue: the sweeps that devices requested. The same request for the same model is the same job.

A job consists of units, which are rows of their own: one per proxy run, and one per step that chooses the next runs,
with ``batch_size`` 0 and the round as ``seed``. Every change of a job or its units locks the job's row first, which
serializes the changes on any database.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from wattune.errors import InputError, WattuneError
from wattune.records.served import ServedModel, SweepRequest, SweepRun, SweepState, SweepStatus
from wattune.sample_efficiency.scheduler import MAX_RUNS, SEEDS
from wattune.server.store.schema import OPEN, JobRow, UnitRow, insert_new, newest

CHOOSE = 0
"""Batch size of a unit that chooses the next runs instead of training."""


MAX_WAITING = 10_000
"""Maximum number of waiting units of all jobs; a job that would exceed it is rejected."""


class QueueFull(WattuneError):
    """Too many units are waiting, of all jobs or of one token's."""


class WrongState(InputError):
    """The job's state does not allow the operation."""


def submit(
    session: Session,
    model: ServedModel,
    request: SweepRequest,
    now_s: float,
    *,
    owner: str | None = None,
    most: int = MAX_WAITING,
) -> tuple[JobRow, bool]:
    """Submit a request; return its job, and True if a job was started: a new one, or a cancelled one again.

    ``owner``: id of the token that starts the job, whose jobs may have ``most`` waiting units together.

    Raises: InputError if the request does not match the model; QueueFull.
    """
    sizes = batch_sizes(model, request)
    _check(model, request, sizes)
    job_id = request.key(model.digest)
    seeds = range(request.seeds or SEEDS) if request.strategy == "full" else ()
    before = session.get(JobRow, job_id)
    if before is None or before.state == "cancelled":
        _check_room(session, max(1, len(sizes) * len(seeds)), owner, most)
    values: dict[str, Any] = {
        "id": job_id,
        "model_name": model.model,
        "model": model.dump(),
        "request": request.model_dump(mode="json"),
        "state": "waiting",
        "warnings": [],
        "token": owner,
        "created_s": now_s,
    }
    is_new = insert_new(session, JobRow, values)
    job = locked(session, job_id)
    assert job is not None
    if is_new:
        # Small batches take the most steps, so they start first.
        add_runs(session, job, [(size, seed, None) for size in sizes for seed in seeds], now_s)
        advance(session, job, now_s)
        return job, True
    if job.state != "cancelled":  # a failed or parked job needs an operator's attention
        job.is_shared = job.is_shared or job.token != owner
        return job, False
    job.token, job.is_shared = owner, False
    _restart(session, job, now_s)
    return job, True


def is_known_to(session: Session, job_id: str, owner: str | None) -> bool:
    """True if a job need not be marked as shared for a token that requests it: it started it, or it is shared."""
    token, is_shared = session.execute(select(JobRow.token, JobRow.is_shared).where(JobRow.id == job_id)).one()
    return is_shared or token == owner


def batch_sizes(model: ServedModel, request: SweepRequest) -> tuple[int, ...]:
    """Batch sizes of a request, ascending."""
    return tuple(sorted(set(request.batch_sizes or model.batch_sizes)))


def proxy_target(model: ServedModel, request: SweepRequest) -> float | None:
    """Target metric of the proxy runs; None if neither the request nor the model has one."""
    return next((t for t in (request.target, model.proxy.target, model.target) if t is not None), None)


def status(session: Session, job_id: str) -> SweepStatus | None:
    """Read the status of a job; None if there is no such job."""
    job = session.get(JobRow, job_id)
    if job is None:
        return None
    query = select(UnitRow).where(UnitRow.job_id == job_id, UnitRow.batch_size != CHOOSE).order_by(UnitRow.id)
    units = list(session.scalars(query))
    return _status(job, len(units), sum(unit.state == "done" for unit in units), map(_run, units))


def listing(
    session: Session,
    *,
    state: str | None = None,
    model: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> list[SweepStatus]:
    """List jobs without their runs, newest first. ``before``: only the jobs that follow this id.

    Raises: InputError for an unknown state or job.
    """
    if state is not None and state not in get_args(SweepState):
        raise InputError("state of a job", value=state, allowed=", ".join(get_args(SweepState)))
    query = select(JobRow)
    if state is not None:
        query = query.where(JobRow.state == state)
    if model is not None:
        query = query.where(JobRow.model_name == model)
    query = newest(session, query, JobRow, what="job", limit=limit, before=before)
    jobs = list(session.scalars(query))
    count = select(UnitRow.job_id, UnitRow.state, func.count()).group_by(UnitRow.job_id, UnitRow.state)
    of_these = count.where(UnitRow.job_id.in_([job.id for job in jobs]), UnitRow.batch_size != CHOOSE)
    runs: dict[str, dict[str, int]] = {job.id: {} for job in jobs}
    for job_id, which, number in session.execute(of_these):
        runs[job_id][which] = number
    return [_status(job, sum(runs[job.id].values()), runs[job.id].get("done", 0)) for job in jobs]


def cancel(session: Session, job_id: str, now_s: float) -> SweepStatus | None:
    """Cancel a job; finished runs are kept. Returns None if there is no such job.

    A running unit stops at its next evaluation, and its result is dropped. Raises: WrongState.
    """
    job = locked(session, job_id)
    if job is None:
        return None
    if job.state not in OPEN:
        raise WrongState(f"job {job_id} has ended", value=job.state, allowed=" or ".join(OPEN))
    end(session, job, "cancelled", None, now_s)
    return status(session, job_id)


def retry(session: Session, job_id: str, now_s: float) -> SweepStatus | None:
    """Restart a failed, parked or cancelled job. Returns None if there is no such job. Raises: WrongState."""
    job = locked(session, job_id)
    if job is None:
        return None
    if job.state in (*OPEN, "done"):
        hint = "cancel it first" if job.state in OPEN else None
        raise WrongState(f"job {job_id}", value=job.state, allowed="failed, parked or cancelled", hint=hint)
    _restart(session, job, now_s)
    return status(session, job_id)


def in_use(session: Session, model: str) -> int:
    """Count the waiting and running jobs of a model."""
    query = select(func.count()).where(JobRow.model_name == model, JobRow.state.in_(OPEN))
    return session.scalar(query) or 0


# ------------------------------------------------------------------------------------------ shared with leases


def locked(session: Session, job_id: str) -> JobRow | None:
    """Lock a job and its units until the end of the transaction."""
    return session.get(JobRow, job_id, with_for_update=True, populate_existing=True)


def advance(session: Session, job: JobRow, now_s: float) -> None:
    """Add a unit that chooses the next runs if all units of an open job are done."""
    if job.state not in OPEN:
        return
    states = session.execute(select(UnitRow.batch_size, UnitRow.state).where(UnitRow.job_id == job.id)).all()
    if all(state == "done" for _, state in states):
        add_runs(session, job, [(CHOOSE, sum(size == CHOOSE for size, _ in states), None)], now_s)


def end(session: Session, job: JobRow, state: str, reason: str | None, now_s: float) -> None:
    """End a job without a curve. Waiting units are cancelled; running ones as well, unless the job is only parked."""
    stopped = ("waiting",) if state == "parked" else OPEN
    session.execute(
        update(UnitRow)
        .where(UnitRow.job_id == job.id, UnitRow.state.in_(stopped))
        .values(state="cancelled", holder=None, lease_until_s=None, finished_s=now_s)
    )
    job.state, job.reason, job.finished_s = state, reason, now_s
    session.flush()


def add_runs(session: Session, job: JobRow, runs: list[tuple[int, int, int | None]], now_s: float) -> None:
    """Add units for the next runs: batch size, seed, and budget in samples."""
    for size, seed, budget in runs:
        session.add(
            UnitRow(
                job_id=job.id,
                batch_size=size,
                seed=seed,
                budget_samples=budget,
                state="waiting",
                attempts=0,
                not_before_s=now_s,
                created_s=now_s,
            )
        )
    session.flush()


def _check_room(session: Session, units: int, owner: str | None, most: int) -> None:
    """Check that a job of this many units fits into the queue. Raises: QueueFull."""
    waiting = select(func.count()).select_from(UnitRow).where(UnitRow.state == "waiting")
    if owner is not None:
        own = waiting.join(JobRow, JobRow.id == UnitRow.job_id).where(JobRow.token == owner)
        if (count := session.scalar(own) or 0) + units > most:
            raise QueueFull(f"too many runs of one token: {count} are waiting, {units} more; at most {most}")
    if (session.scalar(waiting) or 0) + units > MAX_WAITING:
        raise QueueFull(f"the queue is full: at most {MAX_WAITING} runs may wait; try again later")


def _restart(session: Session, job: JobRow, now_s: float) -> None:
    session.execute(
        update(UnitRow)
        .where(UnitRow.job_id == job.id, UnitRow.state != "done")
        .values(
            state="waiting",
            attempts=0,
            not_before_s=now_s,
            holder=None,
            lease_until_s=None,
            reason=None,
            finished_s=None,
        )
    )
    job.state, job.reason, job.finished_s = "waiting", None, None
    session.flush()
    advance(session, job, now_s)


def _check(model: ServedModel, request: SweepRequest, sizes: tuple[int, ...]) -> None:
    batch_sizes = ", ".join(map(str, model.batch_sizes))
    if unknown := sorted(set(sizes) - set(model.batch_sizes)):
        raise InputError(f"batch size for the model {model.model}", value=unknown[0], allowed=batch_sizes)
    if unknown := sorted(set(request.log_step_times or ()) - set(sizes)):
        raise InputError(
            "step time of a batch size that was not requested", value=unknown[0], allowed=", ".join(map(str, sizes))
        )
    if request.log_step_times is not None and not request.log_step_times:
        raise InputError(
            "log_step_times is empty", allowed="step times of the batch sizes that the device can run, or null"
        )
    if proxy_target(model, request) is None:
        raise InputError(f"the proxy of {model.model} has no target", hint="set one in the request")


def _status(job: JobRow, count: int, finished_runs: int, runs: Iterable[SweepRun] = ()) -> SweepStatus:
    request = SweepRequest.model_validate(job.request)
    return SweepStatus.model_validate(
        {
            "job": job.id,
            "request": request,
            "state": job.state,
            "runs": tuple(runs),
            "runs_done": finished_runs,
            "runs_most": finished_runs
            if job.state == "done"
            else max(count, MAX_RUNS if request.strategy == "pooled" else 0),
            "reason": job.reason,
            "warnings": job.warnings,
            "created_s": job.created_s,
            "finished_s": job.finished_s,
        }
    )


def _run(unit: UnitRow) -> SweepRun:
    return SweepRun.model_validate(
        {
            "batch_size": unit.batch_size,
            "seed": unit.seed,
            "state": unit.state,
            "attempts": unit.attempts,
            "samples": unit.samples,
            "reached": unit.reached,
            "curve": unit.curve_sha256,
            "reason": unit.reason,
        }
    )
