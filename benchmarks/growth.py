"""How costs grow with the work: CPU seconds at x1, x10 and x100, and what is kept in memory or written.

The three sizes of a row are measured one after the other, in several rounds: medians. The exponent of a row is the
slope of ln(CPU seconds) over ln(work): by a regression over the three sizes, and from x10 to x100 alone, where what
does not grow counts least. A week of training and a day of a guard are one run each in virtual time, and their sizes
are its first hundredth, its first tenth, and all of it. What the imports of this benchmark keep in memory is left out
of the garbage collector's passes (``gc.freeze``): a command imports a small part of it.
"""

from __future__ import annotations

import csv
import gc
import math
import random
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sqlalchemy import insert
from tests.server.conftest import asked, opened
from tests.support import report_records, training_runs
from tests.support.made_board import MadeBoard
from tests.support.server import dashboard
from tests.support.virtual_time import VirtualProgram

from benchmarks.timing import keep
from wattune.algorithms import save_checkpoint
from wattune.cap import PowerCap
from wattune.cap_source import CapTrace
from wattune.cli.guarded_cap import GuardedCap
from wattune.planning import plan
from wattune.point import BatchShape, OperatingPoint
from wattune.profiling import profile
from wattune.profiling.journal import Journal, Measured, Partial
from wattune.records import Evaluation, ProfileCell, ProfileCost, ProfileKey, TrainingRecord
from wattune.reporting import write_report
from wattune.sample_efficiency.recorded_runs import chosen_runs, curve_from_runs, read_runs
from wattune.training import train
from wattune_agent.guarded import run_guarded
from wattune_agent.time_source import TimeSource
from wattune_server.store.schema import JobRow, ProfileRow, TrainingRow

FACTORS = (1, 10, 100)
ROUNDS = 3
DAY_S = 86400.0
LOOKS = 10_000
MIB, PAGE = 2**20, 4096
IN_MEMORY = Path("/dev/shm")
"""Where files are written, if it exists: what a disk takes is not of the tool."""

WEEK_CAPS, WEEK_CAP_S, EVALUATED_STEPS = 7 * 24 * 60, 3.0, 7
"""A new cap each minute of a week, and about a thousand evaluations, in a twentieth of its time: the board is read ten
times a second all the same, and a week of that would take half an hour of CPU time."""

Figures = dict[str, float]
"""``cpu_s``, and what else is measured at a size."""


class Row(NamedTuple):
    """What is measured: its work at x1 and the unit of that, and a function of the work and a folder of its own."""

    name: str
    work: int
    unit: str
    measure: Callable[[int, Path], Figures]


def cpu_s(call: Callable[[], object]) -> float:
    """CPU seconds of all threads of this process in a call."""
    gc.collect()
    begin_s = time.process_time()
    call()
    return time.process_time() - begin_s


# ------------------------------------------------------------------------------------------------------ what may grow


def caps_of(rows: int, every_s: float = 1.0, low_w: float = 4.0) -> CapTrace:
    """A cap that is another one in each row."""
    return CapTrace(
        times_s=tuple(every_s * i for i in range(rows)), caps_w=tuple(low_w + i * 7 % 5 for i in range(rows))
    )


def trace_opened(rows: int, folder: Path) -> Figures:
    """A CSV file of caps is read, with the shares of the caps that a plan needs."""
    caps, path = caps_of(rows), folder / "caps.csv"
    lines = (f"{time_s:g},{cap_w:g}" for time_s, cap_w in zip(caps.times_s, caps.caps_w, strict=True))
    path.write_text("\n".join(("seconds,watts", *lines)))
    return {"cpu_s": cpu_s(lambda: CapTrace.load(path).shares)}


def trace_looked_at(rows: int, folder: Path) -> Figures:
    """The present cap and the next change are looked up, at ``LOOKS`` times of a trace that is open."""
    caps, times_s = caps_of(rows), [random.Random(0).uniform(0, rows) for _ in range(LOOKS)]
    caps.next_change_s(0.0)
    taken_s = cpu_s(lambda: [(caps.watts(time_s), caps.next_change_s(time_s)) for time_s in times_s])
    return {"cpu_s": taken_s}


