"""One training without a device, from the initial weights to the target or the end of the budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wattune.algorithms import TrainingAlgorithm, learn, load_checkpoint, open_algorithm, save_checkpoint, state_bytes
from wattune.errors import RecordError
from wattune.records import Evaluation, LearningCurve, provenance
from wattune.workloads import Workload

CHECKPOINT_EVERY = 5
"""Evaluations between two checkpoints of a run: what a kill loses at most."""


@dataclass(frozen=True)
class Run:
    """Which training: workload (by its fingerprint), batch size, seed and algorithm, and where its curve is kept.

    The fingerprint is that of the process that started the sweep: the name of a function that stands in a script
    is another one in its workers. ``budget_samples``: less than the workload's, where more is of no use.
    """

    fingerprint: str
    batch_size: int
    seed: int
    algorithm: str
    folder: Path | None
    budget_samples: int | None = None

    @property
    def curve_path(self) -> Path | None:
        """The finished learning curve."""
        return self.folder and self.folder / f"b{self.batch_size:03d}-s{self.seed}.json"

    @property
    def checkpoint_path(self) -> Path | None:
        """The state of an unfinished run."""
        return self.folder and self.folder / f"b{self.batch_size:03d}-s{self.seed}.checkpoint"

    def finished(self, workload: Workload) -> LearningCurve | None:
        """The curve of an earlier call. Raises: RecordError where it is that of another training."""
        path = self.curve_path
        if path is None or not path.exists():
            return None
        kept = LearningCurve.load(path)
        self._own(path, (kept.fingerprint, kept.batch_size, kept.seed, kept.algorithm))
        if not kept.reached and kept.budget_samples < self.budget(workload) and kept.samples >= kept.budget_samples:
            return None  # it was given up early, and is wanted to its end now
        if self.checkpoint_path is not None:
            self.checkpoint_path.unlink(missing_ok=True)
        return kept

    def budget(self, workload: Workload) -> int:
        """Samples after which it ends."""
        return min(workload.budget_samples, self.budget_samples or workload.budget_samples)

    def train(self, workload: Workload, *, seen: Callable[[Evaluation], None] | None = None) -> LearningCurve:
        """Train, going on from a checkpoint where there is one, and keep the curve.

        A metric or a loss that is not finite ends the run: it has diverged and counts as one that used up its budget.
        ``seen`` is called with each evaluation; what it raises stops the run, which can go on later.

        Raises: RecordError for a checkpoint of another training; OutputError; what the workload raises.
        """
        algorithm = open_algorithm(self.algorithm, workload, self.batch_size, seed=self.seed)
        samples, evaluations = self._resume(algorithm)
        batches = workload.batches(self.batch_size, seed=self.seed, start=samples)
        reached, budget = False, self.budget(workload)
        for at in learn(
            algorithm,
            batches,
            workload.evaluate,
            budget_samples=budget,
            evaluate_every=workload.evaluate_every,
            start_samples=samples,
        ):
            samples = at.samples
            if at.loss is None or not math.isfinite(at.metric):
                break
            evaluations.append(Evaluation(samples=samples, metric=at.metric, loss=at.loss))
            if seen is not None:
                seen(evaluations[-1])
            reached = workload.target is not None and workload.metric.reached(at.metric, workload.target)
            if reached:
                break
            if len(evaluations) % CHECKPOINT_EVERY == 0:
                self._checkpoint(algorithm, samples, evaluations)
        result = LearningCurve(
            workload=workload.name,
            algorithm=self.algorithm,
            batch_size=self.batch_size,
            seed=self.seed,
            metric=workload.metric.name,
            target=workload.target,
            reached=reached,
            samples=samples,
            budget_samples=budget,
            evaluations=tuple(evaluations),
            fingerprint=self.fingerprint,
            state_bytes=state_bytes(algorithm.state_dict()),
            provenance=provenance(
                "measured", model=workload.model_fingerprint(), data=workload.data_fingerprint(), seed=self.seed
            ),
        )
        if self.curve_path is not None and self.checkpoint_path is not None:
            result.save(self.curve_path)
            self.checkpoint_path.unlink(missing_ok=True)
        return result

    def _checkpoint(self, algorithm: TrainingAlgorithm, samples: int, evaluations: list[Evaluation]) -> None:
        if self.checkpoint_path is None:
            return
        extra = {
            "fingerprint": self.fingerprint,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "algorithm": self.algorithm,
            "samples": samples,
            "evaluations": [evaluation.model_dump() for evaluation in evaluations],
        }
        save_checkpoint(self.checkpoint_path, algorithm.state_dict(), extra=extra)

    def _resume(self, algorithm: TrainingAlgorithm) -> tuple[int, list[Evaluation]]:
        path = self.checkpoint_path
        if path is None or not path.exists():
            return 0, []
        state, extra = load_checkpoint(path)
        found = (extra["fingerprint"], extra["batch_size"], extra["seed"], extra["algorithm"])
        self._own(path, found)
        algorithm.load_state_dict(state)
        return extra["samples"], [Evaluation(**evaluation) for evaluation in extra["evaluations"]]

    def _own(self, path: Path, found: tuple[str | None, int, int, str]) -> None:
        wanted = (self.fingerprint, self.batch_size, self.seed, self.algorithm)
        if found != wanted:
            form = "workload {}, batch size {}, seed {}, {}"
            raise RecordError(
                f"{path} is of another training",
                value=form.format(*found),
                allowed=form.format(*wanted),
                hint="give another folder, or remove the file",
            )
