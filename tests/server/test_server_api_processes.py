"""``wattune serve --api-processes 2``: what the processes share, and what happens if one or their parent dies."""

from __future__ import annotations

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import pytest
from tests.server.conftest import opened
from tests.support.server import api as made
from tests.support.server.served import model
from tests.support.server.served import request as asked
from tests.support.server.serving import Serving, lives, serving, wait_for

from wattune.server.jobs.claims import torch_version
from wattune.server.settings import sqlite_url
from wattune.server.store import devices, model_catalog, tokens
from wattune.version import __version__

pytestmark = pytest.mark.slow

PROCESSES = "--api-processes", "2", "--workers", "0"


@pytest.fixture
def folder(tmp_path, database_url):
    """A store that offers a model, on each database."""
    return offered(tmp_path / "store", database_url)


@pytest.fixture
def server(folder, database_url):
    with serving(folder, *PROCESSES, "--database", database_url) as found:
        yield found


@pytest.fixture
def clients(server):
    """A connection to each of the two processes."""
    with connected(server) as found:
        yield found


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared(request, tmp_path_factory):
    """A connection to each of the two processes of a server, one on each database, that several tests use."""
    folder = tmp_path_factory.mktemp("shared") / "store"
    url = request.getfixturevalue("postgresql").new() if request.param == "postgresql" else sqlite_url(folder)
    with serving(offered(folder, url), *PROCESSES, "--database", url) as server, connected(server) as found:
        yield found


def offered(folder, url):
    with opened(folder, url) as store, store.database.session() as session:
        model_catalog.put(session, model(), 0.0)
    return folder


@contextmanager
def connected(server):
    """Two clients, each connected to another process: requests of a process have ids that begin alike."""
    clients, by_process, until_s = [], {}, time.monotonic() + 60
    try:
        while len(by_process) < 2:
            assert time.monotonic() < until_s
            clients.append(client := httpx.Client(base_url=server.url, timeout=30))
            by_process.setdefault(client.get("/healthz").headers["X-Request-Id"][:6], client)
        yield list(by_process.values())
    finally:
        for client in clients:
            client.close()


def test_device_talks_to_any_process(shared):
    """Its first status is there for all; a newer one is written within a second, whoever got it."""
    one, other = shared
    for name in ("a", "b", "c"):
        assert one.put(f"/v1/devices/{name}", json=made.status(name)).status_code == 204
        assert other.put(f"/v1/devices/{name}/plan", json=made.plan()).status_code == 204
        assert other.get(f"/v1/devices/{name}").json()["plan"]["record"] == "plan"
    assert one.put("/v1/devices/a", json={**made.status("a"), "share": 0.25}).status_code == 204
    assert other.put("/v1/devices/a", json={**made.status("a"), "share": 0.5}).status_code == 204
    wait_for(lambda: one.get("/v1/devices/a").json()["status"]["share"] == 0.5)
    assert one.get("/v1/devices/a").json()["plan"]["record"] == "plan"


def test_record_that_both_get_is_stored_once(shared):
    with ThreadPoolExecutor(8) as pool:
        sent = [
            pool.submit(client.post, "/v1/trainings?device=a", json={**made.training(), "samples": 1000 + number})
            for number in range(20)
            for client in shared
        ]
    answers = [one.result() for one in sent]
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert [answer.status_code for answer in answers].count(201) == 20
    assert len({answer.json()["id"] for answer in answers}) == 20


def test_wait_for_a_job_ends_with_a_change_by_another_process(shared):
    one, other = shared
    job = one.post("/v1/jobs", json=asked().model_dump(mode="json")).json()["job"]
    before = other.get(f"/v1/jobs/{job}")
    with ThreadPoolExecutor(1) as pool:
        waiting = {"If-None-Match": before.headers["ETag"], "Prefer": "wait=25"}
        answer = pool.submit(other.get, f"/v1/jobs/{job}", headers=waiting)
        assert one.post(f"/v1/jobs/{job}/cancel").status_code == 200
        assert answer.result().json()["state"] == "cancelled"


def test_worker_is_known_to_all_processes(shared):
    one, other = shared
    claim = {"worker": "trainer", "claim": "0" * 32, "wattune": __version__, "torch": torch_version()}
    assert one.post("/v1/units/claim", json=claim).status_code == 204
    assert [worker["name"] for worker in other.get("/v1/workers").json()] == ["trainer"]
    job = other.post("/v1/jobs", json=asked(batch_sizes=[8]).model_dump(mode="json")).json()["job"]
    assert one.post("/v1/units/claim", json=claim).json()["job_id"] == job
    assert job in other.get("/v1/workers").json()[0]["unit"]
    holder = {name: claim[name] for name in ("worker", "claim")}
    assert other.post("/v1/units/renew", json=holder).status_code == 204


