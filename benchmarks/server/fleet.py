"""A fleet of simulated clients against a real server: `python -m benchmarks fleet`.

Each client makes the calls that a device makes in a run, `CALLS` in all: 46 statuses, 40 looks at the job that it waits
for, and 7 others. It has its own token and connection. The clients are threads of one process on the same machine,
which takes its share of the cores, so the figure to trust is the CPU time of the API process per call.

Per database: `mix` is these calls as fast as they go, which is also the highest rate; `paced` is 60 % of that rate,
for the latency, of 300 devices that begin their runs at different times. Before and after, a bare Starlette route gets
the same load. A look is at a job that is running, a run of which ends every few seconds.
"""

from __future__ import annotations

import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import select
from tests.support import report_records as samples
from tests.support.server import dashboard
from tests.support.server.postgresql import Cluster, binaries

from benchmarks.server.clients import ASKED, MODEL, WEIGHTS, Tally, World, run, world
from benchmarks.server.fleet_tables import AIMS, COST_ROUNDS, LOAD, NAMES
from benchmarks.timing import keep, measured_at
from wattune.records.served import ServedModel, SweepRequest
from wattune_server.jobs import queue as jobs
from wattune_server.settings import sqlite_url
from wattune_server.store import Database, model_catalog, tokens
from wattune_server.store.file_store import FileStore
from wattune_server.store.schema import DeviceRow, ProfileRow, TrainingRow
from wattune_server.store.statuses import WRITE_EVERY_S

CHANGE_S = 5.0
"""Interval at which a run of the job that the clients wait for ends."""

NAME, DEVICES, BARE, TOGETHER = "server_fleet", 300, 100, 50
"""Name of the result, devices of ``paced`` and of each round of the bare route, and how many are in a run at once."""


def prepare(store: Path, database: Database, devices: int) -> tuple[list[str], World]:
    """Create the model with its weights, a job that is done and one that is running, and a token for every device."""
    rng = random.Random(0)
    header = json.dumps({"w": {"dtype": "F32", "shape": [WEIGHTS], "data_offsets": [0, 4 * WEIGHTS]}}).encode()
    weights = len(header).to_bytes(8, "little") + header + rng.randbytes(4 * WEIGHTS)
    sha256, size = FileStore(store / "files").write(weights), len(weights)
    model = ServedModel.parse(
        {
            "record": "model",
            "model": MODEL,
            "factory": "resnet8",
            "input_shape": [1, 8, 8],
            "batch_sizes": samples.BATCH_SIZES,
            "budget_samples": 60_000,
            "target": 0.95,
            "weights": {"sha256": sha256, "bytes": size},
            "proxy": {"data": {"source": "digits"}},
        }
    )
    with database.session() as session:
        model_catalog.add_file(session, sha256, size, time.time())
        model_catalog.put(session, model, time.time())
        row, _ = jobs.submit(session, model, SweepRequest.model_validate(ASKED), time.time())
        row.state, row.curve, row.finished_s = "done", samples.efficiency().dump(), time.time()
        running, _ = jobs.submit(session, model, SweepRequest.model_validate({**ASKED, "target": 0.9}), time.time())
        running.state = "running"
        texts = [tokens.make(session, f"device-{n:04}", "device", time.time()) for n in range(devices)]
    return texts, world(row.id, running.id)


@contextmanager
def worked_on(database: Database, job: str) -> Iterator[None]:
    """Context in which the runs of a job end one after the other, as if its process trained."""
    stopping = threading.Event()
    curves = iter(dashboard.curves())

    def work() -> None:
        while not stopping.wait(CHANGE_S):
            with database.session() as session:
                jobs.record_run(session, job, next(curves), "0" * 64, 1, time.time())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def lost(database: Database, tally: Tally, devices: int) -> dict[str, int]:
    """Numbers of devices, profiles and training records that are not in the database."""
    time.sleep(2 * WRITE_EVERY_S)  # the last statuses are still in memory
    with database.session(reads_only=True) as session:
        done = {row.name for row in session.scalars(select(DeviceRow)) if row.status["step"] == "done"}
        profiles = set(session.scalars(select(ProfileRow.id)))
        samples = {row.id: row.samples for row in session.scalars(select(TrainingRow))}
    missing = {"devices": 0, "profiles": 0, "trainings": 0}
    for number in range(devices):
        name = f"device-{number:04}"
        missing["devices"] += name not in done
        missing["profiles"] += tally.profiles.get(name) not in profiles
        missing["trainings"] += samples.get(tally.trainings.get(name, "")) != 1000 + number
    return {**missing, "trainings kept twice": len(samples) - len(set(tally.trainings.values()))}


