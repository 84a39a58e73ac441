"""A unit of a sweep, worked on: the proxy of a served model is trained, or the next runs are chosen."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from wattune.algorithms import canonical
from wattune.decisions.allocation import Allocation
from wattune.efficiency import Run, full_result, next_runs, pooled_result
from wattune.records import Evaluation, LearningCurve
from wattune.records.served import ServedModel
from wattune.server.jobs.leases import Claim, Outcome
from wattune.server.jobs.queue import batch_sizes, target
from wattune.server.store import FileStore
from wattune.workloads import Workload
from wattune.workloads.served import proxy_workload

Seen = Callable[[Evaluation | None], None]
"""Is called now and then while a run is trained, and stops it by what it raises."""

Train = Callable[["Sweep", Run, Seen], LearningCurve]
"""How a run is trained: here, or elsewhere."""


_BUILDS = threading.Lock()
"""Initial weights are drawn from the random numbers of the process: two threads at once would get others."""


class Sweep:
    """The proxy of one job; its data is read once. Raises: WorkloadError, UnknownName, OutputError."""

    def __init__(self, claim: Claim, files: FileStore, work: Path):
        self.job_id = claim.job_id
        self.model = claim.model
        self.request = claim.request
        self.algorithm = canonical(claim.request.algorithm)
        self.files = files
        self.folder = work / claim.job_id
        for sha256 in claim.model.files:
            files.checked(sha256)  # what is damaged there must not become a curve
        self.workload = served_proxy(claim.model, files.path, target(claim.model, claim.request))
        with _BUILDS:
            self.workload.check()
            self.fingerprint = self.workload.fingerprint()

    def train(self, claim: Claim, seen: Seen, how: Train) -> LearningCurve:
        """The curve of a run; one that was trained before and could not be told of is taken as it is.

        Raises: what ``seen`` raises; RecordError for a checkpoint that cannot be used; what the run raises.
        """
        run = self._run(claim)
        kept = run.finished(self.workload)
        return how(self, run, seen) if kept is None else kept

    def forget(self, claim: Claim) -> None:
        """Remove what is kept of a run here, its checkpoint also."""
        run = self._run(claim)
        for path in (run.curve_path, run.checkpoint_path):
            if path is not None:
                path.unlink(missing_ok=True)

    def choose(self, claim: Claim) -> Outcome:
        """Which runs come next (batch size, seed, budget in samples), or where none do, the finished record.

        It is the same for the same runs, in whatever order they were finished. Raises: WorkloadError where no run
        reached the target.
        """
        runs = [_read(self.files, sha256) for sha256 in claim.known]
        if self.request.strategy == "full":
            ordered = sorted(runs, key=lambda run: (run.batch_size, run.seed))
            return full_result(ordered, name=self.model.model).dump()
        times = self.request.log_step_times
        allocation = Allocation(batch_sizes(self.model, self.request), log_step_times=times)
        wanted = next_runs(allocation, runs)
        if wanted:
            return [(one.batch_size, one.seed, one.budget_samples) for one in wanted]
        found = pooled_result(
            self.workload,
            allocation,
            runs,
            name=self.model.model,
            log_step_times=times,
            algorithm=self.algorithm,
        )
        return found.dump()

    def _run(self, claim: Claim) -> Run:
        return Run(self.fingerprint, claim.batch_size, claim.seed, self.algorithm, self.folder, claim.budget_samples)


def served_proxy(model: ServedModel, file: Callable[[str], Path], wanted: float | None) -> Workload:
    """The proxy of a model whose files lie where ``file`` says, until the metric is ``wanted``."""
    weights = None if model.weights is None else file(model.weights.sha256)
    return replace(proxy_workload(model, weights, file), target=wanted)


def train_here(sweep: Sweep, run: Run, seen: Seen) -> LearningCurve:
    """Train in this process, with checkpoints in the folder of the job."""
    sweep.folder.mkdir(parents=True, exist_ok=True)
    return run.train(sweep.workload, seen=seen)


def content(curve: LearningCurve) -> bytes:
    """A learning curve in its one form: its bytes depend on the run alone, not on when it was made."""
    said = curve.dump()
    said["provenance"].pop("created_at", None)
    return json.dumps(said, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _read(files: FileStore, sha256: str) -> LearningCurve:
    return LearningCurve.parse(json.loads(files.read(sha256)), source=f"the curve {sha256}")
