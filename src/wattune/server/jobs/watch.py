"""Waiting for a change of a job: one look at the database serves all devices that wait."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import NamedTuple

from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool

from wattune.records.served import digest
from wattune.server.jobs import queue
from wattune.server.store.database import Database, StoreUnavailable

LOOK_EVERY_S = 0.5
"""Interval in seconds between looks for the waiting devices."""

FRESH_S = 0.25
"""Time in seconds for which an answer is given without a look: half of the calls of a fleet look at the same job."""

KEPT = 1000
"""Maximum number of answers in memory."""


class JobAnswer(NamedTuple):
    """The status of a job as JSON, and its ``tag``, which is different after each change."""

    content: bytes
    tag: str


class _Waiter(NamedTuple):
    """A request that waits: the job, the tag that it knows, and the id of its token."""

    job: str
    tag: str
    token: str | None


class JobWatch:
    """The status of jobs, and those who wait for another one. ``changed`` and ``close`` belong to the event loop."""

    def __init__(self, database: Database):
        self._database = database
        self._kept: dict[str, tuple[float, JobAnswer]] = {}
        self._waiting: dict[asyncio.Future[JobAnswer | None], _Waiter] = {}
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    def fresh(self, job: str) -> JobAnswer | None:
        """Answer that was read within ``FRESH_S``; None if it must be read."""
        read_s, answer = self._kept.get(job, (float("-inf"), None))
        return answer if time.monotonic() - read_s < FRESH_S else None

    def forget(self, job: str) -> None:
        """Look at the database next time: this server has changed the job."""
        self._kept.pop(job, None)

    def read(self, job: str) -> JobAnswer | None:
        """Read the status of a job; None if there is no such job. Raises: StoreUnavailable."""
        return self._read({job}).get(job)

    def waits(self, token: str) -> int:
        """Count the requests of a token that wait."""
        return sum(waiter.token == token for waiter in self._waiting.values())

    async def changed(self, job: str, tag: str, timeout_s: float, token: str | None = None) -> JobAnswer | None:
        """Wait until the answer has another tag, and return it; None after the timeout, or when the server stops."""
        if self._is_closed:
            return None
        future: asyncio.Future[JobAnswer | None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = _Waiter(job, tag, token)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            return await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            return None
        finally:
            del self._waiting[future]

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._is_closed = True
        for future in self._waiting:
            _tell(future, None)

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(LOOK_EVERY_S)
            jobs = {waiter.job for waiter in self._waiting.values()}
            with suppress(StoreUnavailable):
                answers = await run_in_threadpool(self._read, jobs)
                for future, waiter in self._waiting.items():
                    if waiter.job in answers and answers[waiter.job].tag != waiter.tag:
                        _tell(future, answers[waiter.job])

    def _read(self, jobs: set[str]) -> dict[str, JobAnswer]:
        read_s = time.monotonic()
        with self._database.session(reads_only=True) as session:
            statuses = {job: queue.status(session, job) for job in jobs}
        found = {job: status.model_dump(mode="json") for job, status in statuses.items() if status is not None}
        answers = {job: JobAnswer(to_json(fields), digest(fields)) for job, fields in found.items()}
        if len(self._kept) + len(answers) > KEPT:
            self._kept.clear()
        self._kept.update({job: (read_s, answer) for job, answer in answers.items()})
        return answers


def _tell(future: asyncio.Future[JobAnswer | None], answer: JobAnswer | None) -> None:
    if not future.done():
        future.set_result(answer)
