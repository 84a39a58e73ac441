"""Training runs of a program: it trains in a process of its own, and its output tells what it has learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from wattune.errors import OutOfDeviceMemory, WorkloadError
from wattune.program.learning import learn
from wattune.program.workload import ProgramWorkload
from wattune.proxy.training_run import Results, TrainingRun
from wattune.records import LearningCurve

WRONG_WAY = 0.75
"""Share of the later metrics, farther from the target than the second one, from which on it goes away from there."""


@dataclass(frozen=True)
class ProgramRun(TrainingRun):
    """A run of a program."""

    def finished(self, workload: ProgramWorkload) -> LearningCurve | None:
        """Load the curve of an earlier call: one that ended early tells as much as before."""
        return self.load()

    def train(self, workload: ProgramWorkload) -> LearningCurve:
        """Run the program until its target, its own end, or the end of the budget, and save the curve.

        A metric that is not finite ends the run: it has diverged. Raises: as ``learn``.
        """
        try:
            learned = learn(workload, self.batch_size, seed=self.seed, budget_samples=self.budget_samples)
        except OutOfDeviceMemory as error:
            raise WorkloadError(str(error), hint="leave it out of the batch sizes") from error
        samples = learned.samples
        return self.save(
            workload,
            metric=workload.metric,
            reached=learned.ended == "target reached",
            samples=samples,
            # More than it has trained if it diverged, as for a run of a workload.
            budget_samples=samples + 1 if learned.ended == "diverged" else samples,
            evaluations=tuple(one.model_copy(update={"time_s": None}) for one in learned.evaluations),
        )


def in_order(workload: ProgramWorkload, runs: Sequence[ProgramRun]) -> Results:
    """Train the runs one after the other, since a program may use all cores."""
    for run in runs:
        yield run, run.train(workload)


def check_first_metrics(workload: ProgramWorkload, curves: Sequence[LearningCurve]) -> None:
    """Check that not every curve of two batch sizes or more reached the target at its first metric.

    A small batch size alone may do that. Raises: WorkloadError.
    """
    if len({curve.batch_size for curve in curves}) > 1 and all(
        curve.reached and len(curve.evaluations) == 1 for curve in curves
    ):
        raise WorkloadError(
            "the first metric of the program is past the target already",
            value=f"{curves[0].evaluations[0].metric:g}",
            allowed=f"a target that training reaches later than {workload.target:g}",
            hint=None if workload.lower_is_better else "or --lower-is-better",
        )


def check_curves(workload: ProgramWorkload, curves: Sequence[LearningCurve]) -> None:
    """Check that the curves of a program so far can be compared.

    Raises: WorkloadError if all metrics go away from the target, or if the batch size changes nothing.
    """
    if all(not curve.reached and _goes_away(workload, curve) for curve in curves):
        first, last = (curves[0].evaluations[place].metric for place in (0, -1))
        raise WorkloadError(
            "the metric goes away from the target",
            value=f"from {first:g} to {last:g}",
            allowed=f"a way to {workload.target:g}",
            hint="leave --lower-is-better out" if workload.lower_is_better else "give --lower-is-better",
        )
    for one, other in combinations(curves, 2):
        if one.seed == other.seed and _is_same_run(one, other):
            raise WorkloadError(
                f"the program trains the same at batch sizes {one.batch_size} and {other.batch_size}",
                hint="does it use {batch_size}?",
            )


def _goes_away(workload: ProgramWorkload, curve: LearningCurve) -> bool:
    """True if the first metric is the best one and the second is better than most later ones: a metric levels off."""
    metrics = [one.metric for one in curve.evaluations]
    if len(metrics) < 3 or not all(workload.is_better(metrics[0], later) for later in metrics[1:]):
        return False
    away = [workload.is_better(metrics[1], later) for later in metrics[2:]]
    return sum(away) >= WRONG_WAY * len(away)


def _is_same_run(one: LearningCurve, other: LearningCurve) -> bool:
    """True if both print the same metrics, three different ones or more.

    The samples tell nothing: a line is read late, after a number of further steps that is another one in each run.
    """
    pairs = list(zip(one.evaluations, other.evaluations, strict=False))
    return len({mine.metric for mine, _ in pairs}) >= 3 and all(mine.metric == its.metric for mine, its in pairs)
