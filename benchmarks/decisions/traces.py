"""Real GPUs: the recorded traces of Zeus, estimated on some of the recorded runs and judged on the others.

The knob is a power limit, so a cap is a limit, and the time of an epoch under it was measured once. Batch sizes reach
16384. The epochs of a run are counted until the first evaluation that meets the target, one per epoch. The runs are
whole training runs of the workload itself, and the recipe's default batch size is the user's own.

Source of the data: You, Chung, Chowdhury (NSDI 2023), github.com/ml-energy/zeus, its NSDI '23 trace, Apache-2.0.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.decisions import estimators
from benchmarks.decisions.estimators import Bank, Decision, covered
from benchmarks.decisions.scoring import regrets, rounded
from benchmarks.decisions.sweeps import Run, errors, truth
from wattune.errors import InputError

SPLITS = 4
FEWEST_EPOCHS = 3.0
"""Least epochs of the fastest batch size: targets that are met sooner are skipped, since an epoch is the resolution."""

SURE = 1.64
"""Standard errors of the judging runs beyond which a loss is one of the choice, and not of the judge."""

NONE = 0.005
"""Gains within this distance of 1 count as no gain."""

EPOCH = 1.0

DEFAULTS = {"cifar100": 1024, "imagenet": 256, "movielens-1m": 1024}
"""Batch sizes of the workloads' authors. Source: Zeus, NSDI 2023, table 1."""


class Task(NamedTuple):
    """A data set with its optimizer, as the traces name them."""

    dataset: str
    optimizer: str


Times = dict[tuple[str, Task], dict[int, dict[int, float]]]
"""(GPU, task) -> power limit in watts -> batch size -> seconds of an epoch."""

Way = Callable[[Bank, dict[int, float], dict[str, Any]], Decision]
"""Method that chooses: the runs that it may make, the seconds of an epoch by batch size, and the place of the case."""

RecordedRuns = dict[tuple[Task, float], dict[int, list[Run]]]
"""(task, target) -> batch size -> epochs of each recorded run."""


def read_times(folder: Path) -> Times:
    """Read all tables of times in the folder."""
    times: Times = {}
    for gpu, task, row in powers(folder):
        limit = times.setdefault((gpu, task), {}).setdefault(int(float(row["power_limit"])), {})
        limit[int(row["batch_size"])] = float(row["time_per_epoch"])
    return times


def powers(folder: Path) -> Iterator[tuple[str, Task, dict[str, str]]]:
    """The GPU, the task, and the recorded row of each pair of batch size and power limit."""
    for path in sorted(folder.glob("summary_power_*.csv")):
        for row in rows_of(path):
            yield path.stem.removeprefix("summary_power_"), Task(row["dataset"], row["optimizer"]), row


def read_runs(folder: Path) -> RecordedRuns:
    """Read the epochs to each target; a run that missed one is censored at the last epoch at which it met another."""
    rows = list(rows_of(folder / "summary_train.csv"))
    last: dict[tuple[str, ...], float] = {}
    for row in rows:
        if row["target_epoch"] != "nan":
            last[_run_key(row)] = max(last.get(_run_key(row), 0.0), float(row["target_epoch"]))
    epochs_by_target: RecordedRuns = {}
    for row in rows:
        reached = row["target_epoch"] != "nan"
        epochs = float(row["target_epoch"]) if reached else last.get(_run_key(row), 1.0)
        key = Task(row["dataset"], row["optimizer"]), float(row["target_metric"])
        epochs_by_target.setdefault(key, {}).setdefault(int(row["batch_size"]), []).append(Run(epochs, reached))
    return epochs_by_target


def _run_key(row: dict[str, str]) -> tuple[str, ...]:
    return row["dataset"], row["optimizer"], row["batch_size"], row["run"]


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """The rows of one of the traces' tables. Raises: InputError if it does not exist."""
    if not path.is_file():
        raise InputError("no such table", value=str(path), hint="give the folder of the Zeus traces")
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def cases(folder: Path) -> list[dict[str, Any]]:
    """Every GPU, task, limit and split of the runs to a target; one row per method that chooses the batch size.

    Targets are those that two batch sizes reach, the fastest not too soon. Some runs choose, the others judge.
    """
    times, rows = read_times(folder), []
    for ((task, target), runs), number in product(sorted(read_runs(folder).items()), range(SPLITS)):
        ours, judging = halves(runs, random.Random(f"{task} {target} {number}"))
        true, error = truth(judging), errors(judging)  # median epochs, and the standard error of their logarithm
        if sum(map(math.isfinite, true.values())) < 2 or min(true.values()) < FEWEST_EPOCHS:
            continue
        for (gpu, of), limits in times.items():
            for limit_w, seconds in limits.items() if of == task else ():
                epoch_s = {size: seconds[size] for size in true if size in seconds}
                if sum(math.isfinite(true[size]) for size in epoch_s) >= 2:
                    place = {"gpu": gpu, "dataset": task.dataset, "target": target, "limit_w": limit_w, "split": number}
                    rows += _case(place, {size: ours[size] for size in epoch_s}, epoch_s, true, error)
    return rows


def halves(runs: dict[int, list[Run]], draw: random.Random) -> tuple[dict[int, list[Run]], dict[int, list[Run]]]:
    """Split the runs of each batch size in two at random; batch sizes with a single run are left out."""
    first, second = {}, {}
    for size in sorted(runs):
        if len(runs[size]) > 1:
            order = draw.sample(runs[size], len(runs[size]))
            middle = (len(order) + 1) // 2
            first[size], second[size] = order[:middle], order[middle:]
    return first, second


