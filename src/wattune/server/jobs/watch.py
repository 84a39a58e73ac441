"""Looks at jobs: the answer is kept as bytes until the job changes, and a device that waits for a change is notified.

A change is found by a look at the database, and one look serves all waiting devices.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from typing import NamedTuple

from pydantic_core import to_json
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from wattune.records.served import digest
from wattune.server.jobs import queue
from wattune.server.store.database import Database, StoreUnavailable
from wattune.server.store.schema import JobRow, RunRow

LOOK_EVERY_S = 0.5
"""Interval in seconds between looks for the waiting devices."""

FRESH_S = 0.25
"""Time in seconds for which an answer is given without a look, unless this server itself changes the job."""

Waiter = asyncio.Future["JobAnswer | None"]

KEPT = 1000
"""Maximum number of answers in memory, least recently used evicted first."""


class JobAnswer(NamedTuple):
    """The status of a job as JSON, and its ``tag``, which is different after each change."""

    content: bytes
    tag: str


class JobWatch:
    """The answers to looks at jobs. Thread-safe, but for ``changed``, which belongs to the event loop."""

    def __init__(self, database: Database):
        self._database = database
        self._kept: OrderedDict[str, tuple[object, JobAnswer]] = OrderedDict()
        self._read_s: dict[str, float] = {}
        self._forgotten_s = float("-inf")
        self._lock = threading.Lock()
        self._waiting: dict[Waiter, tuple[str, str]] = {}  # job and known tag
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    def fresh(self, job: str) -> JobAnswer | None:
        """Answer that was read within ``FRESH_S``; None if it must be read."""
        with self._lock:
            if time.monotonic() - self._read_s.get(job, float("-inf")) > FRESH_S:
                return None
            return self._kept[job][1]

    def forget(self, job: str) -> None:
        """Look at the database next time: the job has changed."""
        with self._lock:
            self._read_s.pop(job, None)
            self._forgotten_s = time.monotonic()  # a look that has begun may not see the change

    def read(self, job: str) -> JobAnswer | None:
        """Read the status of a job; None if there is no such job. Raises: StoreUnavailable."""
        return self._read([job]).get(job)

    async def changed(self, job: str, tag: str, timeout_s: float) -> JobAnswer | None:
        """Wait until the answer has another tag, and return it; None after the timeout, or when the server stops."""
        if self._is_closed:
            return None
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = job, tag
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            return await asyncio.wait_for(waiter, timeout_s)
        except asyncio.TimeoutError:
            return None
        finally:
            del self._waiting[waiter]

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._is_closed = True
        for waiter in self._waiting:
            _tell(waiter, None)

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(LOOK_EVERY_S)
            jobs = sorted({job for job, _ in self._waiting.values()})
            with suppress(StoreUnavailable):
                answers = await run_in_threadpool(self._read, jobs)
                for waiter, (job, tag) in self._waiting.items():
                    if job in answers and answers[job].tag != tag:
                        _tell(waiter, answers[job])

    def _read(self, jobs: list[str]) -> dict[str, JobAnswer]:
        answers, read_s = {}, time.monotonic()
        with self._database.session(reads_only=True) as session:
            for job, state in _states(session, jobs).items():
                with self._lock:
                    before, answer = self._kept.get(job, (None, None))
                if answer is None or state != before:
                    status = queue.status(session, job)
                    if status is None:
                        continue
                    fields = status.model_dump(mode="json")
                    answer = JobAnswer(to_json(fields), digest(fields))
                answers[job] = answer
                self._keep(job, state, answer, read_s)
        return answers

    def _keep(self, job: str, state: object, answer: JobAnswer, read_s: float) -> None:
        with self._lock:
            self._kept[job] = state, answer
            if read_s > self._forgotten_s:
                self._read_s[job] = read_s
            self._kept.move_to_end(job)
            if len(self._kept) > KEPT:
                evicted, _ = self._kept.popitem(last=False)
                self._read_s.pop(evicted, None)


def _tell(waiter: Waiter, answer: JobAnswer | None) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _states(session: Session, jobs: list[str]) -> dict[str, object]:
    """Summary of what changes in the status of each job, without the work of building that."""
    # A finished run never changes.
    runs = select(func.count()).where(RunRow.job_id == JobRow.id).scalar_subquery()
    columns = JobRow.id, JobRow.state, JobRow.reason, JobRow.finished_s, JobRow.warnings, runs
    return {row.id: str(tuple(row)) for row in session.execute(select(*columns).where(JobRow.id.in_(jobs)))}
