"""Workers: results equal those of a local estimate, and errors are reported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save
from sqlalchemy import select, update
from tests.support.server.served import model, pooled, request, status_of, submitted

from wattune.algorithms import load_checkpoint
from wattune.proxy import CHECKPOINT_EVERY, estimate
from wattune.records import LearningCurve, SampleEfficiency
from wattune.server.ingest import add_example
from wattune.server.jobs import leases, queue
from wattune.server.jobs.store_queue import StoreQueue
from wattune.server.jobs.worker import Worker
from wattune.server.store import model_catalog
from wattune.server.store.schema import JobRow, UnitRow
from wattune.workloads import example_workload
from wattune.workloads.served import proxy_workload


def worker_of(store, name="w1"):
    return Worker(StoreQueue(name, store.database, store.settings.store))


def worked(store, worker=None):
    """Work until nothing waits any more; also what waits for a further attempt."""
    worker = worker or worker_of(store)
    while worker.step() or _hurried(store):
        pass


def _hurried(store):
    with store.database.session() as session:
        waiting = update(UnitRow).where(UnitRow.state == "waiting").values(not_before_s=0.0)
        return session.execute(waiting).rowcount


def curve_of(store, job_id):
    with store.database.session(reads_only=True) as session:
        return session.get(JobRow, job_id).curve


def here(asked, **how):
    """The same estimate without a server, of a device whose own data is not the proxy's."""
    proxy = proxy_workload(model(), None, None)
    if asked.batch_sizes is not None:
        proxy = replace(proxy, batch_sizes=asked.batch_sizes)
    return estimate(replace(proxy, name="digits", data=lambda: proxy.data, proxy=proxy), **how).dump()


def same(one, other):
    return [{**r, "provenance": {**r["provenance"], "created_at": None}} for r in (one, other)]


@pytest.mark.slow
def test_full_sweep_equals_local_estimate(store):
    asked = request(batch_sizes=[16, 64])
    job_id = submitted(store, asked)
    worked(store)
    found = status_of(store, job_id)
    assert (found.state, found.runs_done, {run.attempts for run in found.runs}) == ("done", 4, {1})
    served, alone = same(curve_of(store, job_id), here(asked, strategy="full", seeds=2, processes=1))
    assert served == alone
    assert not (store.settings.store / "work" / job_id).exists()


@pytest.mark.slow
@pytest.mark.parametrize("times", [None, {8: (-6.0, 0.1), 16: (-6.5, 0.1), 32: (-6.9, 0.1), 64: (-7.0, 0.1)}])
def test_pooled_sweep_chooses_the_runs_of_local_estimate(sqlite_store, times):
    asked = pooled(log_step_times=times)
    job_id = submitted(sqlite_store, asked)
    worked(sqlite_store)
    served, alone = same(curve_of(sqlite_store, job_id), here(asked, log_step_times=times, processes=2))
    assert served == alone
    assert status_of(sqlite_store, job_id).runs_done == served["runs_used"]


def test_curve_bytes_depend_on_the_run_alone(sqlite_store, tmp_path):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[32]))
    worked(sqlite_store)
    [run] = status_of(sqlite_store, job_id).runs
    kept = sqlite_store.files.read(run.curve)
    curve = LearningCurve.parse(json.loads(kept))
    assert (curve.batch_size, curve.seed, curve.samples, curve.reached) == (32, 0, run.samples, True)
    assert curve.provenance.created_at is None
    with sqlite_store.database.session() as session:
        session.execute(update(JobRow).values(state="cancelled"))
        session.execute(update(UnitRow).values(state="cancelled", curve_sha256=None))
        queue.retry(session, job_id, time.time())
    worked(sqlite_store)
    assert status_of(sqlite_store, job_id).runs[0].curve == run.curve


@pytest.mark.slow
def test_interrupted_run_resumes_from_checkpoint_with_same_result(sqlite_store):
    asked = request(seeds=1, batch_sizes=[16], target=0.999)
    job_id = submitted(sqlite_store, asked)
    worker, seen = worker_of(sqlite_store), []

    def stopping(sweep, run, look):
        def stop(evaluation):
            seen.append(evaluation.samples)
            if len(seen) == CHECKPOINT_EVERY + 2:
                worker.stopping.set()
            look(evaluation)

        return run.train(sweep.workload, on_evaluation=stop)

    worker._train = stopping
    (sqlite_store.settings.store / "work" / job_id).mkdir(parents=True)
    assert worker.step()
    [run] = status_of(sqlite_store, job_id).runs
    assert (run.state, run.attempts, run.reason) == ("waiting", 0, None)
    checkpoint = sqlite_store.settings.store / "work" / job_id / "b016-s0.checkpoint"
    assert load_checkpoint(checkpoint)[1]["samples"] == seen[CHECKPOINT_EVERY - 1]
    del seen[:]
    worker.stopping.clear()
    worker._train = lambda sweep, run, look: run.train(sweep.workload, on_evaluation=lambda e: seen.append(e.samples))
    assert worker.step()
    assert seen[0] == (CHECKPOINT_EVERY + 1) * 128
    interrupted = status_of(sqlite_store, job_id).runs[0].curve
    with sqlite_store.database.session() as session:
        session.execute(update(UnitRow).where(UnitRow.batch_size == 16).values(state="waiting", curve_sha256=None))
    worked(sqlite_store)
    assert status_of(sqlite_store, job_id).runs[0].curve == interrupted


def test_truncated_checkpoint_is_discarded(sqlite_store):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[32]))
    checkpoint = sqlite_store.settings.store / "work" / job_id / "b032-s0.checkpoint"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"cut off")
    assert worker_of(sqlite_store).step()
    [run] = status_of(sqlite_store, job_id).runs
    assert (run.state, run.attempts) == ("waiting", 1)
    assert "cannot read the checkpoint" in run.reason
    worked(sqlite_store)
    assert status_of(sqlite_store, job_id).state == "done"


