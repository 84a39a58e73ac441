"""One training run of a proxy without a device, from the initial weights to the target or the end of the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from wattune.algorithms import TrainingAlgorithm, learn, load_checkpoint, open_algorithm, save_checkpoint, state_bytes
from wattune.errors import RecordError
from wattune.proxy.training_run import TrainingRun
from wattune.records import Evaluation, LearningCurve
from wattune.workloads import Workload

CHECKPOINT_EVERY = 5
"""Evaluations between two checkpoints of a run, the most that a kill can lose."""


@dataclass(frozen=True)
class ProxyRun(TrainingRun):
    """A run of a workload, trained here, on this kind of processor."""

    on: Literal["cpu", "gpu"] = "cpu"

    @property
    def checkpoint_path(self) -> Path | None:
        """Path of the state of an unfinished run."""
        return self.folder and self.folder / f"b{self.batch_size:03d}-s{self.seed}.checkpoint"

    def finished(self, workload: Workload) -> LearningCurve | None:
        """Load the curve of an earlier call. Raises: RecordError if it belongs to another run."""
        curve = self.load()
        if curve is None:
            return None
        if not curve.reached and curve.budget_samples < self.budget(workload) and curve.samples >= curve.budget_samples:
            return None  # it was stopped early, and the budget is larger now
        if self.checkpoint_path is not None:
            self.checkpoint_path.unlink(missing_ok=True)
        return curve

    def budget(self, workload: Workload) -> int:
        """Samples after which the run ends."""
        return min(workload.budget_samples, self.budget_samples or workload.budget_samples)

    def train(self, workload: Workload) -> LearningCurve:
        """Train, resuming from a checkpoint if there is one, and save the curve.

        A metric or loss that is not finite ends the run: it has diverged and counts as having used up its budget.

        Raises: RecordError for a checkpoint of another run; OutputError; what the workload raises.
        """
        algorithm = open_algorithm(self.algorithm, workload, self.batch_size, seed=self.seed, on=self.on)
        samples, evaluations = self._resume(algorithm)
        batches = workload.batches(self.batch_size, seed=self.seed, start=samples)
        reached, budget = False, self.budget(workload)
        for at in learn(
            algorithm.run,
            batches,
            partial(workload.evaluate, algorithm.module),
            budget_samples=budget,
            evaluate_every=workload.evaluate_every,
            start_samples=samples,
        ):
            samples = at.samples
            if at.loss is None or not math.isfinite(at.metric):
                break
            evaluations.append(Evaluation(samples=samples, metric=at.metric, loss=at.loss))
            reached = workload.target is not None and workload.metric.reached(at.metric, workload.target)
            if reached or samples >= budget:
                break
            if len(evaluations) % CHECKPOINT_EVERY == 0:
                self._checkpoint(algorithm, samples, evaluations)
        result = self.save(
            workload,
            metric=workload.metric.name,
            reached=reached,
            samples=samples,
            budget_samples=budget,
            evaluations=tuple(evaluations),
            state_bytes=state_bytes(algorithm.state_dict()),
        )
        if self.checkpoint_path is not None:
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
            "on": self.on,
            "samples": samples,
            "evaluations": [evaluation.model_dump() for evaluation in evaluations],
        }
        save_checkpoint(self.checkpoint_path, algorithm.state_dict(), extra=extra)

    def _resume(self, algorithm: TrainingAlgorithm) -> tuple[int, list[Evaluation]]:
        path = self.checkpoint_path
        if path is None or not path.exists():
            return 0, []
        state, extra = load_checkpoint(path)
        self._check_identity(path, (extra["fingerprint"], extra["batch_size"], extra["seed"], extra["algorithm"]))
        if (begun_on := extra.get("on", "cpu")) != self.on:
            raise RecordError(
                f"{path} was begun on another kind of processor",
                value=begun_on,
                allowed=self.on,
                hint="go on there, or remove the file",
            )
        algorithm.load_state_dict(state)
        return extra["samples"], [Evaluation(**evaluation) for evaluation in extra["evaluations"]]
