"""Claims on units of work, and what a worker brings back: shared by the queue, the API and the workers. No torch."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from wattune.records import LearningCurve
from wattune.records.served import ServedFile, ServedModel, Sha256, SweepRequest
from wattune.server.jobs.queue import CHOOSE
from wattune.version import __version__

LEASE_S = 30.0
"""Default duration of a lease in seconds after it was last renewed."""

RENEWALS = 6
"""Renewals in the duration of a lease."""

WorkerDevice = Literal["cpu", "cuda"]
"""Processor that a worker on another machine trains on."""

Outcome = list[tuple[int, int, int | None]] | dict[str, Any]
"""Result of a choice: the next runs (batch size, seed, budget in samples), or the finished record."""


class Claim(BaseModel):
    """A unit held by a worker. ``lease_s``: duration of its lease after each renewal.

    ``curve_hashes``: for a choosing step, the hashes of the job's curves so far. ``files``: for a worker on another
    machine, what it needs of the store.
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
    files: tuple[ServedFile, ...] = ()

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


@functools.cache
def torch_version() -> str | None:
    """Version of the installed torch, without importing it; None if there is none."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def version_problem(wattune: str, torch: str | None) -> tuple[str, str, str] | None:
    """Difference of a worker's versions from the server's: its name and both values; None if there is none.

    Builds of one version of torch (2.9.1+cpu, 2.9.1+cu128) are equal here.
    """
    if wattune != __version__:
        return "the worker's version of wattune", wattune, __version__
    ours = torch_version()
    if ours is not None and (torch or "").partition("+")[0] != ours.partition("+")[0]:
        return "the worker's version of torch", torch or "none", ours
    return None
