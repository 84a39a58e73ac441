"""Answers about jobs, kept for a moment: half of the calls of a fleet look at the same job."""

from __future__ import annotations

import time
from functools import partial
from typing import NamedTuple

from pydantic_core import to_json

from wattune.records.served import digest
from wattune_server.jobs import queue
from wattune_server.store.database import Database
from wattune_server.threads import SharedReads

FRESH_S = 0.25
"""Time in seconds for which an answer is given without a look at the database."""

KEPT = 1000
"""Maximum number of answers in memory."""


class JobAnswer(NamedTuple):
    """The status of a job as JSON, its ``tag``, which is different after each change, and when it was read."""

    content: bytes
    tag: str
    read_s: float


class JobAnswers:
    """The newest answers about jobs."""

    def __init__(self, database: Database):
        self._database = database
        self._newest: dict[str, JobAnswer] = {}
        self._reads = SharedReads()
        self._changed_s = float("-inf")

    async def get(self, job: str) -> JobAnswer | None:
        """Get the answer about a job; None if there is no such job. Raises: StoreUnavailable."""
        answer = self._newest.get(job)
        if answer is not None and time.monotonic() - answer.read_s < FRESH_S:
            return answer
        return await self._reads.get(job, partial(self.read, job))

    def forget(self, job: str) -> None:
        """Look at the database next time: the job was changed."""
        self._changed_s = time.monotonic()
        self._reads.forget(job)
        self._newest.pop(job, None)

    def read(self, job: str) -> JobAnswer | None:
        """Read the status of a job; None if there is no such job. Raises: StoreUnavailable."""
        read_s = time.monotonic()
        with self._database.session(reads_only=True) as session:
            status = queue.status(session, job)
        if status is None:
            return None
        fields = status.model_dump(mode="json")
        answer = JobAnswer(to_json(fields), digest(fields), read_s)
        if read_s > self._changed_s:
            if len(self._newest) >= KEPT:
                self._newest.clear()
            self._newest[job] = answer
        return answer
