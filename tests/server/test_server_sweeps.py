"""Sweeps: their results equal those of a local estimate, also after any kill, and errors are reported."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import save
from sqlalchemy import select, update
from tests.server.conftest import opened
from tests.support.server.served import model, pooled, request, status_of, submitted
from tests.support.server.serving import Serving, free_port, wait_for

from wattune.algorithms import load_checkpoint
from wattune.proxy import estimate
from wattune.records import LearningCurve
from wattune.workloads import example_workload
from wattune.workloads.served import proxy_workload
from wattune_server.ingest import add_example
from wattune_server.jobs import queue, runners
from wattune_server.jobs.runners import Runners
from wattune_server.jobs.sweep_process import SweepConfig, outcome_of
from wattune_server.store import model_catalog
from wattune_server.store.schema import OPEN, FileRow, JobRow

SECOND_LONG = {
    "options": {"classes": 5, "channels": 1, "width": 16},
    "optimizer": {"learning_rate": 1.5e-4},
    "target": 0.95,
    "budget_samples": 16384,
}
"""A model of which a run takes about a second of one core, and several checkpoints."""


def worked(store, job_id, workers=1):
    """Let processes work until the job has ended."""
    settings = replace(store.settings, workers=workers)
    with Runners(settings, store.database):
        wait_for(lambda: status_of(store, job_id).ended, 300)
    return status_of(store, job_id)


def curve_of(store, job_id):
    """The finished record without its moment."""
    with store.database.session(reads_only=True) as session:
        record = session.get(JobRow, job_id).curve
    return record and {**record, "provenance": {**record["provenance"], "created_at": None}}


def outcome(store, job_id):
    """The hash of each run's curve, and the finished record without its moment."""
    return {(run.batch_size, run.seed): run.curve for run in status_of(store, job_id).runs}, curve_of(store, job_id)


def here(asked, **how):
    """The same estimate without a server, of a device whose own data is not the proxy's."""
    proxy = proxy_workload(model(), None, None)
    if asked.batch_sizes is not None:
        proxy = replace(proxy, batch_sizes=asked.batch_sizes)
    record = estimate(replace(proxy, name="digits", data=lambda: proxy.data, proxy=proxy), processes=1, **how).dump()
    return {**record, "provenance": {**record["provenance"], "created_at": None}}


@pytest.mark.slow
def test_full_sweep_equals_local_estimate(store):
    asked = request(batch_sizes=[16, 64])
    job_id = submitted(store, asked)
    found = worked(store, job_id)
    assert (found.state, found.runs_done) == ("done", 4)
    assert curve_of(store, job_id) == here(asked, strategy="full", seeds=2)
    assert not (store.settings.store / "work" / job_id).exists()
    [run, *_] = found.runs
    curve = LearningCurve.model_validate_json(store.files.read(run.curve))
    assert (curve.batch_size, curve.seed, curve.samples, curve.reached) == (16, 0, run.samples, True)
    assert curve.provenance.created_at is None


@pytest.mark.slow
@pytest.mark.parametrize("times", [None, {8: (-6.0, 0.1), 16: (-6.5, 0.1), 32: (-6.9, 0.1), 64: (-7.0, 0.1)}])
def test_pooled_sweep_chooses_the_runs_of_local_estimate(sqlite_store, times):
    asked = pooled(log_step_times=times)
    job_id = submitted(sqlite_store, asked)
    found = worked(sqlite_store, job_id)
    served = curve_of(sqlite_store, job_id)
    assert served == here(asked, log_step_times=times)
    assert found.runs_done == served["runs_used"]


