"""Units over HTTP: claims, reports, and what the server refuses."""

from __future__ import annotations

import threading
import time

import pytest
from starlette.testclient import TestClient
from tests.server.test_server_owners import curve
from tests.support.server import api as made
from tests.support.server.served import model, pooled, request

from wattune.records import LearningCurve
from wattune.server.application import create_app
from wattune.server.jobs import leases, queue, seen_workers
from wattune.server.jobs.claims import Claim, content, torch_version
from wattune.server.jobs.seen_workers import SeenWorker
from wattune.server.store import model_catalog
from wattune.version import __version__

LOCAL = "http://127.0.0.1:8484"
NAMES = [f"{number:032x}" for number in range(9)]


@pytest.fixture
def units(store):
    """Call a route of the units as a worker: (route, **body) -> response. ``units.token``: header with the token."""
    with store.database.session() as session:
        model_catalog.put(session, model(), 0.0)
    with TestClient(create_app(store.settings, store.database, store.files), base_url=LOCAL) as client:

        def call(route, name=NAMES[0], *, wait=0, headers=None, **body):
            shown = {**(headers or call.token), "Prefer": f"wait={wait}"}
            return client.post(f"/v1/units/{route}", json={"worker": "trainer", "claim": name, **body}, headers=shown)

        call.token, call.client = made.token(store, "worker"), client
        yield call


def claimed(units, name=NAMES[0], **more):
    return units("claim", name, **{"wattune": __version__, "torch": torch_version(), **more})


def submitted(store, asked):
    with store.database.session() as session:
        return queue.submit(session, model(), asked, time.time())[0].id


def status_of(store, job_id):
    with store.database.session(reads_only=True) as session:
        return queue.status(session, job_id)


def test_runs_and_choices_are_claimed_and_reported(store, units):
    assert claimed(units).status_code == 204
    job_id = submitted(store, request(batch_sizes=[8], seeds=1))
    answer = claimed(units)
    claim = Claim.model_validate(answer.json())
    assert (claim.job_id, claim.batch_size, claim.seed, claim.attempt, claim.lease_s) == (job_id, 8, 0, 1, 30.0)
    assert claim.model == model()
    assert claimed(units).json() == answer.json(), "the answer was lost, and the worker asks again"
    assert claimed(units, NAMES[1]).status_code == 204
    assert units("renew").status_code == 204
    report = curve()
    assert units("finish", **report).status_code == 204
    [run] = status_of(store, job_id).runs
    assert (run.state, run.curve, run.samples, run.reached) == ("done", report["sha256"], 128, True)
    assert store.files.read(run.curve) == content(LearningCurve.parse(report["curve"]))
    assert units("finish", **report).status_code == 204, "the answer was lost, and the worker sends it again"
    other = LearningCurve.parse({**report["curve"], "target": 0.5})
    another = {"sha256": made.sha256(content(other)), "curve": other.dump()}
    made.problem(units("finish", **another), 409)
    made.problem(units("renew"), 409)
    made.problem(units("fail", reason="no memory"), 409)
    choice = Claim.model_validate(claimed(units, NAMES[2]).json())
    assert (choice.chooses, choice.curve_hashes) == (True, (run.curve,))
    [file] = choice.files
    assert units.client.get(f"/v1/files/{file.sha256}", headers=units.token).content == store.files.read(run.curve)
    for _ in range(2):
        assert units("choice", NAMES[2], record=made.efficiency()).status_code == 204
    assert status_of(store, job_id).state == "done"


def test_the_next_runs_are_checked(store, units):
    job_id = submitted(store, pooled())
    assert Claim.model_validate(claimed(units).json()).chooses
    for runs in ([[24, 0, None]], [[8, 0, None], [8, 0, 700]], [[0, 0, None]], [[8, -1, None]], []):
        made.problem(units("choice", runs=runs), 422)
    made.problem(units("choice"), 422)
    made.problem(units("choice", runs=[[8, 0, None]], record=made.efficiency()), 422)
    made.problem(units("choice", record={"record": "efficiency"}), 422)
    made.problem(units("finish", **curve()), 422)
    assert status_of(store, job_id).runs == ()
    for _ in range(2):
        assert units("choice", runs=[[8, 0, None], [64, 0, 700]]).status_code == 204
    assert [(run.batch_size, run.seed) for run in status_of(store, job_id).runs] == [(8, 0), (64, 0)]


def test_a_curve_must_be_that_of_its_unit(store, units):
    job_id = submitted(store, request(batch_sizes=[8], seeds=1))
    assert claimed(units).status_code == 200
    before = made.contents(store)
    for report in (
        {**curve(), "sha256": "0" * 64},
        curve(batch_size=16),
        curve(seed=1),
        {**curve(), "curve": {"record": "curve"}},
        {**curve(), "curve": {**curve()["curve"], "samples": -1}},
    ):
        made.problem(units("finish", **report), 422)
    made.problem(units("choice", runs=[[8, 1, None]]), 422)
    assert made.contents(store) == before
    assert status_of(store, job_id).state == "running"


def test_an_attempt_fails_or_is_given_back(store, units):
    job_id = submitted(store, request(batch_sizes=[8], seeds=1))
    assert claimed(units).status_code == 200
    assert units("release").status_code == 204
    assert units("release").status_code == 204
    [run] = status_of(store, job_id).runs
    assert (run.state, run.attempts) == ("waiting", 0)
    assert claimed(units, NAMES[1]).status_code == 200
    assert units("fail", NAMES[1], reason="no memory").status_code == 204
    [run] = status_of(store, job_id).runs
    assert (run.state, run.attempts, run.reason) == ("waiting", 1, "no memory")
    made.problem(units("fail", NAMES[1], reason="no memory"), 409)


