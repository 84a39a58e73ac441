"""Runs that somebody else recorded, from a table: which belong together, and what curve they give."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wattune.decisions.allocation import MOST, Allocation
from wattune.decisions.choice import LogTimes
from wattune.decisions.curve import Observation, fit
from wattune.efficiency.beginning import with_first_tenth
from wattune.efficiency.pooled import pooled_curve
from wattune.errors import InputError, RecordError
from wattune.records import EfficiencyCurve, provenance

COLUMNS = ("workload", "batch_size", "seed", "samples_to_target", "reached", "samples_budget")
"""Columns that a table of runs has, in any order; others are left alone."""

KEY = ("workload", "target_accuracy", "target_quantile", "learning_rate_at_32")
"""Columns that say which runs belong together; all but the first may be missing."""

YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")


class RecordedRun(NamedTuple):
    """One row of a table: ``key`` are the texts of the columns that say what it is a run of."""

    line: int
    key: dict[str, str]
    seen: Observation


def read_runs(path: Path) -> list[RecordedRun]:
    """The runs of a CSV file with ``COLUMNS``, and those of ``KEY`` that are there.

    A run without ``samples_to_target`` is censored, and needs ``samples_budget``. Raises: RecordError for a file that
    cannot be read, a row that contradicts itself, and a run that is there twice.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except OSError as error:
        raise RecordError(f"cannot read {path}", value=error.strerror or str(error)) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path} is not a CSV file in UTF-8", value=str(error)) from error
    head = [name.strip().lower() for name in rows[0][1]] if rows else []
    if missing := [name for name in COLUMNS if head.count(name) != 1]:
        raise RecordError(
            f"{path} needs each of these columns once", value=", ".join(missing), allowed=", ".join(COLUMNS)
        )
    runs: list[RecordedRun] = []
    seen: dict[tuple[object, ...], int] = {}
    for line, row in rows[1:]:
        where = f"{path}, line {line}"
        if len(row) != len(head):
            raise RecordError(f"{where} has another number of cells", value=len(row), allowed=str(len(head)))
        run = _run(line, {name: cell.strip() for name, cell in zip(head, row, strict=True)}, where)
        same = (*_values_of(run, run.key), run.seen.batch_size, run.seen.seed)
        if same in seen:
            raise RecordError(
                f"{where} has a run that is there already",
                value=f"batch size {run.seen.batch_size}, seed {run.seen.seed}",
                allowed=f"each once; it is in line {seen[same]}",
            )
        seen[same] = line
        runs.append(run)
    if not runs:
        raise RecordError(f"{path} has no runs", allowed="one line for each run")
    return runs


def chosen_runs(
    runs: Sequence[RecordedRun], where: Mapping[str, str], target: float | None = None
) -> list[RecordedRun]:
    """The runs of one workload and target: those whose columns have these values.

    ``target`` is a target_accuracy, or else a target_quantile. Raises: InputError where that leaves none, or runs that
    do not belong together; it lists the choices.
    """
    left = list(runs)
    for column, value in where.items():
        if column not in left[0].key:
            raise InputError("no such column", value=column, allowed=", ".join(left[0].key))
        kept = [run for run in left if _number_or_text(run.key[column]) == _number_or_text(value)]
        if not kept:
            raise InputError(f"no run with this {column}", value=value, allowed=_values(left, column))
        left = kept
    if target is not None:
        targets = [column for column in left[0].key if column.startswith("target_")]
        if not targets:
            raise InputError("--target for runs without targets", allowed="a target_accuracy or target_quantile column")
        kept = next((k for column in targets if (k := [r for r in left if _is(r.key[column], target)])), [])
        if not kept:
            allowed = "; ".join(f"{column} {_values(left, column)}" for column in targets)
            raise InputError("no run with this target", value=f"{target:g}", allowed=allowed)
        left = kept
    if len({_values_of(run, run.key) for run in left}) > 1:
        columns = _telling(left)
        choices = dict.fromkeys(" ".join(f"{column}={run.key[column]}" for column in columns) for run in left)
        raise InputError(
            "the runs are of several workloads or targets: choose by --where COLUMN=VALUE", allowed="; ".join(choices)
        )
    return left


def _telling(runs: Sequence[RecordedRun]) -> list[str]:
    """The fewest columns that tell apart what these are runs of."""
    columns = list(runs[0].key)
    for column in ("target_accuracy", "learning_rate_at_32", "target_quantile", "workload"):
        fewer = [name for name in columns if name != column]
        if len({_values_of(run, fewer) for run in runs}) == len({_values_of(run, columns) for run in runs}):
            columns = fewer
    return columns


def _values_of(run: RecordedRun, columns: Iterable[str]) -> tuple[float | str, ...]:
    return tuple(_number_or_text(run.key[column]) for column in columns)


