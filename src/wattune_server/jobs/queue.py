"""Job queue: the sweeps that devices requested. The same request for the same model is the same job.

A sweep is done as a whole by one process, see ``runners``. Its finished proxy runs are rows of their own. Every change
of a job or its runs locks the job's row first, which serializes the changes on any database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from wattune.errors import InputError, WattuneError
from wattune.records import LearningCurve
from wattune.records.served import ServedModel, SweepRequest, SweepStatus
from wattune.sample_efficiency.scheduler import MAX_RUNS, SEEDS
from wattune_server.store.schema import OPEN, FileRow, JobRow, RunRow, insert_new

MAX_OPEN = 1000
"""Maximum number of open jobs; a further one is rejected."""

ATTEMPTS = 5
"""Number of failed attempts in a row, without a run finished between them, after which a job is parked."""

MAX_BACKOFF_S = 2.0 ** (ATTEMPTS - 2)
"""Longest time in seconds for which a job waits for its next attempt."""


class QueueFull(WattuneError):
    """Too many jobs are open, of all tokens or of one."""


class WrongState(InputError):
    """The job's state does not allow the operation."""


def submit(
    session: Session,
    model: ServedModel,
    request: SweepRequest,
    now_s: float,
    *,
    owner: str | None = None,
    most: int = MAX_OPEN,
) -> tuple[JobRow, bool]:
    """Submit a request; return its job, and True if a job was started: a new one, or a cancelled one again.

    ``owner``: id of the token that starts the job; ``most`` of its jobs may be open.

    Raises: InputError if the request does not match the model; QueueFull.
    """
    _check(model, request, batch_sizes(model, request))
    job_id = request.key(model.digest)
    before = session.get(JobRow, job_id)
    if before is None or before.state == "cancelled":
        _check_room(session, owner, most)
    values: dict[str, Any] = {
        "id": job_id,
        "model_name": model.model,
        "model": model.dump(),
        "request": request.model_dump(mode="json"),
        "state": "waiting",
        "attempts": 0,
        "not_before_s": now_s,
        "token": owner,
        "created_s": now_s,
    }
    is_new = insert_new(session, JobRow, values)
    job = locked(session, job_id)
    assert job is not None
    if is_new:
        return job, True
    if job.state != "cancelled":  # a failed or parked job needs an operator's attention
        return job, False
    job.token = owner
    _restart(job, now_s)
    return job, True


def batch_sizes(model: ServedModel, request: SweepRequest) -> tuple[int, ...]:
    """Batch sizes of a request, ascending."""
    return tuple(sorted(set(request.batch_sizes or model.batch_sizes)))


def proxy_target(model: ServedModel, request: SweepRequest) -> float | str | None:
    """Target of the proxy runs, a metric or a share of the way to the plateau.

    None if neither the request nor the model has one.
    """
    return next((t for t in (request.target, model.proxy.target, model.target) if t is not None), None)


def status(session: Session, job_id: str) -> SweepStatus | None:
    """Read the status of a job; None if there is no such job."""
    job = session.get(JobRow, job_id)
    if job is None:
        return None
    finished = runs(session, job_id)
    return _status(job, len(finished), finished)


def runs(session: Session, job_id: str) -> list[RunRow]:
    """List the finished runs of a job by batch size and seed."""
    query = select(RunRow).where(RunRow.job_id == job_id).order_by(RunRow.batch_size, RunRow.seed)
    return list(session.scalars(query))


def listing(session: Session, *, limit: int) -> list[SweepStatus]:
    """List the newest jobs without their runs."""
    query = select(JobRow).order_by(JobRow.created_s.desc(), JobRow.id.desc()).limit(limit)
    jobs = list(session.scalars(query))
    count = select(RunRow.job_id, func.count()).group_by(RunRow.job_id)
    finished = dict(session.execute(count.where(RunRow.job_id.in_([job.id for job in jobs]))).all())
    return [_status(job, finished.get(job.id, 0)) for job in jobs]


def cancel(session: Session, job_id: str, now_s: float) -> bool:
    """Cancel a job; finished runs are kept. Returns False if there is no such job. Raises: WrongState."""
    job = locked(session, job_id)
    if job is None:
        return False
    if job.state not in OPEN:
        raise WrongState(f"job {job_id} has ended", value=job.state, allowed=" or ".join(OPEN))
    _end(job, "cancelled", None, now_s)
    return True


def retry(session: Session, job_id: str, now_s: float) -> bool:
    """Restart a failed, parked or cancelled job. Returns False if there is no such job. Raises: WrongState."""
    job = locked(session, job_id)
    if job is None:
        return False
    if job.state in (*OPEN, "done"):
        hint = "cancel it first" if job.state in OPEN else None
        raise WrongState(f"job {job_id}", value=job.state, allowed="failed, parked or cancelled", hint=hint)
    _restart(job, now_s)
    return True


def in_use(session: Session, model: str) -> int:
    """Count the waiting and running jobs of a model."""
    query = select(func.count()).where(JobRow.model_name == model, JobRow.state.in_(OPEN))
    return session.scalar(query) or 0


def locked(session: Session, job_id: str) -> JobRow | None:
    """Lock a job and its runs until the end of the transaction."""
    return session.get(JobRow, job_id, with_for_update=True, populate_existing=True)


# ------------------------------------------------------------------------------------------ of the runners