@pytest.mark.slow
def test_sweep_on_a_ray_cluster_with_a_token_equals_local_estimate(sqlite_store, tmp_path, monkeypatch):
    """The commands of docs/server.md; without an answer of the cluster the sweep waits."""
    port, ray = free_port(), str(Path(sys.executable).parent / "ray")
    for name, value in (("RAY_AUTH_MODE", "token"), ("HOME", str(tmp_path)), ("RAY_USAGE_STATS_ENABLED", "0")):
        monkeypatch.setenv(name, value)
    subprocess.run([ray, "get-auth-token", "--generate"], check=True, capture_output=True)
    job_id, executor = submitted(sqlite_store, asked := request(batch_sizes=[16, 64])), f"ray:127.0.0.1:{port}"
    options = ["--head", "--port", str(port), "--num-cpus", "2", "--include-dashboard", "false"]
    with Runners(replace(sqlite_store.settings, workers=1, executor=executor), sqlite_store.database):
        wait_for(lambda: "no Ray cluster" in (status_of(sqlite_store, job_id).reason or ""), 60)
        with sqlite_store.database.session(reads_only=True) as session:
            assert session.get(JobRow, job_id).attempts == 0, "such an attempt does not count"
        with (tmp_path / "ray.log").open("wb") as log:
            head = subprocess.Popen([ray, "start", "--block", *options], stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for(lambda: status_of(sqlite_store, job_id).ended, 300)
        finally:
            head.terminate()  # with all that it has started
            head.wait(60)
    assert status_of(sqlite_store, job_id).state == "done", status_of(sqlite_store, job_id).reason
    assert curve_of(sqlite_store, job_id) == here(asked, strategy="full", seeds=2)


KINDS = ("server", "process", "all")
KILLS, ALL_KILLS = 4, 30
"""In each run of the tests, and in the exhaustive one."""


@pytest.mark.slow
@pytest.mark.parametrize("asked", [request(seeds=3), pooled()], ids=["full", "pooled"])
def test_kills_do_not_change_the_result(database_url, tmp_path, exhaustive, asked):
    """The server, the process of the sweep or both are killed at any moment: the same bytes, each run is done once."""
    draws = random.Random(20251122)
    kills = ALL_KILLS if exhaustive else KILLS
    victims = [KINDS[number % len(KINDS)] for number in range(kills)]
    draws.shuffle(victims)
    folder, log = tmp_path / "store", tmp_path / "log"
    options = ["--workers", "1", "--port", str(free_port())]
    options += [] if database_url.startswith("sqlite") else ["--database", database_url]
    serve = partial(Serving, folder, *options, log=log)
    happened = 0
    with opened(folder, database_url) as store:
        job_id = submitted(store, asked, **SECOND_LONG)

        def working(server):
            """The process of the sweep trains, or all is done."""
            lock = folder / "work" / job_id / "lock"
            own = lock.read_text() if lock.exists() else ""
            with store.database.session(reads_only=True) as session:
                job = session.get(JobRow, job_id)
            if job.attempts == queue.ATTEMPTS - 1:  # one more kill without a finished run would park the job
                return False
            return own in map(str, server.sweeps) or job.state not in OPEN

        server = serve()
        try:
            for victim in victims:
                wait_for(partial(working, server), 300)
                time.sleep(draws.uniform(0, 2))
                if status_of(store, job_id).ended:
                    break
                happened += 1
                sweeps = server.sweeps
                if victim != "process":
                    server.kill()
                for pid in sweeps if victim != "server" else ():
                    with suppress(ProcessLookupError):  # it ends with the server
                        server.kill(pid)
                if victim != "process":
                    server.end()
                    server = serve()
            wait_for(lambda: status_of(store, job_id).ended, 300)
        finally:
            server.end()
        found = status_of(store, job_id)
        assert (found.state, found.reason) == ("done", None)
        assert happened >= 2
        disturbed = outcome(store, job_id)
        with store.database.session(reads_only=True) as session:
            files = session.scalars(select(FileRow.sha256)).all()
        assert sorted(files) == sorted(disturbed[0].values())
        told = re.findall(r"(batch size \d+, seed \d+): done", log.read_text())
        assert len(told) == len(set(told)) == len(files)
        for sha256 in files:
            store.files.read(sha256)  # it is what its hash says
    with opened(tmp_path / "undisturbed") as store:
        assert submitted(store, asked, **SECOND_LONG) == job_id
        worked(store, job_id)
        assert outcome(store, job_id) == disturbed


@contextmanager
def paused_process(store, job_id):
    """A process of an earlier server that has the sweep's folder and is stopped in the middle of a run."""
    with store.database.session() as session:
        job = queue.begin(session, time.time())
        assert job.id == job_id
    config = {"store": str(store.settings.store), "job": job_id, "model": job.model, "request": job.request}
    process = runners.start(config)
    try:
        wait_for(lambda: (store.settings.store / "work" / job_id / "lock").exists())
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGSTOP)
        yield process
    finally:
        runners.kill(process)