def curve_from_runs(
    runs: Sequence[RecordedRun], *, log_step_times: LogTimes | None = None, most: int | None = None
) -> EfficiencyCurve:
    """The pooled curve of recorded runs of one workload and target.

    ``most``: at most so many of them, chosen one after the other as if they were only being made; None: all.
    ``log_step_times``: batch size -> mean and standard deviation of ln(seconds per sample) on the device.

    Raises: InputError for fewer than two batch sizes, for runs that all were censored, and for a step time of a batch
    size without runs.
    """
    sizes = sorted({run.seen.batch_size for run in runs})
    if len(sizes) < 2:
        raise InputError("runs of one batch size only", value=sizes[0], allowed="two batch sizes or more")
    if not any(run.seen.reached for run in runs):
        raise InputError("no run reached the target", value=f"{len(runs)} runs, all censored", allowed="one at least")
    if log_step_times is not None and (strange := sorted(set(log_step_times) - set(sizes))):
        raise InputError(
            "a step time of a batch size without runs",
            value=strange[0],
            allowed=", ".join(map(str, sizes)),
            hint="give those by --step-times",
        )
    used = [run.seen for run in runs]
    if most is None:
        posterior, reason = fit(used, sizes), "all runs were used"
    else:
        used, allocation = _played(used, sizes, log_step_times, most)
        posterior, reason = allocation.posterior, allocation.reason
    if used and not set(posterior.batch_sizes if log_step_times is None else log_step_times) - posterior.lost:
        raise InputError(
            "no run reached the target at a batch size that may be chosen", value=f"{len(used)} runs", allowed="one"
        )
    key = runs[0].key
    targets = [float(text) for name in ("target_accuracy", "target_quantile") if _is_number(text := key.get(name, ""))]
    found = pooled_curve(
        posterior,
        used,
        log_step_times=log_step_times,
        workload=key["workload"],
        target=targets[0] if targets else None,
        stopped_because=reason,
        provenance=provenance("recorded"),
    )
    return with_first_tenth(found)


def _played(
    runs: Sequence[Observation], sizes: Sequence[int], log_step_times: LogTimes | None, most: int
) -> tuple[list[Observation], Allocation]:
    """The runs that the sequential design would have made, each batch size's in the order of their seeds."""
    left = {size: sorted((run for run in runs if run.batch_size == size), key=_seed, reverse=True) for size in sizes}
    allocation = Allocation(sizes, log_step_times=log_step_times, most=min(most, MOST))
    used: list[Observation] = []
    while (size := allocation.next(used, without=[size for size in sizes if not left[size]])) is not None:
        run, budget = left[size].pop(), allocation.budget(size)
        # It would have been stopped there.
        used.append(run if budget is None or run.samples <= budget else run._replace(samples=budget, reached=False))
    return used, allocation


def _seed(run: Observation) -> int:
    assert run.seed is not None  # a recorded run has one
    return run.seed


def _run(line: int, cells: Mapping[str, str], where: str) -> RecordedRun:
    if not cells["workload"]:
        raise RecordError(f"{where}, workload", value="", allowed="a name")
    reached = cells["reached"].lower()
    if reached not in YES + NO:
        raise RecordError(f"{where}, reached", value=cells["reached"], allowed="1, 0, true or false")
    samples = _positive(cells["samples_to_target"], f"{where}, samples_to_target")
    budget = _positive(cells["samples_budget"], f"{where}, samples_budget")
    if (reached in YES) != (samples is not None):
        raise RecordError(
            f"{where} contradicts itself: reached is {cells['reached']}, samples_to_target",
            value=cells["samples_to_target"] or "empty",
            allowed="samples where the target was reached, empty where it was not",
        )
    if samples is None and budget is None:
        raise RecordError(
            f"{where}, samples_budget of a run that did not reach the target", value="empty", allowed="samples"
        )
    if samples is not None and budget is not None and samples > budget * (1 + 1e-9):
        raise RecordError(
            f"{where} contradicts itself: samples_to_target",
            value=f"{samples:g}",
            allowed=f"at most samples_budget, {budget:g}",
        )
    size = _whole(cells["batch_size"], f"{where}, batch_size", "a whole number from 1 on", least=1)
    seed = _whole(cells["seed"], f"{where}, seed", "a whole number")
    needed = samples if samples is not None else budget
    assert needed is not None
    return RecordedRun(
        line, {name: cells[name] for name in KEY if name in cells}, Observation(size, needed, samples is not None, seed)
    )


def _positive(text: str, what: str) -> float | None:
    """The number; None where there is none."""
    if text.lower() in ("", "nan"):
        return None
    if not _is_number(text) or not 1e-9 < float(text) < 1e18:
        raise RecordError(what, value=text, allowed="a number above 1e-9 and below 1e18, or empty")
    return float(text)


def _whole(text: str, what: str, allowed: str, least: float = -math.inf) -> int:
    # Tables that went through other programs say 128.0.
    if not _is_number(text) or not float(text).is_integer() or not least <= float(text) < 2**53:
        raise RecordError(what, value=text, allowed=allowed)
    return int(float(text))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _number_or_text(text: str) -> float | str:
    return float(text) if _is_number(text) else text


def _is(text: str, value: float) -> bool:
    return _is_number(text) and math.isclose(float(text), value, rel_tol=1e-9)


def _values(runs: Sequence[RecordedRun], column: str) -> str:
    return ", ".join(dict.fromkeys(run.key[column] for run in runs))
