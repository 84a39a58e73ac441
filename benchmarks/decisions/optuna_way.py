"""Optuna on the same rig: constrained TPE and a constrained Gaussian process over (batch size, clock).

The objective is ln of the time to the target, the constraint the mean power of a probe less the cap. Cells are ordered
grid indices, so that neighbours are near. Optuna's default of ten random trials would leave few of sixteen: here four
are random, the first at the smallest batch size and lowest clock. Optuna has no end of its own: a search probes for as
long as ours did on the same board.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import optuna

from benchmarks.decisions.boards import Cell, Reading, Rig
from benchmarks.decisions.profilers import ProbeOutcome, Samples, pick

STARTUP = 4
NOT_REACHED = 50.0


def tpe(rig: Rig, samples: Samples) -> ProbeOutcome:
    """Search by the tree-structured Parzen estimator, with the constraint."""
    return _run(rig, samples, parzen)


def gp(rig: Rig, samples: Samples) -> ProbeOutcome:
    """Search by a Gaussian process: expected improvement times the probability to meet the constraint."""
    return _run(rig, samples, gaussian)


def parzen(seed: int) -> optuna.samplers.BaseSampler:
    """The tree-structured Parzen estimator."""
    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)


def gaussian(seed: int) -> optuna.samplers.BaseSampler:
    """The Gaussian process."""
    return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP)


def optimize(
    objective: Callable[[optuna.Trial], float],
    sampler: Callable[[int], optuna.samplers.BaseSampler],
    seed: int,
    *,
    first: dict[str, int],
    trials: int,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Minimize the objective, from the ``first`` values on, for as many trials or until ``is_over``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # the Gaussian process
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(sampler=sampler(seed))
        study.enqueue_trial(first)
        study.optimize(objective, n_trials=trials, callbacks=[lambda study, _: study.stop() if is_over() else None])


def _run(rig: Rig, samples: Samples, sampler: Callable[[int], optuna.samplers.BaseSampler]) -> ProbeOutcome:
    outcome = ProbeOutcome()
    sizes, clocks = rig.board.batch_sizes, rig.board.clocks_mhz

    def objective(trial: optuna.Trial) -> float:
        row, level = trial.suggest_int("row", 0, len(sizes) - 1), trial.suggest_int("level", 0, len(clocks) - 1)
        cell = Cell(sizes[row], clocks[level])
        reading = rig.probe(cell, abort=False)
        assert isinstance(reading, Reading)
        outcome.measured[cell] = reading
        trial.set_constraint("cap", reading.power_mean_w / rig.cap_w - 1)
        needed = samples.get(cell.batch_size, math.inf)
        return math.log(reading.step_s / cell.batch_size * needed) if math.isfinite(needed) else NOT_REACHED

    optimize(
        objective,
        sampler,
        rig.seed,
        first={"row": 0, "level": 0},
        trials=len(sizes) * len(clocks),
        is_over=lambda: rig.seconds >= rig.budget_s,
    )
    outcome.pick = pick(rig, outcome.measured, samples)
    return outcome
