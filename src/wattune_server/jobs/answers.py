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
    """The status of a job as JSON, and its ``tag``, which is different after each change."""

    content: bytes
    tag: str


class JobAnswers:
    """The newest answers about jobs, by the id of the job."""

    def __init__(self, database: Database):
        self._database = database
        self._kept: dict[str, tuple[float, JobAnswer]] = {}

    def fresh(self, job: str) -> JobAnswer | None:
        """Answer that was read within ``FRESH_S``; None if it must be read."""
        read_s, answer = self._kept.get(job, (float("-inf"), None))
        return answer if time.monotonic() - read_s < FRESH_S else None

    def forget(self, job: str) -> None:
        """Look at the database next time: this server has changed the job."""
        self._kept.pop(job, None)

    def read(self, job: str) -> JobAnswer | None:
        """Read the status of a job; None if there is no such job. Raises: StoreUnavailable."""
        read_s = time.monotonic()
        with self._database.session(reads_only=True) as session:
            status = queue.status(session, job)
        if status is None:
            return None
        fields = status.model_dump(mode="json")
        answer = JobAnswer(to_json(fields), digest(fields))
        if len(self._kept) >= KEPT:
            self._kept.clear()
        self._kept[job] = (read_s, answer)
        return answer