def checkpoint(mib: int, folder: Path) -> Figures:
    """A state of so many MiB, in 8 tensors, is written."""
    state = {str(n): torch.ones(mib * MIB // 32) for n in range(8)}
    return {"cpu_s": cpu_s(lambda: save_checkpoint(folder / "checkpoint", state, extra={}))}


def cells_noted(cells: int, folder: Path) -> Figures:
    """A profile notes so many cells, one by one, and another process reads them."""
    device, size = training_runs.nano(), BatchShape.of(8)
    key = ProfileKey(**dict.fromkeys(ProfileKey.model_fields, "growth"))
    begin = Partial(key=key, strategy="full", steps=3, rows=(size,), host_s_per_sample=0.0)

    class Probe:
        def measure(self, point: OperatingPoint) -> Measured:
            cell = ProfileCell(**point.fields(), step_s=0.1, power_mean_w=5.0, power_peak_w=5.1, steps=3)
            return cell, ProfileCost(time_s=1.0, energy_j=5.0, above_cap_s=0.0, probes=1)

    def note() -> None:
        journal = Journal(folder / "partial.json", device, begin)
        for mhz in range(cells):
            journal.look_up(None, Probe(), OperatingPoint.of(8, clock_mhz=100.0 + mhz))
        assert len(Journal(folder / "partial.json", device, begin).notes) == cells

    return {"cpu_s": cpu_s(note)}


def evaluations_saved(evaluations: int, folder: Path) -> Figures:
    """A training run on a simulated board evaluates and writes a checkpoint after each step."""
    workload = training_runs.workload(target=None, batch_sizes=(8,), evaluate_every=8, budget_samples=8 * evaluations)
    done: list[TrainingRecord] = []
    path = folder / "checkpoint"
    taken_s = cpu_s(lambda: done.append(train(training_runs.nano(), workload, training_runs.plan(), checkpoint=path)))
    assert len(done[0].evaluations) == evaluations
    return {"cpu_s": taken_s}


def reported(evaluations: int, folder: Path) -> Figures:
    """A report of a training run with so many evaluations is written."""
    run = report_records.run()
    assert run.training is not None
    first = run.training.evaluations[0]
    many = tuple(
        first.model_copy(update={"samples": 64 * n, "time_s": 2.0 * n, "metric": n % 90 / 100})
        for n in range(1, evaluations + 1)
    )
    record, path = run.training.model_copy(update={"evaluations": many}), folder / "report.html"
    taken_s = cpu_s(lambda: write_report(record, path))
    return {"cpu_s": taken_s, "mb": path.stat().st_size / 1e6}


def estimated(runs: int, folder: Path) -> Figures:
    """A curve is fitted to the recorded runs of a table, at ten batch sizes, and a plan made by it."""
    draw, path = random.Random(0), folder / "runs.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("batch_size", "seed", "samples_to_target"))
        for n in range(runs):
            size = 4 << n % 10
            table.writerow((size, n // 10, round((1000 + 10 * size) * draw.lognormvariate(0.0, 0.1))))
    cells = report_records.profile()

    def estimate() -> None:
        plan(cells, curve_from_runs(chosen_runs(read_runs(path), {})), cap=PowerCap(report_records.CAP_W))

    return {"cpu_s": cpu_s(estimate)}


def pages(rows: int, folder: Path) -> Figures:
    """The server shows its lists of runs, profiles and jobs, with so many of each in its store."""
    table, training = report_records.profile(), report_records.run().training
    assert training is not None
    with opened(folder / "store") as store:
        dashboard.put_model(store)
        dashboard.put_profile(store, table)
        dashboard.put_training(store, training.model_copy(update={"trace": ()}), "nano-1")
        dashboard.put_job(store)
        with store.database.session() as session:
            for kind in (ProfileRow, TrainingRow, JobRow):
                columns = [column.name for column in kind.__table__.columns]
                one = session.query(kind).one()
                like = {name: getattr(one, name) for name in columns}
                session.execute(insert(kind), [{**like, "id": f"{n:032x}"} for n in range(1, rows)])
        with asked(store) as client:

            def look() -> None:
                for page in ("/runs", "/profiles", "/jobs"):
                    assert client.get(page).status_code == 200

            look()
            return {"cpu_s": cpu_s(look)}


ROWS = (
    Row("opening a cap trace", 864, "rows, a day with one a second", trace_opened),
    Row("10,000 looks at a cap trace", 864, "rows", trace_looked_at),
    Row("writing a checkpoint", 4, "MiB", checkpoint),
    Row("a profile's journal", 100, "cells", cells_noted),
    Row("training with a checkpoint after each evaluation", 10, "evaluations", evaluations_saved),
    Row("a report of a training run", 100, "evaluations", reported),
    Row("estimate --from-runs and a plan", 100, "runs", estimated),
    Row("the server's lists of runs, profiles and jobs", 40, "of each", pages),
)


# ----------------------------------------------------------------------------------------------- long, in virtual time


class Marks:
    """CPU seconds and resident MiB of this process when each of some moments of a run has passed."""

    def __init__(self, moments_s: Sequence[float]):
        self._due_s = deque(moments_s)
        gc.collect()
        self._begin_s = time.process_time()
        self.cpu_s: list[float] = []
        self.mib: list[float] = []

    def look(self, time_s: float) -> None:
        """Note the moments that have passed ``time_s`` seconds into the run."""
        while self._due_s and time_s >= self._due_s[0]:
            self._due_s.popleft()
            self.cpu_s.append(time.process_time() - self._begin_s)
            self.mib.append(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / MIB)


def week() -> dict[str, Any]:
    """A training run on a simulated board with as many caps and evaluations as a week has."""
    workload = training_runs.workload(
        target=None,
        host_s_per_sample=0.25,
        evaluate_every=8 * EVALUATED_STEPS,
        budget_samples=8 * EVALUATED_STEPS * 1200,  # it ends a little after the caps
    )
    caps = caps_of(WEEK_CAPS, WEEK_CAP_S)
    chosen = plan(profile(training_runs.nano(), workload, reference=False), training_runs.efficiency(), cap=caps)
    whole_s = WEEK_CAPS * WEEK_CAP_S
    marks = Marks([whole_s / factor for factor in reversed(FACTORS)])
    done: list[float] = []

    def evaluated(evaluation: Evaluation, readings: object) -> None:
        assert evaluation.time_s is not None
        marks.look(evaluation.time_s)
        done.append(evaluation.time_s)

    train(training_runs.nano(), workload, chosen, cap=caps, on_evaluation=evaluated)
    return {
        "caps": WEEK_CAPS,
        "evaluations": sum(time_s <= whole_s for time_s in done),
        "hours": whole_s / 3600,
        "cpu_s": marks.cpu_s,
        "growth_mib": marks.mib[2] - marks.mib[1],
    }


class DayTime(TimeSource):
    """Time that passes while the guard's thread waits; the main thread waits for real."""

    def __init__(self, marks: Marks):
        self._marks, self._now_s = marks, 0.0
        self._later: list[tuple[float, Callable[[], None]]] = []

    def now_s(self) -> float:
        """Seconds that have passed."""
        return self._now_s

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` once so much time has passed."""
        self._later.append((self._now_s + seconds, act))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Let the time pass; on the main thread, wait for the event."""
        if threading.current_thread() is threading.main_thread():
            return event.wait()
        self._now_s += max(0.0, seconds)
        self._marks.look(self._now_s)
        for due_s, act in self._later:
            if self._now_s >= due_s:
                act()
        return event.is_set()


def day() -> dict[str, Any]:
    """A day of `wattune guard`, on a board whose power is a formula, under a cap that changes each 4 s."""
    hour_s = 3600.0
    marks = Marks([0.01 * DAY_S, hour_s, 0.1 * DAY_S, DAY_S - hour_s, DAY_S])
    clock = DayTime(marks)
    caps = caps_of(round(DAY_S / 4), 4.0, low_w=1.5)
    report = run_guarded(
        MadeBoard(window_s=0.1), VirtualProgram(clock, DAY_S + 1.0), caps=GuardedCap(caps, None, 0.1), window_s=1.0
    )
    x1, hour, x10, before_last, whole = marks.cpu_s
    assert report.ended == "finished", report.events[-1]
    return {
        "readings": report.readings,
        "cpu_s": [x1, x10, whole],
        "last_hour_over_first": (whole - before_last) / hour,
        "growth_mib": marks.mib[-1] - marks.mib[2],
    }


# ------------------------------------------------------------------------------------------------------------ together


def exponents(works: Sequence[float], taken_s: Sequence[float]) -> dict[str, float]:
    """Slope of ln(CPU seconds) over ln(work) by a regression, and from x10 to x100 alone."""
    slope = float(np.polyfit(np.log(works), np.log(taken_s), 1)[0])
    return {
        "exponent": round(slope, 3),
        "exponent_last": round(math.log(taken_s[-1] / taken_s[-2], FACTORS[-1] / FACTORS[-2]), 3),
    }


def measured(row: Row, folder: Path) -> dict[str, Any]:
    """Medians of a row over the rounds, and its exponents."""
    works = [row.work * factor for factor in FACTORS]
    rounds: list[list[Figures]] = []
    for number in range(-1, ROUNDS):  # the first is a warm-up, at the smallest size
        found = []
        for work in works[: 1 if number < 0 else len(works)]:
            with tempfile.TemporaryDirectory(dir=folder) as own:
                found.append(row.measure(work, Path(own)))
        rounds.append(found)
    sizes = [
        {key: statistics.median(one[at][key] for one in rounds[1:]) for key in rounds[1][at]}
        for at in range(len(works))
    ]
    print(row.name, sizes, flush=True)
    more = {key: value for key, value in sizes[-1].items() if key != "cpu_s"}
    taken_s = [one["cpu_s"] for one in sizes]
    return {"name": row.name, "works": works, "unit": row.unit, "cpu_s": taken_s, **exponents(works, taken_s), **more}


def main() -> None:
    """Measure, and store the results."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        gc.collect()
        gc.freeze()
        rows = [measured(row, Path(folder)) for row in ROWS]
    long = {
        name: {**figures, **exponents(FACTORS, figures["cpu_s"])}
        for name, figures in (("week", week()), ("day", day()))
    }
    keep("growth", {"rounds": ROUNDS, "rows": rows, **long})
