"""One unit of a sweep: a training run of a model's proxy, or the choice of the next runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from wattune.algorithms import canonical
from wattune.proxy import ProxyRun, full_result, next_runs, pooled_result
from wattune.records import Evaluation, LearningCurve
from wattune.records.served import ServedModel
from wattune.sample_efficiency.scheduler import RunScheduler
from wattune.server.jobs.claims import Claim, Outcome
from wattune.server.jobs.queue import batch_sizes, proxy_target
from wattune.server.store import FileStore
from wattune.workloads import Workload
from wattune.workloads.served import proxy_workload

OnEvaluation = Callable[[Evaluation], None]
"""Callback during training; it stops the run by raising."""

Train = Callable[["Sweep", ProxyRun, OnEvaluation], LearningCurve]
"""Function that trains a run."""


class Sweep:
    """Proxy of one job, with its data loaded once. Raises: WorkloadError, UnknownName, OutputError."""

    def __init__(self, claim: Claim, files: FileStore, work: Path):
        self.job_id = claim.job_id
        self.model = claim.model
        self.request = claim.request
        self.algorithm = canonical(claim.request.algorithm)
        self.files = files
        self.folder = work / claim.job_id
        for sha256 in claim.model.files:
            files.checked(sha256)  # a damaged file must not lead to a curve
        self.workload = served_proxy(claim.model, files.path, proxy_target(claim.model, claim.request))
        self.workload.check()
        self.fingerprint = self.workload.fingerprint()

    def train(self, claim: Claim, on_evaluation: OnEvaluation, train: Train) -> LearningCurve:
        """Train a run, or return its curve if it was trained before but never reported.

        Raises: errors of ``on_evaluation`` and of the run; RecordError for an unusable checkpoint.
        """
        run = self._run(claim)
        finished = run.finished(self.workload)
        return train(self, run, on_evaluation) if finished is None else finished

    def forget(self, claim: Claim) -> None:
        """Remove the local files of a run, including its checkpoint."""
        run = self._run(claim)
        for path in (run.curve_path, run.checkpoint_path):
            if path is not None:
                path.unlink(missing_ok=True)

    def choose(self, claim: Claim) -> Outcome:
        """Choose the next runs (batch size, seed, budget in samples), or return the finished record if none are needed.

        The choice does not depend on the order in which the runs finished. Raises: WorkloadError if no run reached the
        target.
        """
        runs = [_read(self.files, sha256) for sha256 in claim.curve_hashes]
        if self.request.strategy == "full":
            runs_by_size = sorted(runs, key=lambda run: (run.batch_size, run.seed))
            return full_result(runs_by_size, name=self.model.model).dump()
        times = self.request.log_step_times
        allocation = RunScheduler(batch_sizes(self.model, self.request), log_step_times=times)
        if upcoming := next_runs(allocation, runs):
            return [(run.batch_size, run.seed, run.budget_samples) for run in upcoming]
        result = pooled_result(
            self.workload,
            allocation,
            runs,
            name=self.model.model,
            log_step_times=times,
            algorithm=self.algorithm,
        )
        return result.dump()

    def _run(self, claim: Claim) -> ProxyRun:
        return ProxyRun(
            self.fingerprint, claim.batch_size, claim.seed, self.algorithm, self.folder, claim.budget_samples
        )


def served_proxy(model: ServedModel, file: Callable[[str], Path], target: float | None) -> Workload:
    """Build the proxy workload of a model; ``file`` maps a hash to a path, ``target`` is the metric to reach."""
    weights = None if model.weights is None else file(model.weights.sha256)
    return replace(proxy_workload(model, weights, file), target=target)


def train_here(sweep: Sweep, run: ProxyRun, on_evaluation: OnEvaluation) -> LearningCurve:
    """Train in this process, with checkpoints in the folder of the job."""
    sweep.folder.mkdir(parents=True, exist_ok=True)
    return run.train(sweep.workload, on="cpu", on_evaluation=on_evaluation)


def _read(files: FileStore, sha256: str) -> LearningCurve:
    return LearningCurve.parse(json.loads(files.read(sha256)), source=f"the curve {sha256}")
