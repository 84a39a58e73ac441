"""Proxy runs of several seeds and one batch size as one program, where that is faster and gives the same curves.

Whether it does is checked for each workload and batch size, by a few steps of a stack and of separate runs.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wattune.algorithms import Step, TrainingAlgorithm, open_algorithm, place
from wattune.algorithms.stacked import Stack, StackedRun, StackPrograms
from wattune.algorithms.traced import Untraceable
from wattune.proxy.run import ProxyRun
from wattune.records import LearningCurve
from wattune.workloads import Data, Workload

MOST_STACKED = 8
"""Maximum number of runs in a stack."""

CHECKED_STEPS = 50
"""Steps that a stack and separate runs take before they are compared."""

TOLERANCE = 1e-5
"""Largest difference of a parameter, a loss or a metric then; relative for values above 1."""

TIMED_STEPS = 5
"""Steps, after a first one, whose median CPU time is that of a step; fewer if they are long."""

LONG_STEP_S = 0.02
"""CPU time of a separate step above which its arithmetic takes the time, and not PyTorch's overhead."""

MIN_FACTOR = 1.2
"""Least throughput of a stack, relative to separate runs, that is worth it."""

MIN_WORK_S = 5.0
"""Least CPU time of separate runs to their budgets that is worth the check, which takes tenths of a second.

Runs that reach the target end long before.
"""

SEEDS_AT_ONCE, SEEDS_FACTOR = 3, 2.25
"""Seeds of a batch size to train where one was requested, if a stack of them has at least this throughput.

They then take at most 4/3 of the time of one run. What they bring is in docs/results.md, "Proxy runs as one program".
"""


class RunUnit(NamedTuple):
    """Runs that one process trains: one run, or a stack. ``factor``: throughput relative to separate runs."""

    runs: tuple[ProxyRun, ...]
    factor: float = 1.0


class RunUnits:
    """Partition of runs into units: stacks where these are faster."""

    def __init__(self, workload: Workload, algorithm: str):
        self._workload, self._algorithm = workload, algorithm
        self._factors: dict[tuple[int, int], float] = {}
        self._refused = False

    def units(self, runs: Sequence[ProxyRun], processes: int, report: Callable[[str], None]) -> list[RunUnit]:
        """Partition the runs, in their order, so that there is a unit for each process if possible.

        ``report`` receives each result of a check once.
        """
        groups: dict[tuple[int, int], list[ProxyRun]] = {}
        for run in runs:
            if run.checkpoint_path is None or not run.checkpoint_path.exists():  # an interrupted run resumes alone
                groups.setdefault((run.batch_size, run.budget(self._workload)), []).append(run)
        parts = math.ceil(processes / max(1, len(groups)))
        unit_of: dict[ProxyRun, RunUnit] = {run: RunUnit((run,)) for run in runs}
        for group in groups.values():
            width = min(MOST_STACKED, math.ceil(len(group) / parts))
            factor = self._factor(group[0], width, report) if width > 1 else 0.0
            if factor >= MIN_FACTOR:
                for at in range(0, len(group), width):
                    unit = RunUnit(tuple(group[at : at + width]), factor)
                    unit_of |= dict.fromkeys(unit.runs, unit)
        return list(dict.fromkeys(unit_of.values()))

    def seeds(self, run: ProxyRun, report: Callable[[str], None]) -> int:
        """Number of seeds to train at once where one run like ``run`` was requested."""
        return SEEDS_AT_ONCE if self._factor(run, SEEDS_AT_ONCE, report) >= SEEDS_FACTOR else 1

    def _factor(self, run: ProxyRun, width: int, report: Callable[[str], None]) -> float:
        key = run.batch_size, width
        if key not in self._factors and not self._refused:
            try:
                with one_thread():
                    factor = check_stack(self._workload, self._algorithm, run, width).factor
            except Untraceable as error:
                self._refused = True
                report(f"each run is trained separately: {error}")
            else:
                self._factors[key] = factor
                if factor >= MIN_FACTOR:
                    report(f"batch size {run.batch_size}: {width} runs as one program, {factor:.1f} times as fast")
        return 0.0 if self._refused else self._factors[key]


def train_unit(workload: Workload, unit: RunUnit) -> list[LearningCurve]:
    """Train the runs of a unit, and save their curves. Raises: what a run raises."""
    if len(unit.runs) == 1:
        return [unit.runs[0].train(workload)]
    curves = dict(_train_stack(workload, unit))
    return [curves[run] for run in unit.runs]


class StackCheck(NamedTuple):
    """Comparison of a stack with separate runs. ``factor``: its throughput relative to theirs, by CPU time; 0 if it
    cannot be worth it. ``difference``: see ``TOLERANCE``; None if ``factor`` is below ``MIN_FACTOR``.
    """

    factor: float
    difference: float | None = None


