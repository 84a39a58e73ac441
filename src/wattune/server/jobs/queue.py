"""Jobs: the sweeps that devices asked for. The same request of the same model is the same job.

A job's work is cut into units, rows of their own: one proxy run each, and between them the steps that choose which
runs come next, with ``batch_size`` 0 and the round as ``seed``. Whoever changes a job or its units locks the job's row
first, so that on every database one change follows the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from wattune.decisions.allocation import MOST, SEEDS
from wattune.errors import InputError, WattuneError
from wattune.records.served import ServedModel, SweepRequest, SweepRun, SweepState, SweepStatus
from wattune.server.store.inserting import insert_new
from wattune.server.store.paging import newest
from wattune.server.store.tables import JobRow, UnitRow

OPEN = ("waiting", "running")
"""States of a job or a unit in which something happens by itself."""

CHOOSE = 0
"""The batch size of a unit that trains nothing, but chooses what is trained next."""


MOST_WAITING = 10_000
"""Units that wait, of all jobs together, above which no new job is taken."""


class QueueFull(WattuneError):
    """More is waiting than will be done in a long time."""


class WrongState(InputError):
    """A job is not in a state in which this can be done."""


def submit(session: Session, model: ServedModel, request: SweepRequest, now_s: float) -> tuple[JobRow, bool]:
    """The job of this request, and whether something was started: a new job, or one that had been cancelled.

    Raises: InputError for a request that does not go with the model; QueueFull.
    """
    sizes = batch_sizes(model, request)
    _check(model, request, sizes)
    job_id = request.key(model.digest)
    waiting = select(func.count()).select_from(UnitRow).where(UnitRow.state == "waiting")
    if session.get(JobRow, job_id) is None and (session.scalar(waiting) or 0) >= MOST_WAITING:
        raise QueueFull(f"{MOST_WAITING} runs are waiting already: ask again when some are done")
    values = {
        "id": job_id,
        "model_name": model.model,
        "model": model.dump(),
        "request": request.model_dump(mode="json"),
        "state": "waiting",
        "warnings": [],
        "created_s": now_s,
    }
    is_new = insert_new(session, JobRow, values)
    job = locked(session, job_id)
    assert job is not None
    if is_new:
        seeds = range(request.seeds or SEEDS) if request.strategy == "full" else ()
        # Small batches take the most steps, so they start first.
        add_runs(session, job, [(size, seed, None) for size in sizes for seed in seeds], now_s)
        advance(session, job, now_s)
        return job, True
    if job.state != "cancelled":  # one that failed or was parked waits for somebody who looks at the reason
        return job, False
    _start_anew(session, job, now_s)
    return job, True


def batch_sizes(model: ServedModel, request: SweepRequest) -> tuple[int, ...]:
    """The batch sizes that a request is about, ascending."""
    return tuple(sorted(set(request.batch_sizes or model.batch_sizes)))


def target(model: ServedModel, request: SweepRequest) -> float | None:
    """The metric at which a proxy run is done."""
    return next((t for t in (request.target, model.proxy.target, model.target) if t is not None), None)


def status(session: Session, job_id: str) -> SweepStatus | None:
    """How a job is doing; None where there is no such job."""
    job = session.get(JobRow, job_id)
    if job is None:
        return None
    chosen = select(UnitRow).where(UnitRow.job_id == job_id, UnitRow.batch_size != CHOOSE).order_by(UnitRow.id)
    units = list(session.scalars(chosen))
    return _status(job, len(units), sum(unit.state == "done" for unit in units), map(_run, units))


def listing(
    session: Session,
    *,
    state: str | None = None,
    model: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> list[SweepStatus]:
    """Jobs without their runs, the newest first. ``before``: those that come after this one in the list.

    Raises: InputError for a state or a job that there is not.
    """
    if state is not None and state not in get_args(SweepState):
        raise InputError("state of a job", value=state, allowed=", ".join(get_args(SweepState)))
    chosen = select(JobRow)
    if state is not None:
        chosen = chosen.where(JobRow.state == state)
    if model is not None:
        chosen = chosen.where(JobRow.model_name == model)
    chosen = newest(session, chosen, JobRow, what="job", limit=limit, before=before)
    jobs = list(session.scalars(chosen))
    count = select(UnitRow.job_id, UnitRow.state, func.count()).group_by(UnitRow.job_id, UnitRow.state)
    of_these = count.where(UnitRow.job_id.in_([job.id for job in jobs]), UnitRow.batch_size != CHOOSE)
    runs: dict[str, dict[str, int]] = {job.id: {} for job in jobs}
    for job_id, which, number in session.execute(of_these):
        runs[job_id][which] = number
    return [_status(job, sum(runs[job.id].values()), runs[job.id].get("done", 0)) for job in jobs]


def cancel(session: Session, job_id: str, now_s: float) -> SweepStatus | None:
    """Stop a job; what is finished is kept. None where there is no such job.

    A run that is under way is stopped at its next evaluation, and its result is dropped. Raises: WrongState.
    """
    job = locked(session, job_id)
    if job is None:
        return None
    if job.state not in OPEN:
        raise WrongState(f"job {job_id} has ended", value=job.state, allowed=" or ".join(OPEN))
    end(session, job, "cancelled", None, now_s)
    return status(session, job_id)


def retry(session: Session, job_id: str, now_s: float) -> SweepStatus | None:
    """Start a job anew that failed, was parked or was cancelled. None where there is none. Raises: WrongState."""
    job = locked(session, job_id)
    if job is None:
        return None
    if job.state in (*OPEN, "done"):
        hint = "cancel it first" if job.state in OPEN else None
        raise WrongState(f"job {job_id}", value=job.state, allowed="failed, parked or cancelled", hint=hint)
    _start_anew(session, job, now_s)
    return status(session, job_id)


def in_use(session: Session, model: str) -> int:
    """How many jobs of a model of this name are waiting or running."""
    chosen = select(func.count()).where(JobRow.model_name == model, JobRow.state.in_(OPEN))
    return session.scalar(chosen) or 0


# ------------------------------------------------------------------------------------------ what leases use as well


def locked(session: Session, job_id: str) -> JobRow | None:
    """The job, and nobody else changes it or its units until this transaction has ended."""
    return session.get(JobRow, job_id, with_for_update=True, populate_existing=True)


def advance(session: Session, job: JobRow, now_s: float) -> None:
    """Where all units of an open job are done, have it chosen what comes next."""
    if job.state not in OPEN:
        return
    states = session.execute(select(UnitRow.batch_size, UnitRow.state).where(UnitRow.job_id == job.id)).all()
    if all(state == "done" for _, state in states):
        add_runs(session, job, [(CHOOSE, sum(size == CHOOSE for size, _ in states), None)], now_s)


def end(session: Session, job: JobRow, state: str, reason: str | None, now_s: float) -> None:
    """A job that ends without a curve: what waits is cancelled, and what runs unless it was only parked."""
    stopped = ("waiting",) if state == "parked" else OPEN
    session.execute(
        update(UnitRow)
        .where(UnitRow.job_id == job.id, UnitRow.state.in_(stopped))
        .values(state="cancelled", holder=None, lease_until_s=None, finished_s=now_s)
    )
    job.state, job.reason, job.finished_s = state, reason, now_s
    session.flush()


def add_runs(session: Session, job: JobRow, runs: list[tuple[int, int, int | None]], now_s: float) -> None:
    """The runs that come next: batch size, seed, and samples after which they may end."""
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


def _start_anew(session: Session, job: JobRow, now_s: float) -> None:
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
    known = ", ".join(map(str, model.batch_sizes))
    if strange := sorted(set(sizes) - set(model.batch_sizes)):
        raise InputError(f"batch size that {model.model} is not served with", value=strange[0], allowed=known)
    if strange := sorted(set(request.log_step_times or ()) - set(sizes)):
        raise InputError(
            "step time of a batch size that is not asked for", value=strange[0], allowed=", ".join(map(str, sizes))
        )
    if request.log_step_times is not None and not request.log_step_times:
        raise InputError("no step times", allowed="those of the batch sizes that the device can run, or null")
    if target(model, request) is None:
        raise InputError(f"{model.model} has no target for its proxy", allowed="one in the request")


def _status(job: JobRow, count: int, done: int, runs: Iterable[SweepRun] = ()) -> SweepStatus:
    request = SweepRequest.model_validate(job.request)
    return SweepStatus.model_validate(
        {
            "job": job.id,
            "request": request,
            "state": job.state,
            "runs": tuple(runs),
            "runs_done": done,
            "runs_most": done if job.state == "done" else max(count, MOST if request.strategy == "pooled" else 0),
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
