"""Claims on units of work, and what a worker brings back: shared by the queue, the API and the workers. No torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from wattune.records import LearningCurve
from wattune.records.served import ServedModel, Sha256, SweepRequest
from wattune.server.jobs.queue import CHOOSE

LEASE_S = 30.0
"""Default duration of a lease in seconds after it was last renewed."""

RENEWALS = 6
"""Renewals in the duration of a lease."""

Outcome = list[tuple[int, int, int | None]] | dict[str, Any]
"""Result of a choice: the next runs (batch size, seed, budget in samples), or the finished record."""


class Claim(BaseModel):
    """A unit held by a worker. ``lease_s``: duration of its lease after each renewal.

    ``curve_hashes``: for a choosing step, the hashes of the job's curves so far.
    """

    model_config = ConfigDict(frozen=True)

    unit_id: int
    job_id: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]
    holder: str
    model: ServedModel
    request: SweepRequest
    batch_size: int
    seed: int
    budget_samples: int | None
    attempt: int
    lease_s: float = LEASE_S
    curve_hashes: tuple[Sha256, ...] = ()

    @property
    def renew_every_s(self) -> float:
        """Interval in seconds at which the worker renews its lease."""
        return self.lease_s / RENEWALS

    @property
    def chooses(self) -> bool:
        """True if the unit chooses the next runs instead of training."""
        return self.batch_size == CHOOSE

    def __str__(self) -> str:
        what = f"round {self.seed}" if self.chooses else f"batch size {self.batch_size}, seed {self.seed}"
        return f"job {self.job_id}, {what}"


@dataclass(frozen=True)
class RunResult:
    """Result of a run, whose curve is a file of the store."""

    curve_sha256: str
    bytes: int
    samples: int
    reached: bool


def content(curve: LearningCurve) -> bytes:
    """Serialize a learning curve canonically: the bytes depend on the run alone, not on its time."""
    record = curve.dump()
    record["provenance"].pop("created_at", None)
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
