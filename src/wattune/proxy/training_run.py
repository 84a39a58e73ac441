"""Identity of a training run without a device, and the curve that an earlier call has saved of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.errors import RecordError
from wattune.records import LearningCurve, provenance


@dataclass(frozen=True)
class TrainingRun:
    """The identity of a run: workload (by its fingerprint), batch size, seed, algorithm, and the folder of its curve.

    The fingerprint is computed in the process that starts the sweep: a function defined in a script has another name
    in its workers. ``budget_samples``: a smaller budget than the workload's, if more would be wasted.
    """

    fingerprint: str
    batch_size: int
    seed: int
    algorithm: str
    folder: Path | None
    budget_samples: int | None = None

    @property
    def curve_path(self) -> Path | None:
        """Path of the finished learning curve."""
        return self.folder and self.folder / f"b{self.batch_size:03d}-s{self.seed}.json"

    def load(self) -> LearningCurve | None:
        """Load the curve of an earlier call. Raises: RecordError if it belongs to another run."""
        path = self.curve_path
        if path is None or not path.exists():
            return None
        curve = LearningCurve.load(path)
        self._check_identity(path, (curve.fingerprint, curve.batch_size, curve.seed, curve.algorithm))
        return curve

    def save(self, workload: Any, **outcome: Any) -> LearningCurve:
        """Save the curve of this run, with these fields of its outcome. Raises: OutputError."""
        curve = LearningCurve(
            workload=workload.name,
            algorithm=self.algorithm,
            batch_size=self.batch_size,
            seed=self.seed,
            target=workload.target,
            fingerprint=self.fingerprint,
            provenance=provenance(
                "measured", model=workload.model_fingerprint(), data=workload.data_fingerprint(), seed=self.seed
            ),
            **outcome,
        )
        if self.curve_path is not None:
            curve.save(self.curve_path)
        return curve

    def _check_identity(self, path: Path, identity: tuple[str | None, int, int, str]) -> None:
        expected = (self.fingerprint, self.batch_size, self.seed, self.algorithm)
        if identity != expected:
            form = "workload {}, batch size {}, seed {}, {}"
            raise RecordError(
                f"{path} belongs to another training run",
                value=form.format(*identity),
                allowed=form.format(*expected),
                hint="give another folder, or remove the file",
            )


Results = Generator[tuple[Any, LearningCurve], None, None]
"""Finished runs with their curves."""

TrainRuns = Callable[[Sequence[Any]], Results]
"""Trains runs, and yields each with its curve as it finishes."""
