"""Runs recorded elsewhere: read them from a table, select those of one target, and fit a curve to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wattune.errors import InputError, RecordError
from wattune.known_columns import FINISHED, UNFINISHED
from wattune.records import SampleEfficiency, provenance
from wattune.sample_efficiency.choice import LogTimes, pooled_curve
from wattune.sample_efficiency.posterior import Observation, fit
from wattune.tables import AS_KNOWN, Layout, find_columns, read_table

REQUIRED = ("batch_size", "seed", "samples_to_target")
"""Columns that a table of runs must have, in any order."""

OPTIONAL = ("workload", "reached", "samples_budget")
"""Columns that it may have, besides ``KEY``; others are ignored."""

MEANING = (
    "samples_to_target is what a run was trained on until it reached the target, such as epochs x samples of an epoch, "
    "and reached is 0 for a run that crashed or ended before it; see docs/estimate.md"
)

KEY = ("workload", "target_accuracy", "target_quantile", "learning_rate_at_32")
"""Columns that identify runs of one workload and target; all but the first may be missing."""

YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")


class RecordedRun(NamedTuple):
    """One row of a table; ``key``: the texts of its ``KEY`` columns."""

    key: dict[str, str]
    observation: Observation


def read_runs(path: Path, layout: Layout = AS_KNOWN) -> list[RecordedRun]:
    """Read the runs of a table with the columns ``REQUIRED`` and any of ``OPTIONAL`` and ``KEY``.

    A run without ``samples_to_target`` is censored, and needs ``samples_budget``. Without ``reached``, runs with
    samples to the target reached it, unless their tracker's state is another than finished; without ``workload``, all
    runs are of one that is named by the file.

    Raises: RecordError if the file cannot be read, a row contradicts itself, or a run occurs twice.
    """
    runs: list[RecordedRun] = []
    places: dict[tuple[object, ...], str] = {}
    table = read_table(path)
    columns = find_columns(table, REQUIRED, (*OPTIONAL, *KEY[1:]), layout=layout, meaning=MEANING)
    for where, texts in table.rows:
        run = _run({"workload": path.stem} | {name: texts[one.at] for name, one in columns.items()}, where)
        identity = (*_values_of(run, run.key), run.observation.batch_size, run.observation.seed)
        if identity in places:
            raise RecordError(
                f"{where} is a duplicate run",
                value=f"batch size {run.observation.batch_size}, seed {run.observation.seed}",
                allowed=f"each once; the first is in {places[identity].rpartition(', ')[2]}",
            )
        places[identity] = where
        runs.append(run)
    if not runs:
        raise RecordError(f"{path} has no runs", allowed="one line per run")
    return runs


def chosen_runs(
    runs: Sequence[RecordedRun], where: Mapping[str, str], target: float | None = None
) -> list[RecordedRun]:
    """Select the runs of one workload and target: those whose columns have the values in ``where``.

    ``target`` is a target_accuracy, or else a target_quantile. Raises: InputError, with the choices, if that leaves no
    run, or runs that do not belong together.
    """
    remaining = list(runs)
    for column, value in where.items():
        if column not in remaining[0].key:
            raise InputError("no such column", value=column, allowed=", ".join(remaining[0].key))
        selection = [run for run in remaining if _number_or_text(run.key[column]) == _number_or_text(value)]
        if not selection:
            raise InputError(f"no run with this {column}", value=value, allowed=_values(remaining, column))
        remaining = selection
    if target is not None:
        targets = [column for column in remaining[0].key if column.startswith("target_")]
        if not targets:
            raise InputError("--target for runs without targets", allowed="a target_accuracy or target_quantile column")
        selections = ([run for run in remaining if _equals(run.key[column], target)] for column in targets)
        selection = next(filter(None, selections), [])
        if not selection:
            allowed = "; ".join(f"{column} {_values(remaining, column)}" for column in targets)
            raise InputError("no run with this target", value=f"{target:g}", allowed=allowed)
        remaining = selection
    if len({_values_of(run, run.key) for run in remaining}) > 1:
        columns = _distinguishing(remaining)
        choices = dict.fromkeys(" ".join(f"{column}={run.key[column]}" for column in columns) for run in remaining)
        raise InputError(
            "runs of several workloads or targets: select with --where COLUMN=VALUE", allowed="; ".join(choices)
        )
    return remaining


def _distinguishing(runs: Sequence[RecordedRun]) -> list[str]:
    """The fewest key columns that distinguish these runs' workloads and targets."""
    columns = list(runs[0].key)
    for column in ("target_accuracy", "learning_rate_at_32", "target_quantile", "workload"):
        fewer = [name for name in columns if name != column]
        if len({_values_of(run, fewer) for run in runs}) == len({_values_of(run, columns) for run in runs}):
            columns = fewer
    return columns