def _case(
    place: dict[str, Any],
    runs: dict[int, list[Run]],
    epoch_s: dict[int, float],
    true: dict[int, float],
    error: dict[int, float],
) -> Iterator[dict[str, Any]]:
    cost = {size: epoch_s[size] * true[size] for size in epoch_s}
    best = min(cost.values())
    for name, way in WAYS.items():
        bank = Bank(runs)
        decision = way(bank, epoch_s, place)
        chosen = decision.batch_size
        yield place | {
            "way": name,
            "group": f"{place['gpu']} {place['dataset']}",
            "epochs": min(true.values()),
            "batch_size": chosen,
            "cost": cost[chosen] if chosen is not None else math.inf,
            "error": error[chosen] if chosen is not None else 0.0,
            "best": best,
            "regret": cost[chosen] / best - 1 if chosen is not None else math.inf,
            "runs": len(bank.made),
            "spent_s": sum(run.samples * epoch_s[size] for size, run in bank.made),
            "stated": decision.expected_regret,
            "covered": covered(decision, true),
            "covered_but_error": covered(decision, true, error),
        }


def _ours(*, own: bool = True) -> Way:
    def way(bank: Bank, epoch_s: dict[int, float], place: dict[str, Any]) -> Decision:
        default = _default(bank, epoch_s, place).batch_size if own else None
        return estimators.ours(bank, epoch_s, spacing=EPOCH, own=default, whole=True)

    return way


def _largest(bank: Bank, epoch_s: dict[int, float], place: dict[str, Any]) -> Decision:
    """Choose the largest batch size that reaches the target in any of the available runs."""
    reaching = [size for size in epoch_s if any(run.reached for run in bank.runs[size])]
    return Decision(max(reaching, default=None))


def _default(bank: Bank, epoch_s: dict[int, float], place: dict[str, Any]) -> Decision:
    """The default of the data set's recipe, or the recorded batch size that is nearest to it."""
    default = DEFAULTS.get(place["dataset"], max(epoch_s))
    return Decision(min(epoch_s, key=lambda size: abs(math.log(size / default))))


WAYS: dict[str, Way] = {
    "ours": _ours(),
    "ours, no own batch size": _ours(own=False),
    "largest batch": _largest,
    "default batch": _default,
}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Regret of every method, and the gain of ours over the other methods."""
    ways: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        ways.setdefault(row["way"], []).append(row)
    results: dict[str, Any] = {"cases": len(ways["ours"]), "regret": {}, "gain": {}}
    for name, some in ways.items():
        finite = [row for row in some if math.isfinite(row["regret"])]
        results["regret"][name] = {
            **regrets([row["regret"] for row in finite], [row["group"] for row in finite]),
            "runs_mean": round(float(np.mean([row["runs"] for row in some])), 2),
            "runs_max": max(row["runs"] for row in some),
        }
    for name in ("default batch", "largest batch"):
        results["gain"][name] = gain(ways["ours"], ways[name])
    oracle = [row | {"cost": row["best"], "error": 0.0} for row in ways["ours"]]
    results["best of all over default batch"] = gain(oracle, ways["default batch"])
    name = "ours, no own batch size"
    results[f"{name} over default batch"] = gain(ways[name], ways["default batch"])
    results["paid back"] = _paid_back(ways["ours"], ways["default batch"])
    ours = ways["ours"]
    stated = [row for row in ours if row["stated"] is not None and math.isfinite(row["regret"])]
    results["ours"] = {
        "coverage": round(float(np.mean([one for row in ours for one in row["covered"]])), 4),
        "coverage_but_error": round(float(np.mean([one for row in ours for one in row["covered_but_error"]])), 4),
        "realised_over_stated": rounded(
            float(np.mean([row["regret"] for row in stated])) / max(np.mean([row["stated"] for row in stated]), 1e-9), 3
        ),
    }
    return results


def gain(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Cost of theirs relative to ours, where both reach the target."""
    apart = [
        (other["cost"] / own["cost"], own, math.hypot(own["error"], other["error"]))
        for own, other in zip(ours, theirs, strict=True)
        if math.isfinite(own["cost"]) and math.isfinite(other["cost"])
    ]
    gains = np.array([gain for gain, _, _ in apart])
    logs, groups = [math.log(gain) for gain, _, _ in apart], [row["group"] for _, row, _ in apart]
    by_group = {group: float(np.mean([v for v, g in zip(logs, groups, strict=True) if g == group])) for group in groups}
    surely = [
        math.log(gain) < -SURE * error for gain, error in zip(gains, [error for _, _, error in apart], strict=True)
    ]
    return {
        "geometric_mean": round(math.exp(float(np.mean(logs))), 4),
        "equal_weight": round(math.exp(float(np.mean(list(by_group.values())))), 4),
        "worst": round(float(gains.min()), 4),
        "loses": round(float(np.mean(gains < 1 - NONE)), 4),
        "loses_surely": round(float(np.mean((gains < 1 - NONE) & np.array(surely))), 4),
        "by_group": {group: round(math.exp(by_group[group]), 4) for group in sorted(by_group)},
    }


def _paid_back(ours: Sequence[dict[str, Any]], default: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Training runs after which the device time of our runs is saved, against the default; never without a gain."""
    counts = [
        row["spent_s"] / max(other["cost"] - row["cost"], 1e-9 * row["cost"])
        for row, other in zip(ours, default, strict=True)
        if math.isfinite(row["cost"]) and math.isfinite(other["cost"])
    ]
    gained = [count for count in counts if count < 1e6]
    return {
        "cost_in_runs": round(float(np.mean([row["spent_s"] / row["best"] for row in ours])), 2),
        "median_if_ever": round(float(np.median(gained)), 1) if gained else None,
        "never": round(1 - len(gained) / len(counts), 4),
    }