def check_stack(workload: Workload, algorithm: str, run: ProxyRun, width: int) -> StackCheck:
    """Compare a stack of ``width`` runs like ``run`` with separate runs. The number of threads is the caller's.

    Raises: Untraceable if the workload cannot be stacked, or with other results; what the workload raises.
    """
    if algorithm != "backprop":
        raise Untraceable(f"the algorithm is {algorithm}, and only backprop is stacked")
    if not isinstance(workload.loaded, Data):
        raise Untraceable("its data are loaders of the user, whose batches may differ in shape")
    first = _Separate(workload, run.batch_size, 0)
    step_s = _median_s(first)
    work_s = step_s * width * run.budget(workload) / run.batch_size
    if step_s > LONG_STEP_S or work_s < MIN_WORK_S:
        return StackCheck(0.0)
    stack = _Stacked(workload, run.batch_size, width)
    factor = width * step_s / _median_s(stack)
    if factor < MIN_FACTOR:
        return StackCheck(factor)
    last = _Separate(workload, run.batch_size, width - 1)
    difference = max(stack.difference(separate) for separate in (first, last))
    if difference > TOLERANCE:
        form = "{} steps as one program differ from separate ones by {:.1e}, more than {:.0e}"
        raise Untraceable(form.format(CHECKED_STEPS, difference, TOLERANCE))
    return StackCheck(factor, difference)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread, and restore their number afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _programs(workload: Workload) -> StackPrograms:
    """The traced programs of the workload, for all stacks of this process."""
    return StackPrograms(workload)


def _open(workload: Workload, batch_size: int, seeds: Sequence[int]) -> tuple[Stack, list[StackedRun]]:
    members = [StackedRun(workload, batch_size, seed=seed, on=place("cpu")) for seed in seeds]
    streams = [workload.batches(batch_size, seed=seed) for seed in seeds]
    return Stack(_programs(workload), members, streams), members


def _train_stack(workload: Workload, unit: RunUnit) -> Iterator[tuple[ProxyRun, LearningCurve]]:
    stack, members = _open(workload, unit.runs[0].batch_size, [run.seed for run in unit.runs])
    metrics = _Metrics(workload, stack)
    active = {
        member: (run, run.training(workload, member, partial(metrics.of, member)))
        for member, run in zip(members, unit.runs, strict=True)
    }
    while active:  # once around is one evaluation of every run
        for member, (run, training) in list(active.items()):
            try:
                next(training)
            except StopIteration as end:
                del active[member]
                member.leave()
                yield run, end.value
        if len(active) * unit.factor <= len(members):  # alone, the last runs take no longer than the whole stack
            for member in active:
                member.leave()


class _Metrics:
    """The metric of each run of a stack, computed for all of them when the first one is evaluated."""

    def __init__(self, workload: Workload, stack: Stack):
        self._workload, self._stack = workload, stack
        self._at_step = -1
        self._metrics: dict[StackedRun, float] = {}

    def of(self, member: StackedRun, module: nn.Module) -> float:
        """The metric of a run after the steps so far."""
        if not member.is_stacked:
            return self._workload.evaluate(module)
        if self._at_step != self._stack.steps:
            self._at_step, self._metrics = self._stack.steps, self._evaluate()
        return self._metrics[member]

    def _evaluate(self) -> dict[StackedRun, float]:
        outputs: dict[StackedRun, list[Tensor]] = {}
        targets = []
        for x, y in self._workload.test_batches():
            targets.append(y)
            for member, output in self._stack.outputs(x).items():
                outputs.setdefault(member, []).append(output)
        score = self._workload.metric.score or self._workload.loss
        return {member: float(score(torch.cat(parts), torch.cat(targets))) for member, parts in outputs.items()}


# ------------------------------------------------------------------------------------------------------- the check


class _Separate:
    """A separate run in a check, with the loss of each step so far."""

    def __init__(self, workload: Workload, batch_size: int, seed: int):
        self.seed = seed
        self.losses: list[float] = []
        self.algorithm: TrainingAlgorithm = open_algorithm("backprop", workload, batch_size, seed=seed)
        self._steps: Iterator[Step] = self.algorithm.run(workload.batches(batch_size, seed=seed))

    def step(self) -> None:
        """Take a step."""
        self.losses.append(next(self._steps).loss)


class _Stacked:
    """A stack in a check, of the seeds from 0 to its width."""

    def __init__(self, workload: Workload, batch_size: int, width: int):
        self._workload = workload
        self._stack, self._members = _open(workload, batch_size, range(width))
        self._metrics = _Metrics(workload, self._stack)
        self._runs = [member.run(()) for member in self._members]
        self._losses: list[list[float]] = [[] for _ in self._members]

    def step(self) -> None:
        """Take a step of all runs."""
        for run, losses in zip(self._runs, self._losses, strict=True):
            losses.append(next(run).loss)

    def difference(self, separate: _Separate) -> float:
        """Largest difference from a separate run in losses, parameters and metric, after ``CHECKED_STEPS`` steps."""
        member, losses = self._members[separate.seed], self._losses[separate.seed]
        while len(losses) < CHECKED_STEPS:
            self.step()
        while len(separate.losses) < CHECKED_STEPS:
            separate.step()
        metrics = (self._metrics.of(member, member.module), self._workload.evaluate(separate.algorithm.module))
        pairs: Iterable[tuple[Tensor, Tensor]] = [
            (torch.tensor(losses), torch.tensor(separate.losses)),
            (torch.tensor(metrics[0]), torch.tensor(metrics[1])),
            *zip(member.module.parameters(), separate.algorithm.module.parameters(), strict=True),
        ]
        return max(
            float(((one - other).abs() / other.abs().clamp(min=1)).nan_to_num(math.inf).max())
            for one, other in ((one.detach(), other.detach()) for one, other in pairs)
        )


def _median_s(runs: _Separate | _Stacked) -> float:
    times: list[float] = []
    while len(times) <= TIMED_STEPS and sum(times[1:]) <= TIMED_STEPS * LONG_STEP_S:
        begin = time.thread_time()
        runs.step()
        times.append(time.thread_time() - begin)
    return statistics.median(times[1:])
