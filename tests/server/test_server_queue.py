"""The queue on both databases: one job per request, order, attempts, ends."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from tests.server.conftest import opened
from tests.support.server.served import model, pooled, request, status_of

from wattune.errors import InputError
from wattune.records import LearningCurve
from wattune_server.jobs import queue
from wattune_server.jobs.queue import ATTEMPTS, MAX_BACKOFF_S
from wattune_server.store.schema import FileRow, JobRow


def call(store, what, *given, **named):
    with store.database.session() as session:
        return what(session, *given, **named)


def submitted(store, asked=None, now_s=0.0, owner=None, **changes):
    job, is_new = call(store, queue.submit, model(**changes), asked or request(), now_s, owner=owner)
    return job.id, is_new


def begun(store, now_s=0.0):
    """The id of the next job, which is then running; None if there is none."""
    job = call(store, queue.begin, now_s)
    return job and job.id


def done(store, job_id, batch_size=8, seed=0, now_s=0.0):
    """A run of a job is finished; gives the hash of its curve."""
    curve = LearningCurve(
        workload="digits", batch_size=batch_size, seed=seed, metric="accuracy", samples=512, budget_samples=4096,
        reached=True, evaluations=(), fingerprint="f", algorithm="backprop",
    )  # fmt: skip
    sha256 = f"{batch_size:032x}{seed:032x}"
    call(store, queue.record_run, job_id, curve, sha256, 10, now_s)
    return sha256


def test_repeated_request_is_one_job(store):
    job_id, is_new = submitted(store)
    assert is_new
    assert submitted(store, now_s=5.0) == (job_id, False)
    found = status_of(store, job_id)
    assert (found.state, found.runs_done, found.runs_most, found.created_s) == ("waiting", 0, 8, 0.0)
    assert submitted(store, request(seeds=1))[0] != job_id
    assert submitted(store, target=0.9)[0] != job_id
    assert status_of(store, submitted(store, pooled())[0]).runs_most == 12


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request(batch_sizes=[8, 24]), "batch size for the model digits: 24; allowed: 8, 16, 32, 64"),
        (pooled(log_step_times={128: [0.0, 0.1]}), "step time of a batch size that was not requested: 128"),
        (pooled(log_step_times={}), "log_step_times is empty"),
    ],
)
def test_request_must_match_the_model(sqlite_store, asked, message):
    with pytest.raises(InputError, match=message):
        submitted(sqlite_store, asked)
    assert call(sqlite_store, queue.listing, limit=9) == []


def test_missing_target_must_be_in_the_request(sqlite_store):
    with pytest.raises(InputError, match="the proxy of digits has no target"):
        submitted(sqlite_store, target=None)
    assert submitted(sqlite_store, request(target=0.7), target=None)[1]


def test_sweep_is_begun_once_and_done(store):
    job_id, _ = submitted(store)
    assert begun(store) == job_id
    assert status_of(store, job_id).state == "running"
    assert begun(store) is None
    hashes = [done(store, job_id, size, seed) for size in (64, 8) for seed in (1, 0)]
    assert done(store, job_id) == hashes[-1]  # repeated after a kill
    found = status_of(store, job_id)
    assert [(run.batch_size, run.seed) for run in found.runs] == [(8, 0), (8, 1), (64, 0), (64, 1)]
    assert {(run.samples, run.reached) for run in found.runs} == {(512, True)}
    call(store, queue.finish, job_id, {"record": "efficiency"}, 7.0)
    found = status_of(store, job_id)
    assert (found.state, found.runs_done, found.runs_most, found.finished_s) == ("done", 4, 4, 7.0)
    assert begun(store) is None
    assert submitted(store) == (job_id, False)
    with store.database.session(reads_only=True) as session:
        assert session.get(JobRow, job_id).curve == {"record": "efficiency"}
        assert {row.sha256 for row in session.scalars(select(FileRow))} == set(hashes)


def test_repeatedly_failing_sweep_is_parked(store):
    job_id, _ = submitted(store)
    now_s, waits = 0.0, []
    for _ in range(ATTEMPTS):
        while begun(store, now_s) is None:
            now_s += 0.5
        waits.append(now_s)
        call(store, queue.fail, job_id, "out of memory", now_s)
    assert [b - a for a, b in itertools.pairwise(waits)] == [1, 2, 4, MAX_BACKOFF_S]
    found = status_of(store, job_id)
    assert (found.state, found.reason) == ("parked", "5 attempts, the last one: out of memory")
    assert begun(store, now_s + 100) is None
    assert submitted(store, now_s=now_s) == (job_id, False)  # somebody has to look
    assert status_of(store, job_id).state == "parked"
    assert call(store, queue.retry, job_id, now_s)
    assert (status_of(store, job_id).state, status_of(store, job_id).reason) == ("waiting", None)
    assert begun(store, now_s) == job_id


def test_attempts_without_a_cluster_park_no_sweep(store):
    job_id, _ = submitted(store)
    for attempt in range(2 * ATTEMPTS):
        assert begun(store, attempt * MAX_BACKOFF_S) == job_id
        call(store, queue.fail, job_id, "no Ray cluster", attempt * MAX_BACKOFF_S, counts=False)
        assert begun(store, (attempt + 0.9) * MAX_BACKOFF_S) is None
    assert (status_of(store, job_id).state, status_of(store, job_id).reason) == ("waiting", "no Ray cluster")


def test_a_finished_run_lets_attempts_count_from_zero(store):
    """A long sweep is not parked by five crashes in a week."""
    job_id, _ = submitted(store)
    for attempt in range(2 * ATTEMPTS):
        assert begun(store, 100.0 * attempt) == job_id
        if attempt % (ATTEMPTS - 1) == 0:
            done(store, job_id, seed=attempt)
        done(store, job_id, seed=0)  # an earlier run, seen again after a restart, does not count
        call(store, queue.fail, job_id, "crashed", 100.0 * attempt)
        found = status_of(store, job_id)
        assert (found.state, found.reason) == ("waiting", "crashed")


def test_permanent_error_fails_the_job_at_once(store):
    job_id, _ = submitted(store)
    begun(store)
    done(store, job_id)
    call(store, queue.fail, job_id, "weights do not fit", 1.0, is_final=True)
    found = status_of(store, job_id)
    assert (found.state, found.reason, found.finished_s) == ("failed", "weights do not fit", 1.0)
    assert call(store, queue.retry, job_id, 2.0)
    assert status_of(store, job_id).state == "waiting"
    assert begun(store, 2.0) == job_id


def test_cancelled_job_keeps_its_runs_and_takes_no_result(store):
    job_id, _ = submitted(store)
    begun(store)
    done(store, job_id)
    assert call(store, queue.cancel, job_id, 3.0)
    found = status_of(store, job_id)
    assert (found.state, found.runs_done, found.finished_s) == ("cancelled", 1, 3.0)
    call(store, queue.finish, job_id, {"record": "late"}, 4.0)
    call(store, queue.fail, job_id, "late", 4.0)
    assert status_of(store, job_id) == found
    with pytest.raises(queue.WrongState, match=f"job {job_id} has ended: cancelled"):
        call(store, queue.cancel, job_id, 3.0)
    assert submitted(store, now_s=4.0) == (job_id, True)
    assert status_of(store, job_id).runs_done == 1
    assert begun(store, 4.0) == job_id


def test_job_of_an_earlier_server_waits_again(store):
    jobs = [submitted(store, request(seeds=seeds), float(seeds))[0] for seeds in (1, 2)]
    assert [begun(store, 3.0), begun(store, 3.0)] == jobs
    call(store, queue.release, working={jobs[1]})
    assert [status_of(store, job).state for job in jobs] == ["waiting", "running"]
    assert begun(store, 3.0) == jobs[0]


def test_jobs_are_listed_newest_first(store):
    made = [submitted(store, request(seeds=seeds), now_s=float(seeds // 2))[0] for seeds in range(1, 6)]
    done(store, made[0])
    listed = call(store, queue.listing, limit=9)
    assert sorted(one.job for one in listed) == sorted(made)
    assert [one.created_s for one in listed] == [2.0, 2.0, 1.0, 1.0, 0.0]
    assert [one.runs_done for one in listed] == [0, 0, 0, 0, 1]
    assert call(store, queue.listing, limit=2) == listed[:2]
    call(store, queue.cancel, made[0], 9.0)
    assert call(store, queue.in_use, "digits") == 4


@pytest.mark.slow
@given(moves=st.lists(st.tuples(st.sampled_from("bbbdflrkx"), st.integers(0, 3)), max_size=40))
def test_runs_are_kept_whatever_happens(tmp_path_factory, moves):
    """Begun, failed, released, cancelled, retried and finished sweeps in any order; no finished run is lost."""
    with opened(tmp_path_factory.mktemp("any")) as store:
        job_id, _ = submitted(store)
        now_s, finished = 0.0, set()
        for move, which in moves:
            now_s += 20.0
            state = status_of(store, job_id).state
            if move == "b":
                assert begun(store, now_s) == (job_id if state == "waiting" else None)
            elif move == "d" and state == "running":
                finished.add(done(store, job_id, 8 << which, which % 2))
            elif move == "f":
                call(store, queue.fail, job_id, "no", now_s, is_final=which == 3)
            elif move == "l":
                call(store, queue.release, working=set())
            elif move == "r" and state in ("failed", "parked", "cancelled"):
                call(store, queue.retry, job_id, now_s)
            elif move == "k" and state in queue.OPEN:
                call(store, queue.cancel, job_id, now_s)
            elif move == "x":
                call(store, queue.finish, job_id, {"a": "curve"}, now_s)
            found = status_of(store, job_id)
            assert {run.curve for run in found.runs} == finished
            assert (found.finished_s is None) == (found.state in queue.OPEN)


def test_each_token_has_its_turn(store):
    """Sweeps of one token that asked first do not hold up the others."""
    greedy = [submitted(store, request(target=0.5 + n / 100), float(n), "greedy")[0] for n in range(3)]
    other = [submitted(store, request(target=0.6 + n / 100), 10.0 + n, "other")[0] for n in range(2)]
    assert [begun(store, 99.0) for _ in range(6)] == [greedy[0], other[0], greedy[1], other[1], greedy[2], None]


def test_clock_that_is_set_back_does_not_stop_the_queue(store):
    job_id, _ = submitted(store, now_s=3600.0)
    assert begun(store, 3600.0) == job_id
    call(store, queue.fail, job_id, "why", 3600.0)
    assert begun(store, 0.0) == job_id