@pytest.mark.slow
def test_stopped_process_of_an_earlier_server_is_killed(sqlite_store):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[8, 16]), **SECOND_LONG)
    with paused_process(sqlite_store, job_id) as stopped:
        assert worked(sqlite_store, job_id).state == "done"
        assert stopped.wait(20) == -signal.SIGKILL


@pytest.mark.slow
def test_hung_process_is_killed_and_its_sweep_goes_on(tmp_path):
    with opened(tmp_path / "store") as store:
        job_id = submitted(store, request(seeds=1, batch_sizes=[8, 16]), **SECOND_LONG)
        limits = store.settings.limits.model_copy(update={"runner_silence_s": 12.0})
        with Runners(replace(store.settings, workers=1, limits=limits), store.database) as working:
            [sweep] = wait_for(lambda: list(working._sweeps))
            wait_for(lambda: (sweep.folder / "lock").exists())
            os.kill(sweep.process.pid, signal.SIGSTOP)
            reason = wait_for(lambda: status_of(store, job_id).reason)
            assert reason.startswith("the process of the sweep did not respond for 1")
            wait_for(lambda: status_of(store, job_id).ended, 120)
        found = status_of(store, job_id)
        assert (found.state, found.reason) == ("done", None)


@pytest.mark.slow
def test_restored_store_repeats_no_run(sqlite_store):
    """The folder of an unfinished sweep is not in a backup, but the curves of its runs are."""
    job_id = submitted(sqlite_store, request(seeds=2, batch_sizes=[16, 32]))
    worked(sqlite_store, job_id)
    record = curve_of(sqlite_store, job_id)
    with sqlite_store.database.session(reads_only=True) as session:
        curves = [run.curve_sha256 for run in queue.runs(session, job_id)]
    found = attempt(sqlite_store, job_id, curves=tuple(curves))["curve"]
    assert {**found, "provenance": {**found["provenance"], "created_at": None}} == record
    files = list((sqlite_store.settings.store / "work" / job_id).glob("*.json"))
    assert {LearningCurve.load(path).provenance.created_at for path in files} == {None}  # none was trained again


def attempt(store, job_id, **more):
    """What an attempt at the sweep ends with, in this process."""
    with store.database.session(reads_only=True) as session:
        job = session.get(JobRow, job_id)
    return outcome_of(SweepConfig(store=store.settings.store, job=job_id, model=job.model, request=job.request, **more))


@pytest.mark.slow
def test_a_proxy_with_a_share_of_its_plateau_as_target_is_trained_to_there(sqlite_store):
    share = {"data": model().proxy.data, "target": "80%"}
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[16, 64]), proxy=share)
    record = attempt(sqlite_store, job_id)["curve"]
    assert (record["target_share"], len(record["levels"])) == (0.8, 2)
    names = sorted(path.name for path in (sqlite_store.settings.store / "work" / job_id).glob("b*.json"))
    assert names == ["b016-s0.json", "b064-s0.json"]