def _values_of(run: RecordedRun, columns: Iterable[str]) -> tuple[float | str, ...]:
    return tuple(_number_or_text(run.key[column]) for column in columns)


def curve_from_runs(
    runs: Sequence[RecordedRun],
    *,
    log_step_times: LogTimes | None = None,
    ratio: float = 1.0,
) -> SampleEfficiency:
    """Fit the pooled curve to recorded runs of one workload and target.

    ``log_step_times``: batch size -> mean and standard deviation of ln(seconds per sample) on the device. ``ratio``:
    the number of parameters of the model to train over that of the runs' model.

    Raises: InputError if the runs have fewer than two batch sizes or were all censored, or if a step time has no runs.
    """
    sizes = sorted({run.observation.batch_size for run in runs})
    if len(sizes) < 2:
        raise InputError("runs of one batch size only", value=sizes[0], allowed="two batch sizes or more")
    if not any(run.observation.reached for run in runs):
        raise InputError("no run reached the target", value=f"{len(runs)} runs, all censored", allowed="at least one")
    if log_step_times is not None and (unknown := sorted(set(log_step_times) - set(sizes))):
        raise InputError(
            "step time of a batch size without runs",
            value=unknown[0],
            allowed=", ".join(map(str, sizes)),
            hint="list only these in --step-times",
        )
    observations = [run.observation for run in runs]
    posterior = fit(observations, sizes, ratio=ratio)
    if not set(posterior.batch_sizes if log_step_times is None else log_step_times) - posterior.lost:
        raise InputError(
            "no run reached the target at an allowed batch size",
            value=f"{len(observations)} runs",
            allowed="at least one",
        )
    key = runs[0].key
    targets = [float(text) for name in ("target_accuracy", "target_quantile") if _is_number(text := key.get(name, ""))]
    return pooled_curve(
        posterior,
        observations,
        log_step_times=log_step_times,
        workload=key["workload"],
        target=targets[0] if targets else None,
        stopped_because="all runs were used",
        provenance=provenance("recorded"),
    )


def _run(cells: Mapping[str, str], where: str) -> RecordedRun:
    if not cells["workload"]:
        raise RecordError(f"{where}, workload", value="", allowed="a name")
    samples = _positive(cells["samples_to_target"], f"{where}, samples_to_target")
    budget = _positive(cells.get("samples_budget", ""), f"{where}, samples_budget")
    reached = cells.get("reached", "finished").lower()
    if reached not in {*YES, *NO, *FINISHED, *UNFINISHED}:
        raise RecordError(
            f"{where}, reached",
            value=cells["reached"],
            allowed="1, 0, true, false, or a state such as finished or crashed",
            hint="0 for a run that crashed; --columns reached=HEADER names the column",
        )
    if reached in UNFINISHED and samples is not None:
        samples, budget = None, samples  # those that it was trained on
    if reached in YES + NO and (reached in YES) != (samples is not None):
        raise RecordError(
            f"{where} contradicts itself: reached is {cells['reached']}, samples_to_target",
            value=cells["samples_to_target"] or "empty",
            allowed="samples if the target was reached, else empty",
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
    size = _whole(cells["batch_size"], f"{where}, batch_size", "a whole number, 1 or more", least=1)
    seed = _whole(cells["seed"], f"{where}, seed", "a whole number")
    count = samples if samples is not None else budget
    assert count is not None
    return RecordedRun(
        {name: cells[name] for name in KEY if name in cells}, Observation(size, count, samples is not None, seed)
    )


def _positive(text: str, what: str) -> float | None:
    """Parse a number; None if the cell is empty."""
    if text.lower() in ("", "nan"):
        return None
    if not _is_number(text) or not 1e-9 < float(text) < 1e18:
        raise RecordError(what, value=text, allowed="a number above 1e-9 and below 1e18, or empty")
    return float(text)


def _whole(text: str, what: str, allowed: str, least: float = -math.inf) -> int:
    # Spreadsheets and pandas write 128 as 128.0.
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


def _equals(text: str, value: float) -> bool:
    return _is_number(text) and math.isclose(float(text), value, rel_tol=1e-9)


def _values(runs: Sequence[RecordedRun], column: str) -> str:
    return ", ".join(dict.fromkeys(run.key[column] for run in runs))
