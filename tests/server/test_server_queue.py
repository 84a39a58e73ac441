"""The queue on both databases: one job per request, leases, attempts, ends."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from tests.server.conftest import opened
from tests.support.server.served import model, pooled, request, status_of

from wattune.errors import InputError
from wattune.server.jobs import leases, queue
from wattune.server.jobs.claims import LEASE_S, RunResult
from wattune.server.jobs.leases import ATTEMPTS
from wattune.server.store.schema import FileRow, JobRow

RUNS = {(size, seed) for size in (8, 16, 32, 64) for seed in (0, 1)}
HASH = "0" * 64


def submitted(store, asked=None, now_s=0.0, **changes):
    with store.database.session() as session:
        job, is_new = queue.submit(session, model(**changes), asked or request(), now_s)
        return job.id, is_new


def claimed(store, worker="w1", now_s=0.0):
    with store.database.session() as session:
        return leases.claim(session, worker, now_s)


def done(store, claim, now_s=0.0, number=0):
    with store.database.session() as session:
        return leases.finish(session, claim, RunResult(f"{number:064x}", 10, 512, True), now_s)


def call(store, what, *given, **named):
    with store.database.session() as session:
        return what(session, *given, **named)


def test_repeated_request_is_one_job(store):
    job_id, is_new = submitted(store)
    assert is_new
    assert submitted(store, now_s=5.0) == (job_id, False)
    found = status_of(store, job_id)
    assert {(run.batch_size, run.seed) for run in found.runs} == RUNS
    assert (found.state, found.runs_done, found.runs_most, found.created_s) == ("waiting", 0, 8, 0.0)
    assert submitted(store, request(seeds=1))[0] != job_id
    assert submitted(store, target=0.9)[0] != job_id


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
    assert call(sqlite_store, queue.listing) == []


def test_missing_target_must_be_in_the_request(sqlite_store):
    with pytest.raises(InputError, match="the proxy of digits has no target"):
        submitted(sqlite_store, target=None)
    assert submitted(sqlite_store, request(target=0.7), target=None)[1]


def test_units_are_claimed_once_until_the_job_is_done(store):
    job_id, _ = submitted(store)
    claims = [claimed(store, f"w{n}") for n in range(9)]
    assert claims.pop() is None
    assert [(c.batch_size, c.seed) for c in claims] == sorted(RUNS)
    assert status_of(store, job_id).state == "running"
    for number, claim in enumerate(claims):
        assert claimed(store) is None
        assert done(store, claim, number=number)
    choose = claimed(store)
    assert choose.chooses
    assert choose.curve_hashes == tuple(f"{number:064x}" for number in range(8))
    assert call(store, leases.record_choice, choose, {"record": "efficiency"}, 7.0)
    found = status_of(store, job_id)
    assert (found.state, found.runs_done, found.runs_most, found.finished_s) == ("done", 8, 8, 7.0)
    assert {run.curve for run in found.runs} == set(choose.curve_hashes)
    assert claimed(store) is None
    assert submitted(store) == (job_id, False)
    with store.database.session(reads_only=True) as session:
        assert session.get(JobRow, job_id).curve == {"record": "efficiency"}
        assert {row.kind for row in session.scalars(select(FileRow))} == {"curve"}


def test_pooled_job_adds_chosen_runs(store):
    job_id, _ = submitted(store, pooled())
    assert (status_of(store, job_id).runs, status_of(store, job_id).runs_most) == ((), 12)
    first = claimed(store)
    assert (first.chooses, first.seed, first.curve_hashes) == (True, 0, ())
    assert call(store, leases.record_choice, first, [(64, 0, None), (8, 0, 700)], 0.0)
    a, b = claimed(store), claimed(store)
    assert [(c.batch_size, c.seed, c.budget_samples) for c in (a, b)] == [(64, 0, None), (8, 0, 700)]
    assert done(store, b, number=2)
    assert claimed(store) is None  # the round has not ended
    assert done(store, a, number=1)
    second = claimed(store)
    assert (second.chooses, second.seed, second.curve_hashes) == (True, 1, (f"{1:064x}", f"{2:064x}"))


def test_expired_lease_is_requeued_and_old_holder_rejected(store):
    job_id, _ = submitted(store, request(seeds=1, batch_sizes=[8]))
    zombie = claimed(store)
    assert call(store, leases.renew, zombie, LEASE_S - 1)
    assert call(store, leases.expired_workers, LEASE_S) == set()
    assert call(store, leases.release_expired, LEASE_S) == 0
    later_s = 2 * LEASE_S
    assert call(store, leases.expired_workers, later_s) == {"w1"}
    assert call(store, leases.release_expired, later_s) == 1
    [run] = status_of(store, job_id).runs
    assert (run.state, run.attempts, run.reason) == (
        "waiting",
        1,
        "the lease expired: the worker did not respond for 30 s",
    )
    assert claimed(store, "w2", later_s) is None  # not before a second has passed
    again = claimed(store, "w2", later_s + 1)
    assert (again.attempt, again.holder != zombie.holder) == (2, True)
    assert not call(store, leases.renew, zombie, later_s)
    assert not done(store, zombie, number=1)
    assert not call(store, leases.fail, zombie, "late", later_s)
    call(store, leases.release, zombie, later_s)
    assert done(store, again, number=2)
    assert not done(store, again, number=3)
    [run] = status_of(store, job_id).runs
    assert (run.state, run.curve, run.attempts, run.reason) == ("done", f"{2:064x}", 2, None)


def test_lease_lasts_as_long_as_set(store):
    submitted(store, request(seeds=1, batch_sizes=[8]))
    claim = call(store, leases.claim, "w1", 0.0, 3.0)
    assert (claim.lease_s, claim.renew_every_s) == (3.0, 0.5)
    assert call(store, leases.renew, claim, 1.0)
    assert call(store, leases.expired_workers, 3.9, 3.0) == set()
    assert call(store, leases.expired_workers, 4.1, 3.0) == {"w1"}


def test_repeatedly_failing_unit_is_parked(store):
    job_id, _ = submitted(store, request(seeds=1, batch_sizes=[8, 16]))
    now_s, waits = 0.0, []
    other = None
    for attempt in range(ATTEMPTS):
        while (claim := claimed(store, now_s=now_s)) is None or claim.batch_size == 16:
            other = claim or other
            now_s += 0.5
        waits.append(now_s)
        assert claim.attempt == attempt + 1
        assert call(store, leases.fail, claim, "out of memory", now_s)
    assert [b - a for a, b in itertools.pairwise(waits)] == [1, 2, 4, 8]
    found = status_of(store, job_id)
    assert (found.state, found.reason) == ("parked", "batch size 8, seed 0: 5 attempts, the last one: out of memory")
    assert {run.batch_size: run.state for run in found.runs} == {8: "parked", 16: "running"}
    assert done(store, other, now_s)  # what was under way is kept
    assert claimed(store, now_s=now_s + 100) is None
    assert submitted(store, request(seeds=1, batch_sizes=[8, 16]), now_s) == (job_id, False)  # somebody has to look
    assert status_of(store, job_id).state == "parked"
    assert call(store, queue.retry, job_id, now_s).job == job_id
    found = status_of(store, job_id)
    assert (found.state, found.reason) == ("waiting", None)
    assert {run.batch_size: (run.state, run.attempts) for run in found.runs} == {8: ("waiting", 0), 16: ("done", 1)}


def test_permanent_error_fails_the_job_at_once(store):
    job_id, _ = submitted(store)
    first, second = claimed(store), claimed(store)
    assert call(store, leases.fail, first, "weights do not fit", 1.0, is_final=True)
    found = status_of(store, job_id)
    assert (found.state, found.reason, found.finished_s) == ("failed", "weights do not fit", 1.0)
    assert [run.state for run in found.runs] == ["parked"] + 7 * ["cancelled"]
    assert not done(store, second)
    assert call(store, queue.retry, job_id, 2.0).state == "waiting"
    assert len([claim for _ in range(9) if (claim := claimed(store, now_s=2.0))]) == 8


def test_cancelled_job_resumes_from_finished_runs(store):
    job_id, _ = submitted(store)
    first, second = claimed(store), claimed(store)
    assert done(store, first)
    found = call(store, queue.cancel, job_id, 3.0)
    assert (found.state, found.runs_done, found.finished_s) == ("cancelled", 1, 3.0)
    assert not call(store, leases.renew, second, 3.0)
    assert not done(store, second)
    assert claimed(store, now_s=3.0) is None
    with pytest.raises(queue.WrongState, match=f"job {job_id} has ended: cancelled"):
        call(store, queue.cancel, job_id, 3.0)
    assert submitted(store, now_s=4.0) == (job_id, True)
    assert status_of(store, job_id).runs_done == 1
    assert claimed(store, now_s=4.0).batch_size == second.batch_size


def test_job_cancelled_during_choice_chooses_again(store):
    job_id, _ = submitted(store, pooled())
    choose = claimed(store)
    call(store, queue.cancel, job_id, 1.0)
    assert not call(store, leases.record_choice, choose, [(8, 0, None)], 1.0)
    assert call(store, queue.retry, job_id, 2.0).runs == ()
    assert claimed(store, now_s=2.0).chooses


def test_retry_and_cancel_need_a_matching_job(store):
    assert call(store, queue.cancel, "0" * 32, 0.0) is None
    assert call(store, queue.retry, "0" * 32, 0.0) is None
    assert call(store, queue.status, "0" * 32) is None
    job_id, _ = submitted(store)
    with pytest.raises(queue.WrongState, match="cancel it first"):
        call(store, queue.retry, job_id, 0.0)


def test_released_unit_does_not_count_as_attempt(store):
    job_id, _ = submitted(store)
    one, two, three = claimed(store, "a"), claimed(store, "b"), claimed(store, "bb")
    call(store, leases.release, one, 1.0)
    assert call(store, leases.release_worker, "b", 1.0, reason="the worker crashed: killed by SIGKILL") == 1
    attempts = {(run.batch_size, run.seed): (run.state, run.attempts) for run in status_of(store, job_id).runs}
    assert [attempts[c.batch_size, c.seed] for c in (one, two, three)] == [
        ("waiting", 0),
        ("waiting", 1),
        ("running", 1),
    ]
    assert call(store, leases.release_all, 2.0) == 1
    assert {run.state for run in status_of(store, job_id).runs} == {"waiting"}
    assert not done(store, three)


def test_jobs_are_listed_newest_first_in_pages(store):
    made = [submitted(store, request(seeds=seeds), now_s=float(seeds // 2))[0] for seeds in range(1, 6)]
    everything = [one.job for one in call(store, queue.listing)]
    assert sorted(everything) == sorted(made)
    assert [one.created_s for one in call(store, queue.listing)] == [2.0, 2.0, 1.0, 1.0, 0.0]
    pages, last = [], None
    while page := call(store, queue.listing, limit=2, before=last):
        pages += [one.job for one in page]
        last = pages[-1]
    assert pages == everything
    call(store, queue.cancel, made[0], 9.0)
    assert [one.job for one in call(store, queue.listing, state="cancelled")] == made[:1]
    assert call(store, queue.listing, model="another") == []
    assert call(store, queue.in_use, "digits") == 4
    with pytest.raises(InputError, match="state of a job: lost"):
        call(store, queue.listing, state="lost")
    with pytest.raises(InputError, match="no such job"):
        call(store, queue.listing, before="nothing")


@pytest.mark.slow
@given(moves=st.lists(st.tuples(st.sampled_from("cccddflxrk"), st.integers(0, 3)), max_size=40))
def test_units_are_done_exactly_once(tmp_path_factory, moves):
    """Claims, results, failures, lost leases, cancels and retries in any order; the set of units stays the same."""
    with opened(tmp_path_factory.mktemp("any")) as store:
        _play(store, moves)


def _play(store, moves):
    job_id, _ = submitted(store, request(seeds=2, batch_sizes=[8, 16]))
    held, now_s, finished = [], 0.0, {}
    for move, which in moves:
        now_s += 3.0
        if move == "c" and (claim := claimed(store, f"w{which}", now_s)) is not None and not claim.chooses:
            held.append(claim)
        elif move == "d" and held:
            claim = held.pop(which % len(held))
            if done(store, claim, now_s, number=claim.batch_size):
                key = (claim.batch_size, claim.seed)
                assert key not in finished
                finished[key] = claim.holder
        elif move == "f" and held:
            call(store, leases.fail, held[which % len(held)], "no", now_s, is_final=which == 3)
        elif move == "l":
            call(store, leases.release_expired, now_s)
        elif move == "x":
            call(store, leases.release_worker, f"w{which}", now_s, reason="gone")
        elif move == "r" and status_of(store, job_id).state in ("failed", "parked", "cancelled"):
            call(store, queue.retry, job_id, now_s)
        elif move == "k" and status_of(store, job_id).state in queue.OPEN:
            call(store, queue.cancel, job_id, now_s)
        found = status_of(store, job_id)
        assert sorted((run.batch_size, run.seed) for run in found.runs) == [(8, 0), (8, 1), (16, 0), (16, 1)]
        assert {(run.batch_size, run.seed) for run in found.runs if run.state == "done"} == set(finished)
        if found.state in ("failed", "cancelled"):
            assert {run.state for run in found.runs} <= {"done", "parked", "cancelled"}


@pytest.mark.slow
def test_sweeps_are_done_one_after_the_other(store):
    """50 sweeps of four rounds at once: the first is done after a tenth of the work at most, and half after half."""
    rounds = [[(8, 0, None), (16, 0, None)], [(8, 1, None)], [(32, 0, None)], [(64, 0, None)], {"a": "curve"}]
    jobs = [submitted(store, pooled(target=0.5 + n / 1000), now_s=float(n))[0] for n in range(50)]
    ended, worked, now_s = [], 0, 100.0
    while True:
        now_s += 1.0
        claims = [claim for worker in ("w1", "w2") if (claim := claimed(store, worker, now_s)) is not None]
        if not claims:
            break
        for claim in claims:
            worked += 1
            if not claim.chooses:
                assert done(store, claim, now_s, number=worked)
                continue
            assert call(store, leases.record_choice, claim, rounds[claim.seed], now_s)
            if isinstance(rounds[claim.seed], dict):
                ended.append((claim.job_id, worked))
    assert {job for job, _ in ended} == set(jobs)
    assert worked == 50 * 10
    shares = [count / worked for _, count in ended]
    assert shares[0] <= 0.1
    assert shares[25] <= 0.6


def test_clock_that_is_set_back_does_not_stop_the_queue(store):
    """Units from an hour ahead, one of which waits for its second attempt, and a lease of a worker that is gone."""
    job_id, _ = submitted(store, now_s=3600.0)
    claim = claimed(store, now_s=3600.0)
    assert call(store, leases.fail, claim, "why", 3600.0)
    hung = claimed(store, "gone", now_s=3600.0)
    again = [claimed(store, now_s=0.0) for _ in range(7)]
    assert {(c.batch_size, c.seed) for c in again} == RUNS - {(hung.batch_size, hung.seed)}
    assert call(store, leases.expired_workers, 0.0) == {"gone"}
    assert call(store, leases.release_expired, 0.0) == 1
    assert status_of(store, job_id).state == "running"


@pytest.mark.slow
def test_worker_does_not_wait_for_a_job_that_another_one_is_changing(tmp_path, postgresql):
    with opened(tmp_path / "store", postgresql.new()) as store:
        first, second = (submitted(store, pooled(target=target), now_s=target)[0] for target in (0.5, 0.6))
        with store.database.session() as session:
            queue.locked(session, first)
            assert claimed(store, now_s=1.0).job_id == second
        assert claimed(store, now_s=1.0).job_id == first
