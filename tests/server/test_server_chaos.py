"""Repeated kills of a server and its worker: every run of a sweep is done once, with the same bytes."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from sqlalchemy import func, select, update
from tests.server.conftest import opened
from tests.support.server.served import request, status_of, submitted
from tests.support.server.serving import Serving, free_port, wait_for

from wattune.server.jobs import leases
from wattune.server.jobs.claims import LEASE_S, RENEWALS
from wattune.server.jobs.store_queue import StoreQueue
from wattune.server.jobs.worker import Worker
from wattune.server.store.schema import FileRow, JobRow, UnitRow

KINDS = ("server", "worker")
KILLS, SEEDS = 6, 4
ALL_KILLS, MORE_SEEDS = 20, 12
"""In the exhaustive run."""
SIZES = (8, 16, 32, 64)
SECOND_LONG = {
    "options": {"classes": 5, "channels": 1, "width": 16},
    "optimizer": {"learning_rate": 1.5e-4},
    "target": 0.95,
    "budget_samples": 16384,
}
"""A model of which a run takes about a second of one core, and several checkpoints."""


def outcome(store, job_id):
    """The hash of each run's curve, and the finished record without its moment."""
    curves = {(run.batch_size, run.seed): run.curve for run in status_of(store, job_id).runs}
    with store.database.session(reads_only=True) as session:
        record = session.get(JobRow, job_id).curve
    return curves, {**record, "provenance": {**record["provenance"], "created_at": None}}


@pytest.mark.slow
def test_repeated_kills_do_not_change_the_result(database_url, tmp_path, exhaustive):
    draws = random.Random(20251122)
    kills, seeds = (ALL_KILLS, MORE_SEEDS) if exhaustive else (KILLS, SEEDS)
    victims = [KINDS[number % len(KINDS)] for number in range(kills)]
    draws.shuffle(victims)
    folder, asked, log = tmp_path / "store", request(seeds=seeds), tmp_path / "log"
    options = ["--workers", "1", "--port", str(free_port())]
    options += [] if database_url.startswith("sqlite") else ["--database", database_url]
    serve = partial(Serving, folder, *options, log=log, environment={"WATTUNE_LIMIT_LEASE_S": "5"})
    with opened(folder, database_url) as store:
        job_id = submitted(store, asked, **SECOND_LONG)

        def running():
            found = status_of(store, job_id)
            assert found.state in ("waiting", "running"), f"{found.state} before the last kill: {found.reason}"
            return [run for run in found.runs if run.state == "running"]

        def local_workers():
            return server.workers

        server = serve()
        try:
            for victim in victims:
                wait_for(running)
                time.sleep(draws.uniform(0, 1.5))
                if victim == "server":
                    server.kill()
                    server.end()
                    server = serve()
                else:
                    server.kill(wait_for(local_workers)[0])
            done_before = status_of(store, job_id).runs_done
            wait_for(lambda: status_of(store, job_id).ended, 300)
        finally:
            server.end()
        found = status_of(store, job_id)
        assert found.state == "done", found.reason
        assert done_before < len(SIZES) * seeds
        assert max(run.attempts for run in found.runs) > 1
        disturbed, record = outcome(store, job_id)
        with store.database.session(reads_only=True) as session:
            units = session.scalar(select(func.count()).select_from(UnitRow).where(UnitRow.batch_size != 0))
            files = session.scalars(select(FileRow.sha256)).all()
        assert set(disturbed) == {(size, seed) for size in SIZES for seed in range(seeds)}
        assert (units, len(set(disturbed.values()))) == (len(SIZES) * seeds, len(SIZES) * seeds)
        assert sorted(files) == sorted(disturbed.values())
        for sha256 in files:
            store.files.read(sha256)  # it is what its hash says
    told = re.findall(r"(batch size \d+, seed \d+) done", log.read_text())
    assert len(told) == len(set(told)) > kills
    with opened(tmp_path / "undisturbed") as store:
        assert submitted(store, asked, **SECOND_LONG) == job_id
        worker = Worker(StoreQueue("w1", store.database, store.settings.store))
        while worker.step():
            pass
        assert outcome(store, job_id) == (disturbed, record)


@pytest.mark.slow
def test_resumed_hung_worker_changes_nothing(store, tmp_path):
    """Its lease passes, another one does the run, and what it brings when it goes on is refused."""
    asked = request(seeds=1, batch_sizes=[8])
    job_id = submitted(store, asked, **{**SECOND_LONG, "target": 0.985})
    task = {"name": "zombie", "store": str(store.settings.store), "database_url": store.database.url}
    said = tmp_path / "said"
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "wattune.server.jobs.worker_process"], stdin=subprocess.PIPE, stderr=stderr
        )
    try:
        process.stdin.write(json.dumps(task).encode() + b"\n")
        process.stdin.flush()
        wait_for(lambda: status_of(store, job_id).state == "running")
        time.sleep(1)
        os.kill(process.pid, signal.SIGSTOP)
        with store.database.session() as session:
            # As if the seconds of its lease had passed.
            session.execute(update(UnitRow).values(lease_until_s=time.time() - 1))
        with store.database.session() as session:
            assert leases.release_expired(session, time.time()) == 1  # the supervisor does so
        worker = Worker(StoreQueue("w1", store.database, store.settings.store))
        wait_for(lambda: not worker.step() and status_of(store, job_id).ended)
        found, before = status_of(store, job_id), outcome(store, job_id)
        assert [(run.attempts, run.state) for run in found.runs] == [(2, "done")]
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: "seed 0: lease lost, result dropped" in said.read_text(), 4 * LEASE_S / RENEWALS)
        assert "done" not in said.read_text()
        assert (status_of(store, job_id), outcome(store, job_id)) == (found, before)
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
