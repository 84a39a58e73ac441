"""Workers: what they train is what an estimate here would, and what goes wrong is said."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save
from sqlalchemy import select, update
from tests.server.served_made import model, pooled, request

from wattune.algorithms import load_checkpoint
from wattune.efficiency import CHECKPOINT_EVERY, estimate
from wattune.records import EfficiencyCurve, LearningCurve
from wattune.server.jobs import leases, queue
from wattune.server.jobs.example import offer
from wattune.server.jobs.worker import Worker
from wattune.server.store import models
from wattune.server.store.tables import JobRow, UnitRow
from wattune.workloads import example_workload
from wattune.workloads.served import proxy_workload


def submitted(store, asked=None, **changes):
    with store.database.session() as session:
        return queue.submit(session, model(**changes), asked or request(), time.time())[0].id


def worker_of(store, name="w1"):
    return Worker(name, store.database, store.settings.store)


def worked(store, worker=None):
    """Work until nothing waits any more; also what waits for a further attempt."""
    worker = worker or worker_of(store)
    while worker.step() or _hurried(store):
        pass


def _hurried(store):
    with store.database.session() as session:
        waiting = update(UnitRow).where(UnitRow.state == "waiting").values(not_before_s=0.0)
        return session.execute(waiting).rowcount


def status_of(store, job_id):
    with store.database.session(reads_only=True) as session:
        return queue.status(session, job_id)


def curve_of(store, job_id):
    with store.database.session(reads_only=True) as session:
        return session.get(JobRow, job_id).curve


def here(asked, **how):
    """The same estimate without a server."""
    proxy = proxy_workload(model(), None, None)
    if asked.batch_sizes is not None:
        proxy = replace(proxy, batch_sizes=asked.batch_sizes)
    return estimate(replace(proxy, name="digits", proxy=proxy), **how).dump()


def same(one, other):
    return [{**r, "provenance": {**r["provenance"], "created_at": None}} for r in (one, other)]


def test_a_full_sweep_is_what_an_estimate_here_would_be(store):
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
def test_a_pooled_sweep_chooses_the_runs_that_an_estimate_here_would(sqlite_store, times):
    asked = pooled(log_step_times=times)
    job_id = submitted(sqlite_store, asked)
    worked(sqlite_store)
    served, alone = same(curve_of(sqlite_store, job_id), here(asked, log_step_times=times, processes=2))
    assert served == alone
    assert status_of(sqlite_store, job_id).runs_done == served["runs_used"]


def test_a_curve_has_the_same_bytes_whoever_trained_it_and_when(sqlite_store, tmp_path):
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


def test_an_interrupted_run_goes_on_from_its_checkpoint_and_ends_as_if_nothing_had_been(sqlite_store):
    asked = request(seeds=1, batch_sizes=[16], target=0.999)
    job_id = submitted(sqlite_store, asked)
    worker, seen = worker_of(sqlite_store), []

    def stopping(sweep, run, look):
        def stop(evaluation):
            seen.append(evaluation.samples)
            if len(seen) == CHECKPOINT_EVERY + 2:
                worker.stopping.set()
            look(evaluation)

        return run.train(sweep.workload, seen=stop)

    worker._train = stopping
    (sqlite_store.settings.store / "work" / job_id).mkdir(parents=True)
    assert worker.step()
    [run] = status_of(sqlite_store, job_id).runs
    assert (run.state, run.attempts, run.reason) == ("waiting", 0, None)
    checkpoint = sqlite_store.settings.store / "work" / job_id / "b016-s0.checkpoint"
    assert load_checkpoint(checkpoint)[1]["samples"] == seen[CHECKPOINT_EVERY - 1]
    del seen[:]
    worker.stopping.clear()
    worker._train = lambda sweep, run, look: run.train(sweep.workload, seen=lambda e: seen.append(e.samples))
    assert worker.step()
    assert seen[0] == (CHECKPOINT_EVERY + 1) * 128
    interrupted = status_of(sqlite_store, job_id).runs[0].curve
    with sqlite_store.database.session() as session:
        session.execute(update(UnitRow).where(UnitRow.batch_size == 16).values(state="waiting", curve_sha256=None))
    worked(sqlite_store)
    assert status_of(sqlite_store, job_id).runs[0].curve == interrupted


def test_a_checkpoint_that_was_cut_off_is_left_and_the_run_starts_again(sqlite_store):
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


def test_a_run_that_was_finished_but_not_told_of_is_not_trained_again(sqlite_store):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[32]))
    worker = worker_of(sqlite_store)
    told = worker._finish
    worker._finish = lambda claim, result: (_ for _ in ()).throw(KeyboardInterrupt)  # as a kill would
    with pytest.raises(KeyboardInterrupt):
        worker.step()
    worker._finish = told

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
        models.add_file(session, sha256, "safetensors", len(content), 0.0)
    return {"sha256": sha256, "bytes": len(content)}


def test_weights_that_do_not_fit_fail_the_job_with_their_reason(store):
    job_id = submitted(store, weights=weights_for(store, width=8))
    assert worker_of(store).step()
    found = status_of(store, job_id)
    assert found.state == "failed"
    assert "conv1.weight" in found.reason
    assert not worker_of(store).step()


def test_an_algorithm_that_there_is_not_fails_the_job(sqlite_store):
    job_id = submitted(sqlite_store, request(algorithm="magic"))
    worked(sqlite_store)
    found = status_of(sqlite_store, job_id)
    assert found.state == "failed"
    assert found.reason.startswith("unknown algorithm: magic; allowed:")


def test_a_target_that_no_run_reaches_fails_the_job_after_its_runs(sqlite_store):
    job_id = submitted(sqlite_store, request(seeds=1, batch_sizes=[64], target=0.999), budget_samples=256)
    worked(sqlite_store)
    found = status_of(sqlite_store, job_id)
    assert (found.state, found.runs_done, [run.reached for run in found.runs]) == ("failed", 1, [False])
    assert "no run of digits-proxy reached the target" in found.reason


def test_a_file_that_was_damaged_becomes_no_curve(sqlite_store):
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


def test_an_error_that_nobody_expected_is_tried_again_and_then_parked(sqlite_store):
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


def test_a_cancelled_run_stops_at_its_next_evaluation(store, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_EVERY_S", 0.02)
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

        return run.train(sweep.workload, seen=watch)

    worker = worker_of(store)
    worker._train = cancelling
    (store.settings.store / "work" / job_id).mkdir(parents=True)
    assert worker.step()
    assert len(seen) < 5
    found = status_of(store, job_id)
    assert (found.state, [run.state for run in found.runs]) == ("cancelled", ["cancelled"])


def test_an_empty_store_offers_the_example_once(sqlite_store):
    assert offer(sqlite_store.database, sqlite_store.files)
    assert not offer(sqlite_store.database, sqlite_store.files)
    with sqlite_store.database.session(reads_only=True) as session:
        [served] = models.listing(session)
        models._check_files(session, served)
    path = sqlite_store.files.path(served.weights.sha256)
    assert proxy_workload(served, path, None).fingerprint() == example_workload().proxy.fingerprint()


def test_the_finished_record_is_one_that_a_plan_takes(sqlite_store):
    job_id = submitted(sqlite_store, request(batch_sizes=[16, 64]))
    worked(sqlite_store)
    record = EfficiencyCurve.parse(curve_of(sqlite_store, job_id))
    assert (record.workload, record.algorithm, record.strategy) == ("digits", "backprop", "full")
    assert record.reference_batch_size == 64
    assert torch.get_num_threads() == 1
    with sqlite_store.database.session(reads_only=True) as session:
        assert {unit.state for unit in session.scalars(select(UnitRow))} == {"done"}
    shutil.rmtree(sqlite_store.settings.store / "work", ignore_errors=True)