def test_finished_but_unreported_run_is_not_repeated(sqlite_store):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[32]))
    worker = worker_of(sqlite_store)
    told = worker._queue.finish
    worker._queue.finish = lambda claim, curve: (_ for _ in ()).throw(KeyboardInterrupt)  # as a kill would
    with pytest.raises(KeyboardInterrupt):
        worker.step()
    worker._queue.finish = told

    def never(sweep, run, look):
        raise AssertionError("it was trained again")

    worker._train = never
    with sqlite_store.database.session() as session:
        assert leases.release_all(session, time.time()) == 1
    worked(sqlite_store, worker)
    assert status_of(sqlite_store, job_id).state == "done"


def weights_for(store, **options):
    """The hash and size of a weights file for a network with these options."""
    from wattune.workloads.models import small_cnn

    content = save(small_cnn(**{"classes": 5, "channels": 1, "width": 4, **options}).state_dict())
    with store.database.session() as session:
        sha256 = store.files.write(content)
        model_catalog.add_file(session, sha256, "safetensors", len(content), 0.0)
    return {"sha256": sha256, "bytes": len(content)}


def test_mismatched_weights_fail_the_job(store):
    job_id = submitted(store, weights=weights_for(store, width=8))
    assert worker_of(store).step()
    found = status_of(store, job_id)
    assert found.state == "failed"
    assert "conv1.weight" in found.reason
    assert not worker_of(store).step()


def test_unknown_algorithm_fails_the_job(sqlite_store):
    job_id = submitted(sqlite_store, request(algorithm="magic"))
    worked(sqlite_store)
    found = status_of(sqlite_store, job_id)
    assert found.state == "failed"
    assert found.reason.startswith("unknown algorithm: magic; allowed:")


def test_unreached_target_fails_the_job(sqlite_store):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[64], target=0.999), budget_samples=256)
    worked(sqlite_store)
    found = status_of(sqlite_store, job_id)
    assert (found.state, found.runs_done, [run.reached for run in found.runs]) == ("failed", 1, [False])
    assert "no run of digits-proxy reached the target" in found.reason


def test_damaged_file_yields_no_curve(sqlite_store):
    weights = weights_for(sqlite_store)
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[64]), weights=weights)
    path = sqlite_store.files.path(weights["sha256"])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\0")
    worked(sqlite_store)
    found = status_of(sqlite_store, job_id)
    assert (found.state, found.runs[0].attempts) == ("parked", leases.ATTEMPTS)
    assert f"the file {weights['sha256']} is damaged" in found.reason
    path.write_bytes(whole)
    with sqlite_store.database.session() as session:
        queue.retry(session, job_id, time.time())
    worked(sqlite_store)
    assert status_of(sqlite_store, job_id).state == "done"


def test_unexpected_error_is_retried_then_parked(sqlite_store):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[64]))
    worker = worker_of(sqlite_store)

    def breaking(sweep, run, look):
        raise MemoryError("no room")

    worker._train = breaking
    worked(sqlite_store, worker)
    found = status_of(sqlite_store, job_id)
    assert (found.state, found.reason) == (
        "parked",
        "batch size 64, seed 0: 5 attempts, the last one: MemoryError: no room",
    )


def test_cancelled_run_stops_at_next_evaluation(store):
    job_id = submitted(store, request(seeds=1, batch_sizes=[16], target=0.999))
    seen = []

    def cancelling(sweep, run, look):
        def watch(evaluation):
            seen.append(evaluation)
            if len(seen) == 1:
                with store.database.session() as session:
                    queue.cancel(session, job_id, time.time())
            time.sleep(0.1)
            look(evaluation)

        return run.train(sweep.workload, on_evaluation=watch)

    worker = Worker(StoreQueue("w1", store.database, store.settings.store, lease_s=0.12), train=cancelling)
    (store.settings.store / "work" / job_id).mkdir(parents=True)
    assert worker.step()
    assert len(seen) < 5
    found = status_of(store, job_id)
    assert (found.state, [run.state for run in found.runs]) == ("cancelled", ["cancelled"])


@pytest.mark.slow
def test_example_is_added_to_an_empty_store_once(sqlite_store):
    assert add_example(sqlite_store.database, sqlite_store.files)
    assert not add_example(sqlite_store.database, sqlite_store.files)
    with sqlite_store.database.session(reads_only=True) as session:
        [served] = model_catalog.listing(session)
    path = sqlite_store.files.path(served.weights.sha256)
    assert proxy_workload(served, path, None).fingerprint() == example_workload().proxy.fingerprint()


@pytest.mark.slow
def test_finished_record_can_be_planned_with(sqlite_store):
    job_id = submitted(sqlite_store, request(batch_sizes=[16, 64]))
    worked(sqlite_store)
    record = SampleEfficiency.parse(curve_of(sqlite_store, job_id))
    assert (record.workload, record.algorithm, record.strategy) == ("digits", "backprop", "full")
    assert record.reference_batch_size == 64
    assert torch.get_num_threads() == 1
    with sqlite_store.database.session(reads_only=True) as session:
        assert {unit.state for unit in session.scalars(select(UnitRow))} == {"done"}
    shutil.rmtree(sqlite_store.settings.store / "work", ignore_errors=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not count private memory")
def test_worker_memory_is_limited():
    code = "from wattune.server.jobs.worker_process import limit_memory; limit_memory(300 << 20); bytearray(400 << 20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert "MemoryError" in done.stderr