@contextmanager
def server(store: Path, url: str | None) -> Iterator[tuple[int, int]]:
    """Context of `wattune-server serve` without workers: the process id and the port."""
    command = [sys.executable, "-m", "wattune_server", "serve", "--port", "0", "--workers", "0", "--store", str(store)]
    command += [] if url is None else ["--database", url]
    # All clients have one address here, unlike a fleet, so the limits by address must not count.
    limits = {"WATTUNE_LIMIT_RATE_PER_S": "1000", "WATTUNE_LIMIT_BURST": "1000"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **limits}
    popen: dict[str, Any] = {"stdout": subprocess.PIPE, "env": environment, "text": True}
    with (store.parent / "log").open("wb") as log, subprocess.Popen(command, stderr=log, **popen) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = re.search(r":(\d+)", line)
            assert port, f"{line}{(store.parent / 'log').read_text()}"
            yield process.pid, int(port[1])
        finally:
            process.terminate()


def bare_route(rate_per_s: float | None, devices: int) -> dict[str, float]:
    """Latency of a bare route under the same load, with the clients of ``paced``."""
    command = [sys.executable, "-m", "benchmarks.server.bare"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            tally = run(port, ["none"] * devices, world("0" * 32, "1" * 32), TOGETHER, rate_per_s)
        finally:
            process.terminate()
    assert not tally.wrong, tally.wrong[0]
    return json_calls(tally)


def json_calls(tally: Tally) -> dict[str, float]:
    """Latency of all calls but the downloads of weights."""
    return figures([s for what, times in tally.seconds().items() if what != "GET weights" for s in times])


def peak_bytes(pid: int) -> float:
    """Peak resident bytes of a process."""
    peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert peak
    return 1024.0 * int(peak[1])


def cpu_s(pid: int) -> float:
    """CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, url: str | None, devices: int, rate_per_s: float | None) -> dict[str, Any]:
    """Measure one server on one database under this load; no ``rate_per_s``: as fast as it answers."""
    store = folder / "store"
    store.mkdir(exist_ok=True)
    database = Database(url or sqlite_url(store))
    database.upgrade()
    device_tokens, shared = prepare(store, database, devices)
    with server(store, url) as (pid, port):
        try:
            before_s, begin = cpu_s(pid), time.perf_counter()
            with worked_on(database, shared.running):
                tally = run(port, device_tokens, shared, TOGETHER, rate_per_s)
            used_s, total_s = cpu_s(pid) - before_s, time.perf_counter() - begin
            peak = peak_bytes(pid)
            has_torch = "libtorch" in Path(f"/proc/{pid}/maps").read_text()
            missing = lost(database, tally, devices)
        finally:
            database.close()
    count, seconds = sum(map(len, tally.calls.values())), tally.seconds()
    return {
        "devices": devices,
        "together": TOGETHER,
        "seconds": total_s,
        "calls": {what: figures(times) for what, times in sorted(seconds.items())},
        "json calls": json_calls(tally),
        "calls_per_s": sum(map(len, seconds.values())) / (tally.window[1] - tally.window[0]),
        "api_cpu_s_per_call": used_s / count,
        "wrong answers": len(tally.wrong),
        "first wrong answers": tally.wrong[:5],
        "lost": missing,
        "api_resident_peak_bytes": peak,
        "api_has_torch": has_torch,
    }


def figures(seconds: list[float]) -> dict[str, float]:
    """Median, 99th percentile and largest, in seconds."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"n": len(ordered), "median_s": statistics.median(ordered), "p99_s": p99, "max_s": ordered[-1]}


def main() -> None:
    """Measure, and store the results."""
    moment, databases = measured_at(), {}
    for name in NAMES:
        rounds = [turn(name, 100) for _ in range(COST_ROUNDS)]
        # Other work on the cores adds to the CPU time, so the round with the least counts.
        mix = min(rounds, key=lambda one: float(one["api_cpu_s_per_call"]))
        mix["cpu_s_per_call_by_round"] = [one["api_cpu_s_per_call"] for one in rounds]
        rate_per_s = LOAD * mix["calls_per_s"]
        before, paced = bare_route(rate_per_s, BARE), turn(name, DEVICES, rate_per_s)
        # Other work on the cores comes and goes, so the median of rounds before and after counts.
        bare = sorted(
            [before, bare_route(rate_per_s, BARE), bare_route(rate_per_s, BARE)], key=lambda one: one["p99_s"]
        )
        paced |= {"bare route": bare[1], "bare_p99_s_by_round": [one["p99_s"] for one in bare]}
        databases[name] = {"mix": mix, "paced": paced}
    keep(NAME, {"measured_at": moment, "aims": AIMS, "databases": databases})


def turn(name: str, devices: int, rate_per_s: float | None = None) -> dict[str, Any]:
    """Run one measurement on this database."""
    with tempfile.TemporaryDirectory(prefix="wattune-fleet-") as folder:
        if name == "sqlite":
            return measure(Path(folder), None, devices, rate_per_s)
        if binaries() is None:
            sys.exit("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
        cluster = Cluster(durable=True)
        try:
            cluster.start()
            return measure(Path(folder), cluster.new(), devices, rate_per_s)
        finally:
            cluster.close()
