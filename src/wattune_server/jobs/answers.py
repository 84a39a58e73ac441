"""Answers about jobs, kept for a moment: half of the calls of a fleet look at the same job."""

from __future__ import annotations

import time
from typing import NamedTuple

from pydantic_core import to_json

from wattune.records.served import digest
from wattune_server.jobs import queue
from wattune_server.store.database import Database

FRESH_S = 0.25
"""Time in seconds for which an answer is given without a look at the database."""

KEPT = 1000
"""Maximum number of answers in memory."""


class JobAnswer(NamedTuple):
    """The status of a job as JSON, its ``tag``, which is different after each change, and when it was read."""

    content: bytes
    tag: str
    read_s: float


class JobAnswers(dict[str, JobAnswer]):
    """The newest answers about jobs, by the id of the job. Remove one to look at the database next time."""

    def fresh(self, job: str) -> JobAnswer | None:
        """Answer that was read within ``FRESH_S``; None if it must be read."""
        answer = self.get(job)
        return answer if answer is not None and time.monotonic() - answer.read_s < FRESH_S else None

    def read(self, database: Database, job: str) -> JobAnswer | None:
        """Read the status of a job; None if there is no such job. Raises: StoreUnavailable."""
        read_s = time.monotonic()
        with database.session(reads_only=True) as session:
            status = queue.status(session, job)
        if status is None:
            return None
        fields = status.model_dump(mode="json")
        if len(self) >= KEPT:
            self.clear()
        self[job] = answer = JobAnswer(to_json(fields), digest(fields), read_s)
        return answer