@pytest.mark.parametrize(
    ("versions", "what"),
    [
        ({"wattune": "0.0.1"}, "the worker's version of wattune"),
        ({"torch": "1.0.0"}, "the worker's version of torch"),
        ({"torch": None}, "the worker's version of torch"),
    ],
)
def test_another_version_is_refused(units, versions, what):
    problem = made.problem(claimed(units, **versions), 409)
    ours = __version__ if "wattune" in versions else torch_version()
    assert (problem["what"], problem["allowed"]) == (what, ours)


def test_another_build_of_the_same_torch_is_accepted(units):
    assert claimed(units, torch=torch_version().partition("+")[0] + "+cu128").status_code == 204


def test_a_claim_waits_for_a_unit(store, units):
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(claimed(units, wait=20)))
    waiting.start()
    job_id = submitted(store, request(batch_sizes=[8], seeds=1))
    waiting.join(30)
    assert [answer.json()["job_id"] for answer in answers] == [job_id]


def test_no_worker_waits_when_the_server_stops(units):
    units.client.app.state.unit_watch.close()
    assert claimed(units, wait=20).status_code == 204


def test_a_restart_takes_no_unit_from_a_worker_elsewhere(store, units):
    """It still trains, and reports when the server is back."""
    job_id = submitted(store, request(batch_sizes=[8], seeds=2))
    assert claimed(units).status_code == 200
    with store.database.session() as session:
        assert leases.claim(session, "w1-abcdef", time.time()) is not None
    with store.database.session() as session:
        assert leases.release_local(session, time.time()) == 1
    assert units("finish", **curve()).status_code == 204
    assert [run.state for run in status_of(store, job_id).runs] == ["done", "waiting"]


def test_workers_are_seen_with_what_they_hold(store, units):
    reader = made.token(store, "read", "reader")

    def seen():
        [worker] = units.client.get("/v1/workers", headers=reader).json()
        return worker

    assert units.client.get("/v1/workers", headers=reader).json() == []
    assert claimed(units).status_code == 204
    before = seen()
    assert (before["name"], before["token"], before["device"]) == ("trainer", "worker-token", "cpu")
    assert (before["torch"], before["unit"]) == (torch_version(), None)
    job_id = submitted(store, request(batch_sizes=[8], seeds=1))
    assert claimed(units, device="cuda").status_code == 200
    assert (seen()["device"], seen()["unit"]) == ("cuda", f"job {job_id}, batch size 8, seed 0")
    assert "wattune_remote_workers_seen 1.0" in units.client.get("/metrics", headers=reader).text
    page = units.client.get("/jobs", headers=reader).text
    assert "Workers on other machines" in page
    assert "batch size 8, seed 0" in page
    assert units("release").status_code == 204
    assert claimed(units, NAMES[1]).status_code == 200
    assert units("fail", NAMES[1], reason="no memory").status_code == 204
    assert claimed(units, NAMES[2]).status_code == 204
    assert seen()["unit"] is None


def test_a_worker_is_forgotten_after_a_minute(store, monkeypatch):
    def seen(name, seen_s):
        return SeenWorker(name=name, token=None, device="cpu", torch=None, unit=None, seen_s=seen_s)

    with store.database.session() as session:

        def listed(now_s):
            return [(worker.name, worker.unit) for worker in seen_workers.listing(session, now_s)]

        for name, seen_s in (("b", 0.0), ("a", 30.0)):
            seen_workers.put(session, name, seen(name, seen_s))
        seen_workers.note(session, "unknown", None, 30.0)
        assert listed(50.0) == [("a", None), ("b", None)]
        assert listed(61.0) == [("a", None)]
        seen_workers.note(session, "b", "job", 100.0)
        assert listed(100.0) == [("b", "job")]
        monkeypatch.setattr(seen_workers, "MOST", 2)
        seen_workers.put(session, "c", seen("c", 101.0))
        seen_workers.note(session, "a", "job", 101.0)
        assert listed(101.0) == [("b", "job"), ("c", None)], "the one that was not seen for longest is not known"


def test_requests_are_bounded(units):
    for route, body in (
        ("claim", {"wattune": "x" * 100, "torch": None}),
        ("fail", {"reason": "x" * 501}),
        ("renew", {"more": 1}),
        ("choice", {"runs": [[8, seed, None] for seed in range(10_001)]}),
    ):
        made.problem(units(route, **body), 422)
    for name in ("", "0" * 31, "0" * 33, "g" * 32):
        made.problem(units("renew", name), 422)


def test_claim_name_that_is_used_again(store, units):
    submitted(store, request(batch_sizes=[8], seeds=2))
    reports = []
    for seed in (0, 1):
        assert claimed(units).json()["seed"] == seed
        learned = LearningCurve.parse({**curve()["curve"], "seed": seed})
        reports.append({"sha256": made.sha256(content(learned)), "curve": learned.dump()})
        assert units("finish", **reports[-1]).status_code == 204
    assert units("finish", **reports[1]).status_code == 204, "the answer was lost"
    made.problem(units("finish", **reports[0]), 422)
