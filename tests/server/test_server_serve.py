"""``wattune serve``: starts, refuses what would be unsafe, looks after its workers, ends as it is told."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from sqlalchemy import update
from tests.server.conftest import opened
from tests.server.served_made import model, request
from tests.server.serving_made import Serving, serving, wait_for

from wattune.server.jobs import leases, queue
from wattune.server.store import models, tokens
from wattune.server.store.tables import UnitRow

LONG = {"budget_samples": 200_000, "target": 0.9999, "options": {"classes": 5, "channels": 1, "width": 16}}
"""A model of which no run ends while a test looks at it."""


def offered(folder, **changes):
    """A store that offers a model, so that no example is made."""
    with opened(folder) as store, store.database.session() as session:
        models.put(session, model(**changes), 0.0)


def asked(server, **changes):
    answer = httpx.post(server.url + "/v1/jobs", json=request(**changes).model_dump(mode="json"), timeout=20)
    assert answer.status_code == 201, answer.text
    return answer.json()["job"]


def job(server, job_id):
    return server.get(f"/v1/jobs/{job_id}").json()


def refused(*options):
    """What ``wattune serve`` says, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "wattune", "serve", *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr.strip()


def test_it_says_where_it_is_and_ends_with_0_at_sigterm_and_130_at_ctrl_c(tmp_path):
    folder = tmp_path / "store"
    offered(folder)
    for how, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        server = Serving(folder, "--workers", "0", log=tmp_path / "log")
        assert server.get("/healthz").status_code == 200
        assert [one["model"] for one in server.get("/v1/models").json()] == ["digits"]
        assert server.end(how) == code


def test_the_process_that_answers_has_no_torch_and_stays_small(tmp_path):
    folder = tmp_path / "store"
    offered(folder)
    with serving(folder, "--workers", "0") as server:
        job_id = asked(server)
        for path in ("/v1/models", f"/v1/jobs/{job_id}", "/v1/openapi.json", "/", "/metrics"):
            assert server.get(path).status_code == 200
        process = Path("/proc", str(server.process.pid))
        assert "torch" not in (process / "maps").read_text()
        kib = int(re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())[1])
        assert kib < 400 * 1024
        lines = (tmp_path / "server.log").read_text().splitlines()
        assert {"time", "level", "logger", "message"} <= set(json.loads(lines[-1]))


def test_a_store_has_one_server(tmp_path):
    folder = tmp_path / "store"
    offered(folder)
    with serving(folder, "--workers", "0"):
        code, line = refused("--port", "0", "--store", str(folder))
    assert (code, line) == (2, f"wattune: another server uses this store: {folder}; give another --store")


def test_a_port_in_use_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = refused("--port", str(port), "--store", str(tmp_path / "store"))
    assert code == 2
    assert line.startswith(f"wattune: cannot listen on 127.0.0.1:{port}: ")


def test_an_address_that_others_reach_needs_a_token(tmp_path):
    folder = tmp_path / "store"
    code, line = refused("--host", "0.0.0.0", "--port", "0", "--store", str(folder))
    assert code == 2
    assert "an address that other machines reach, and no token: 0.0.0.0" in line
    assert "wattune token make" in line
    offered(folder)
    with opened(folder) as store, store.database.session() as session:
        token = tokens.make(session, "lab", "read", time.time())
    with serving(folder, "--host", "0.0.0.0", "--workers", "0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1") + "/v1/models"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": f"Bearer {token}"}).status_code == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--executor", "dask"], "executor: dask; allowed: ray or ray:ADDRESS"),
        (["--tls-cert", "/nowhere.pem"], "TLS; allowed: --tls-cert and --tls-key together"),
        (["--database", "mysql://x/y"], "--database:"),
        (["--database", "postgresql+psycopg://x@/y?host=/nowhere"], "the database does not answer:"),
        (["--store", "/proc/nowhere"], "cannot write /proc/nowhere"),
    ],
)
def test_what_cannot_work_is_one_line(tmp_path, options, said):
    where = [] if "--store" in options else ["--store", str(tmp_path / "store")]
    code, line = refused("--port", "0", *where, *options)
    assert code in (1, 2)
    assert said in line


@pytest.mark.slow
def test_workers_are_started_again_and_what_they_did_goes_on(tmp_path):
    folder = tmp_path / "store"
    offered(folder, **LONG)
    with serving(folder, "--workers", "1") as server:
        job_id = asked(server, batch_sizes=[8])
        wait_for(lambda: job(server, job_id)["runs"][0]["state"] == "running")
        [first] = server.workers
        server.kill(first)
        run = wait_for(lambda: (r := job(server, job_id)["runs"][0])["attempts"] == 2 and r)
        assert run["reason"] == "the worker ended by SIGKILL"
        [second] = server.workers
        assert second != first
        workers = server.workers
        assert server.end() == 0
    with opened(folder) as store, store.database.session(reads_only=True) as session:
        found = queue.status(session, job_id)
        # A server that was asked to end does not count its runs as attempts.
        assert (found.state, found.runs[0].state, found.runs[0].attempts) == ("running", "waiting", 1)
    assert not any(_lives(pid) for pid in workers)


@pytest.mark.slow
def test_workers_end_with_a_server_that_was_killed(tmp_path):
    folder = tmp_path / "store"
    offered(folder, **LONG)
    server = Serving(folder, "--workers", "2", log=tmp_path / "log")
    job_id = asked(server)
    wait_for(lambda: [run["state"] for run in job(server, job_id)["runs"]].count("running") == 2)
    workers = server.workers
    assert len(workers) == 2
    server.kill()
    server.end()
    wait_for(lambda: not any(_lives(pid) for pid in workers), 10)


@pytest.mark.slow
def test_a_worker_that_hangs_loses_its_unit_and_its_life(tmp_path):
    folder = tmp_path / "store"
    offered(folder, **LONG)
    with serving(folder, "--workers", "1") as server:
        job_id = asked(server, batch_sizes=[8])
        wait_for(lambda: job(server, job_id)["runs"][0]["state"] == "running")
        [first] = server.workers
        os.kill(first, signal.SIGSTOP)
        with opened(folder) as store, store.database.session() as session:
            # As if the seconds of its lease had passed.
            session.execute(update(UnitRow).where(UnitRow.state == "running").values(lease_until_s=time.time() - 1))
        run = wait_for(lambda: (r := job(server, job_id)["runs"][0])["attempts"] == 2 and r)
        assert run["reason"] == f"the worker did not answer for {leases.LEASE_S:.0f} s"
        assert first not in server.workers


@pytest.mark.slow
def test_an_empty_store_gets_the_example_also_without_workers(tmp_path):
    with serving(tmp_path / "store", "--workers", "0") as server:
        wait_for(lambda: [one["model"] for one in server.get("/v1/models").json()] == ["resnet8-digits"])
        wait_for(lambda: server.workers == [])


@pytest.mark.slow
def test_two_servers_do_not_share_a_database(tmp_path, postgresql):
    url = postgresql.new()
    with serving(tmp_path / "one", "--workers", "0", "--database", url):
        code, line = refused("--port", "0", "--store", str(tmp_path / "two"), "--database", url)
    assert (code, line) == (2, "wattune: another server uses this database; give another --database")


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
