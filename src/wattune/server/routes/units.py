"""Units of work for workers on other machines, held by the same leases as those of the server's own workers.

The worker names its claim. So a repeated request gets the same unit, and a worker that missed the answer can release
what it may hold. The holder of a lease contains the token: no token can report for a unit that another one claimed.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from typing_extensions import Self

from wattune.records import LearningCurve, SampleEfficiency
from wattune.records.base import BatchSize, Samples
from wattune.records.served import DeviceName, ServedFile, Sha256, Strict
from wattune.server.bodies import body
from wattune.server.jobs import leases, seen_workers
from wattune.server.jobs.claims import Claim, Outcome, RunResult, WorkerDevice, content, version_problem
from wattune.server.jobs.queue import batch_sizes
from wattune.server.jobs.seen_workers import SeenWorker
from wattune.server.jobs.watch import LOOK_EVERY_S, UnitWatch
from wattune.server.problems import Problem
from wattune.server.routes.endpoint import ID, answer, route, wait_s
from wattune.server.store.schema import FileRow

router = APIRouter(prefix="/v1/units", tags=["units"])

RUNS = 10_000
"""Maximum number of runs of one choice."""

Version = Annotated[str, Field(max_length=64)]


class Holder(Strict):
    """Name of a worker, and of its claim: 128 random bits in hexadecimal digits, new for each claim."""

    worker: DeviceName
    claim: Annotated[str, Field(pattern=ID)]


class ClaimRequest(Holder):
    """Request for a unit. ``wattune``, ``torch``: the worker's versions, which must be the server's own."""

    wattune: Version
    torch: Version | None
    device: WorkerDevice = "cpu"


class RunReport(Holder):
    """A finished run. ``sha256``: hash of the curve's canonical bytes."""

    sha256: Sha256
    curve: dict[str, Any]


class ChoiceReport(Holder):
    """A choice: either the next ``runs`` (batch size, seed, budget in samples), or the finished ``record``."""

    runs: Annotated[list[tuple[BatchSize, Samples, BatchSize | None]], Field(max_length=RUNS)] | None = None
    record: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (not self.runs) == (self.record is None):
            raise ValueError("either runs or a record")
        return self


class FailureReport(Holder):
    """A failed attempt. ``is_final``: a retry is pointless, and the job fails."""

    reason: Annotated[str, Field(max_length=500)]
    is_final: bool = False


BODIES = (Holder, ClaimRequest, RunReport, ChoiceReport, FailureReport)


@router.post("/claim", **route("worker", Claim, also=(204,), takes=ClaimRequest))
async def claim_unit(request: Request, asked: Annotated[ClaimRequest, Depends(body(ClaimRequest))]) -> Response:
    """Claim a unit; status 204 if there is none.

    With ``Prefer: wait=20`` (RFC 7240), the response waits for a unit, for that many seconds at most.
    """
    if problem := version_problem(asked.wattune, asked.torch):
        what, theirs, ours = problem
        raise Problem(
            409, what, value=theirs, allowed=ours, hint="install the server's version on the worker's machine"
        )
    watch: UnitWatch = request.app.state.unit_watch
    await run_in_threadpool(_see, request, asked)
    until_s, claim = time.monotonic() + wait_s(request), await run_in_threadpool(_claim, request, asked)
    while claim is None and time.monotonic() < until_s and not watch.is_closed:
        await asyncio.sleep(LOOK_EVERY_S)
        is_waiting = await watch.is_waiting()
        if await request.is_disconnected():  # nobody would train it
            break
        claim = await run_in_threadpool(_claim, request, asked) if is_waiting else None
    if claim is None:
        return Response(status_code=204)
    return answer(claim.model_dump(mode="json"))


@router.post("/renew", **route("worker", status=204, takes=Holder))
def renew_unit(request: Request, holder: Annotated[Holder, Depends(body(Holder))]) -> Response:
    """Renew the lease of a unit; status 409 if the worker no longer holds it."""
    claim = _held(request, holder)
    with request.app.state.database.session() as session:
        return _recorded(leases.renew(session, claim, time.time()))


@router.post("/finish", **route("worker", status=204, takes=RunReport))
def finish_unit(request: Request, report: Annotated[RunReport, Depends(body(RunReport))]) -> Response:
    """Report the learning curve of a run; status 409 if the worker no longer holds the unit.

    The same report again, after a lost answer, has the same answer.
    """
    claim = _held(request, report, or_done=True)
    curve = LearningCurve.parse(report.curve, source="the curve")
    if claim.chooses or (curve.batch_size, curve.seed) != (claim.batch_size, claim.seed):
        value = f"batch size {curve.batch_size}, seed {curve.seed}"
        raise Problem(422, "the curve belongs to another unit", value=value, allowed=str(claim))
    curve_bytes = content(curve)
    if (sha256 := hashlib.sha256(curve_bytes).hexdigest()) != report.sha256:
        raise Problem(422, "SHA-256 of the curve", value=sha256, allowed=report.sha256, hint="the upload was corrupted")
    request.app.state.files.write(curve_bytes)
    result = RunResult(sha256, len(curve_bytes), curve.samples, curve.reached)
    with request.app.state.database.session() as session:
        return _recorded(leases.finish(session, claim, result, time.time()))