def test_token_and_session_are_known_to_all_processes_until_they_end(folder, database_url, clients):
    one, other = clients
    with opened(folder, database_url) as store:
        with store.database.session() as session:
            text = tokens.make(session, "mine", "admin", time.time())
        csrf = re.search('name="csrf" value="([0-9a-f]+)"', one.get("/login").text)[1]
        form = {"token": text, "csrf": csrf, "next": "/"}
        assert other.post("/login", data=form).status_code == 303
        one.cookies.update(other.cookies)
        assert one.get("/v1/models").status_code == 200
        with store.database.session() as session:
            tokens.revoke(session, "mine", time.time())
        for client in clients:
            assert client.get("/v1/models").status_code == 401
            shown = {"Authorization": f"Bearer {text}"}
            wait_for(lambda client=client, shown=shown: client.get("/jobs", headers=shown).status_code == 401)


def test_metrics_count_the_requests_of_all_processes(shared):
    for client in shared:
        for _ in range(5):
            client.get("/v1/profiles")
    assert [listed_profiles(client) for client in shared] == ["10.0", "10.0"]


def listed_profiles(client):
    counted = r'^wattune_http_requests_total\{method="GET",route="/v1/profiles",status="200"\} (\S+)$'
    return re.search(counted, client.get("/metrics").text, re.MULTILINE)[1]


def test_process_that_is_killed_is_replaced(server):
    for _ in range(10):
        assert server.get("/v1/profiles").status_code == 200
    for number, killed in enumerate(server.api_processes):
        server.kill(killed)
        # New connections are answered meanwhile.
        record = {**made.training(), "samples": 1000 + number}
        wait_for(lambda record=record: posted(server, record))
        wait_for(lambda killed=killed: len(server.api_processes) == 2 and killed not in server.api_processes)
    with connected(server) as clients:
        assert [len(client.get("/v1/trainings").json()) for client in clients] == [2, 2]
        assert [listed_profiles(client) for client in clients] == ["10.0", "10.0"], "what the dead ones have counted"
    assert server.log.read_text().count("a process of the API died and is replaced") == 2
    assert server.end() == 0


def posted(server, record):
    with suppress(httpx.TransportError):  # the connection was accepted by the process that died
        return httpx.post(f"{server.url}/v1/trainings?device=a", json=record, timeout=20).status_code in (200, 201)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signal_ends_waits_and_all_processes(folder, database_url, server, clients, how, code):
    """And what is in their memory is written."""
    job = clients[0].post("/v1/jobs", json=asked().model_dump(mode="json")).json()["job"]
    processes = server.api_processes
    with ThreadPoolExecutor(2) as pool:
        waits = []
        for client in clients:
            waiting = {"If-None-Match": client.get(f"/v1/jobs/{job}").headers["ETag"], "Prefer": "wait=25"}
            waits.append(pool.submit(client.get, f"/v1/jobs/{job}", headers=waiting))
            client.put("/v1/devices/a", json=made.status("a"))
        assert clients[0].put("/v1/devices/a", json={**made.status("a"), "share": 0.75}).status_code == 204
        assert server.end(how) == code
        assert [wait.result().status_code for wait in waits] == [304, 304]
    assert not any(lives(pid) for pid in processes)
    assert "Traceback" not in server.log.read_text()
    with opened(folder, database_url) as store, store.database.session(reads_only=True) as session:
        assert devices.get(session, "a")["status"]["share"] == 0.75


def test_processes_end_if_their_parent_is_killed(folder, database_url, tmp_path):
    server = Serving(folder, *PROCESSES, "--database", database_url, log=tmp_path / "log")
    processes = server.api_processes
    assert len(processes) == 2
    server.kill()
    server.end()
    wait_for(lambda: not any(lives(pid) for pid in processes), 20)
    with serving(folder, *PROCESSES, "--database", database_url) as again:
        assert again.get("/readyz").status_code == 200


def test_workers_are_started_once(tmp_path):
    folder = tmp_path / "store"
    with serving(offered(folder, sqlite_url(folder)), "--api-processes", "2", "--workers", "1") as server:
        wait_for(lambda: len(server.workers) == 1)
        server.kill(server.api_processes[0])
        wait_for(lambda: "is replaced" in server.log.read_text())
        assert len(server.workers) == 1