@pytest.mark.slow
def test_damaged_folder_is_made_anew(sqlite_store):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[32]))
    folder = sqlite_store.settings.store / "work" / job_id
    folder.mkdir(parents=True)
    (folder / "b032-s0.checkpoint").write_bytes(b"cut off")
    assert worked(sqlite_store, job_id).state == "done"


def weights_for(store, **options):
    """The hash and size of a weights file for a network with these options."""
    from wattune.workloads.models import small_cnn

    content = save(small_cnn(**{"classes": 5, "channels": 1, "width": 4, **options}).state_dict())
    with store.database.session() as session:
        sha256 = store.files.write(content)
        model_catalog.add_file(session, sha256, len(content), 0.0)
    return {"sha256": sha256, "bytes": len(content)}


def test_mismatched_weights_are_final(sqlite_store):
    found = attempt(sqlite_store, submitted(sqlite_store, weights=weights_for(sqlite_store, width=8)))
    assert "conv1.weight" in found["failed"]
    assert found["is_final"]


@pytest.mark.parametrize("executor", [None, "ray:127.0.0.1:9"])
def test_unknown_algorithm_is_final(sqlite_store, executor):
    found = attempt(sqlite_store, submitted(sqlite_store, request(algorithm="magic")), executor=executor)
    assert found["failed"].startswith("unknown algorithm: magic; allowed:")
    assert found["is_final"]


def test_damaged_file_yields_no_curve(sqlite_store):
    weights = weights_for(sqlite_store)
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[64]), weights=weights)
    path = sqlite_store.files.path(weights["sha256"])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\0")
    found = attempt(sqlite_store, job_id)
    assert (f"the file {weights['sha256']} is damaged" in found["failed"], found["is_final"]) == (True, False)
    path.write_bytes(whole)
    assert "curve" in attempt(sqlite_store, job_id)


@pytest.mark.slow
def test_unreached_target_fails_the_job(sqlite_store):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[64], target=0.999), budget_samples=256)
    found = worked(sqlite_store, job_id)
    assert (found.state, found.runs_done, [run.reached for run in found.runs]) == ("failed", 1, [False])
    assert "no run of digits-proxy reached the target" in found.reason


@pytest.mark.slow
def test_cancelled_sweep_ends_and_resumes_from_its_checkpoint(sqlite_store):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[8]), **{**SECOND_LONG, "target": 0.999})
    checkpoint = sqlite_store.settings.store / "work" / job_id / "b008-s0.checkpoint"
    with Runners(replace(sqlite_store.settings, workers=1), sqlite_store.database) as working:
        wait_for(checkpoint.exists)
        with sqlite_store.database.session() as session:
            queue.cancel(session, job_id, time.time())
        wait_for(lambda: not working._sweeps)
    assert load_checkpoint(checkpoint)[1]["samples"] > 0
    assert status_of(sqlite_store, job_id).state == "cancelled"


@pytest.mark.slow
def test_unreadable_job_fails(store):
    job_id = submitted(store)
    with store.database.session() as session:
        session.execute(update(JobRow).values(model={**model().dump(), "version": 99}))
    found = worked(store, job_id)
    assert found.state == "failed"
    assert "99" in found.reason


@pytest.mark.slow
def test_example_is_added_to_an_empty_store_once(sqlite_store):
    assert add_example(sqlite_store.database, sqlite_store.files)
    assert not add_example(sqlite_store.database, sqlite_store.files)
    with sqlite_store.database.session(reads_only=True) as session:
        [served] = model_catalog.listing(session, limit=9)
    path = sqlite_store.files.path(served.weights.sha256)
    assert proxy_workload(served, path, None).fingerprint() == example_workload().proxy.fingerprint()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count private memory")
def test_memory_of_a_sweep_is_limited():
    code = "from wattune_server.jobs.sweep_process import limit_memory; limit_memory(300 << 20); bytearray(400 << 20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert "MemoryError" in done.stderr