@router.post("/choice", **route("worker", status=204, takes=ChoiceReport))
def choose_runs(request: Request, report: Annotated[ChoiceReport, Depends(body(ChoiceReport))]) -> Response:
    """Report the next runs, or the finished record; status 409 if the worker no longer holds the unit.

    The same report again, after a lost answer, has the same answer.
    """
    claim = _held(request, report, or_done=True)
    if not claim.chooses:
        raise Problem(422, "a choice for a unit that is a run", value=str(claim))
    outcome: Outcome
    if report.record is not None:
        outcome = SampleEfficiency.parse(report.record, source="the record").dump()
    else:
        outcome = report.runs or []
        _check_runs(request, claim, outcome)
    with request.app.state.database.session() as session:
        return _recorded(leases.record_choice(session, claim, outcome, time.time()))


@router.post("/fail", **route("worker", status=204, takes=FailureReport))
def fail_unit(request: Request, report: Annotated[FailureReport, Depends(body(FailureReport))]) -> Response:
    """Report a failed attempt; status 409 if the worker no longer holds the unit."""
    claim = _held(request, report)
    with request.app.state.database.session() as session:
        return _recorded(leases.fail(session, claim, report.reason, time.time(), is_final=report.is_final))


@router.post("/release", **route("worker", status=204, takes=Holder))
def release_unit(request: Request, holder: Annotated[Holder, Depends(body(Holder))]) -> Response:
    """Requeue a unit whose attempt was interrupted, if the worker holds it; the attempt does not count."""
    with request.app.state.database.session() as session:
        claim = leases.held(session, _holder(request, holder))
        if claim is not None:
            leases.release(session, claim, time.time())
    return Response(status_code=204)


def _holder(request: Request, holder: Holder) -> str:
    return f"{_worker(request, holder)}:{holder.claim}"


def _worker(request: Request, holder: Holder) -> str:
    return leases.remote(request.state.identity.token, holder.worker)


def _see(request: Request, asked: ClaimRequest) -> None:
    known = {"name": asked.worker, "token": request.state.identity.name, "device": asked.device, "torch": asked.torch}
    with request.app.state.database.session() as session:
        seen_workers.put(session, _worker(request, asked), SeenWorker(**known, unit=None, seen_s=time.time()))


def _claim(request: Request, asked: ClaimRequest) -> Claim | None:
    lease_s, now_s = request.app.state.settings.limits.lease_s, time.time()
    database, holder = request.app.state.database, _holder(request, asked)
    with database.session(reads_only=True) as session:
        claim = leases.held(session, holder, lease_s)
        if claim is None and not leases.is_waiting(session, now_s):
            return None
    if claim is None:
        with database.session() as session:
            claim = leases.claim(session, _worker(request, asked), now_s, lease_s, name=asked.claim)
    if claim is None:
        return None
    hashes = (*claim.model.files, *claim.curve_hashes)
    with database.session() as session:
        seen_workers.note(session, _worker(request, asked), str(claim), time.time())
        rows = [session.get_one(FileRow, sha256) for sha256 in dict.fromkeys(hashes)]
        return claim.model_copy(update={"files": tuple(ServedFile(sha256=row.sha256, bytes=row.bytes) for row in rows)})


def _held(request: Request, holder: Holder, *, or_done: bool = False) -> Claim:
    lease_s = request.app.state.settings.limits.lease_s
    with request.app.state.database.session() as session:
        claim = leases.held(session, _holder(request, holder), lease_s, or_done=or_done)
        held = None if claim is None else str(claim)
        seen_workers.note(session, _worker(request, holder), held, time.time())
    if claim is None:
        raise _lost()
    return claim


def _recorded(is_held: bool) -> Response:
    if not is_held:
        raise _lost()
    return Response(status_code=204)


def _lost() -> Problem:
    return Problem(409, "this worker does not hold the unit", hint="drop the result")


def _check_runs(request: Request, claim: Claim, runs: list[tuple[int, int, int | None]]) -> None:
    sizes = batch_sizes(claim.model, claim.request)
    keys = [(size, seed) for size, seed, _ in runs]
    with request.app.state.database.session(reads_only=True) as session:
        if leases.is_done(session, claim):
            return
        before = {(row.batch_size, row.seed) for row in leases.runs(session, claim.job_id)}
    for size, seed in keys:
        if size not in sizes:
            raise Problem(422, "batch size of a run", value=size, allowed=", ".join(map(str, sizes)))
        if (size, seed) in before or keys.count((size, seed)) > 1:
            raise Problem(422, "a run that there is already", value=f"batch size {size}, seed {seed}")