def begin(session: Session, now_s: float) -> JobRow | None:
    """Mark the next waiting job as running, and return it; None if there is none.

    A token's first open job comes before the second job of another token, and so on; of equal ones the older job. So
    nobody waits for all jobs of one token.
    """
    # No job waits for longer than ``MAX_BACKOFF_S``, so a later time is from before the clock was set back.
    is_due = or_(JobRow.not_before_s <= now_s, JobRow.not_before_s > now_s + MAX_BACKOFF_S)
    by_age = select(JobRow.id, JobRow.token, is_due).order_by(JobRow.created_s, JobRow.id)
    ahead = Counter(session.scalars(select(JobRow.token).where(JobRow.state == "running")))
    due: list[tuple[int, str]] = []
    for job_id, token, is_next in session.execute(by_age.where(JobRow.state == "waiting")):
        if is_next:
            due.append((ahead[token], job_id))
        ahead[token] += 1
    if not due:
        return None
    job = locked(session, min(due, key=lambda entry: entry[0])[1])
    if job is not None:
        job.state = "running"
    return job


def record_run(session: Session, job_id: str, curve: LearningCurve, sha256: str, size: int, now_s: float) -> bool:
    """Record a finished run, whose curve is a file of the store of ``size`` bytes; False if it is recorded already."""
    job = locked(session, job_id)
    run: dict[str, Any] = {name: getattr(curve, name) for name in ("batch_size", "seed", "samples", "reached")}
    run |= {"job_id": job_id, "curve_sha256": sha256, "finished_s": now_s}
    if job is None or not insert_new(session, RunRow, run):
        return False
    insert_new(session, FileRow, {"sha256": sha256, "bytes": size, "created_s": now_s})
    job.attempts, job.reason = 0, None
    return True


def finish(session: Session, job_id: str, curve: dict[str, Any], now_s: float) -> None:
    """Record the result of a running job."""
    job = locked(session, job_id)
    if job is not None and job.state == "running":
        _end(job, "done", None, now_s)
        job.curve = curve


def fail(
    session: Session, job_id: str, reason: str, now_s: float, *, is_final: bool = False, counts: bool = True
) -> None:
    """Record a failed attempt at a running job, which waits for the next one, with exponential backoff.

    After ``ATTEMPTS`` that count the job is parked. ``is_final``: a retry is pointless, and the job fails.
    """
    job = locked(session, job_id)
    if job is None or job.state != "running":
        return
    job.attempts += counts
    if is_final:
        _end(job, "failed", reason, now_s)
    elif job.attempts >= ATTEMPTS:
        _end(job, "parked", f"{job.attempts} attempts, the last one: {reason}", now_s)
    else:
        wait_s = 2.0 ** (job.attempts - 1) if counts else MAX_BACKOFF_S
        job.state, job.reason, job.not_before_s = "waiting", reason, now_s + wait_s


def release(session: Session, *, working: set[str]) -> None:
    """Let the running jobs wait again that no process is working on; the attempts do not count."""
    is_idle = (JobRow.state == "running") & JobRow.id.not_in(working)
    session.execute(update(JobRow).where(is_idle).values(state="waiting"))


def _end(job: JobRow, state: str, reason: str | None, now_s: float) -> None:
    job.state, job.reason, job.finished_s = state, reason, now_s


def _restart(job: JobRow, now_s: float) -> None:
    job.state, job.reason, job.finished_s, job.not_before_s, job.attempts = "waiting", None, None, now_s, 0


def _check_room(session: Session, owner: str | None, most: int) -> None:
    """Check that another job may be opened. Raises: QueueFull."""
    count = select(func.count()).select_from(JobRow).where(JobRow.state.in_(OPEN))
    if owner is not None and (session.scalar(count.where(JobRow.token == owner)) or 0) >= most:
        raise QueueFull(f"too many open sweeps of one token: at most {most}; wait for one of them")
    if (session.scalar(count) or 0) >= MAX_OPEN:
        raise QueueFull(f"the queue is full: at most {MAX_OPEN} sweeps may be open; try again later")


def _check(model: ServedModel, request: SweepRequest, sizes: tuple[int, ...]) -> None:
    batch_sizes = ", ".join(map(str, model.batch_sizes))
    if unknown := sorted(set(sizes) - set(model.batch_sizes)):
        raise InputError(f"batch size for the model {model.model}", value=unknown[0], allowed=batch_sizes)
    if unknown := sorted(set(request.log_step_times or ()) - set(sizes)):
        requested = ", ".join(map(str, sizes))
        raise InputError("step time of a batch size that was not requested", value=unknown[0], allowed=requested)
    if request.log_step_times == {}:
        raise InputError("log_step_times is empty", allowed="step times of the device's batch sizes, or null")
    if proxy_target(model, request) is None:
        raise InputError(f"the proxy of {model.model} has no target", hint="set one in the request")


def _status(job: JobRow, runs_done: int, runs: Iterable[RunRow] = ()) -> SweepStatus:
    request = SweepRequest.model_validate(job.request)
    # The model itself may be one that this version cannot read.
    whole = len(set(request.batch_sizes or job.model["batch_sizes"])) * (request.seeds or SEEDS)
    columns = ("batch_size", "seed", "samples", "reached")
    return SweepStatus.model_validate(
        {
            "job": job.id,
            "request": request,
            "state": job.state,
            "runs": [{**{c: getattr(run, c) for c in columns}, "curve": run.curve_sha256} for run in runs],
            "runs_done": runs_done,
            "runs_most": runs_done if job.state == "done" else MAX_RUNS if request.strategy == "pooled" else whole,
            "reason": job.reason,
            "created_s": job.created_s,
            "finished_s": job.finished_s,
        }
    )
