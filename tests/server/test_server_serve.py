"""``wattune-server serve``: start, refusal of unsafe settings, sweeps, shutdown."""

from __future__ import annotations

import signal
import socket
import time

import httpx
import pytest
from tests.server.conftest import opened
from tests.support.server.served import model, request
from tests.support.server.serving import Serving, lives, serving, wait_for

from wattune_server.jobs import queue
from wattune_server.store import model_catalog, tokens
from wattune_server.store.schema import JobRow, ModelRow

LONG = {"budget_samples": 200_000, "target": 0.9999, "options": {"classes": 5, "channels": 1, "width": 16}}
"""A model of which no run ends while a test looks at it."""


def offered(folder, **changes):
    """A store that offers a model, so that no example is made."""
    with opened(folder) as store, store.database.session() as session:
        model_catalog.put(session, model(**changes), 0.0)


def asked(server, **changes):
    answer = httpx.post(server.url + "/v1/jobs", json=request(**changes).model_dump(mode="json"), timeout=20)
    assert answer.status_code == 201, answer.text
    return answer.json()["job"]


def job(server, job_id):
    return server.get(f"/v1/jobs/{job_id}").json()


@pytest.fixture
def refused(command):
    """Call ``wattune-server serve`` in this process: (options) -> (exit code, the one line that it says)."""

    def call(*options):
        code, out, err = command("serve", *options)
        assert (out, err.count("\n")) == ("", 1)
        return code, err.strip()

    return call


@pytest.mark.slow
def test_server_prints_its_url_and_exits_0_on_sigterm_and_130_on_ctrl_c(tmp_path):
    folder = tmp_path / "store"
    offered(folder)
    for how, code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        server = Serving(folder, "--workers", "0", log=tmp_path / "log")
        assert server.get("/healthz").status_code == 200
        assert [row.name for row in server.rows(ModelRow)] == ["digits"]
        assert server.end(how) == code


@pytest.mark.slow
def test_store_is_locked_by_one_server(refused, tmp_path):
    folder = tmp_path / "store"
    offered(folder)
    with serving(folder, "--workers", "0"):
        code, line = refused("--port", 0, "--store", folder)
    assert (code, line) == (2, f"wattune: another server uses this store: {folder}; give another --store")


def test_port_in_use_is_a_one_line_error(refused, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = refused("--port", port, "--store", tmp_path / "store")
    assert code == 2
    assert line.startswith(f"wattune: cannot listen on 127.0.0.1:{port}: ")
    assert not (tmp_path / "store").exists()


def test_an_address_that_others_reach_needs_a_proxy(refused, tmp_path):
    code, line = refused("--host", "0.0.0.0", "--port", 0, "--store", tmp_path / "store")
    assert (code, "other machines can reach needs a reverse proxy with TLS: 0.0.0.0" in line) == (2, True)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_server_behind_a_proxy_requires_a_token(refused, tmp_path, host):
    code, line = refused("--host", host, "--proxy", "127.0.0.1", "--port", 0, "--store", tmp_path / "store")
    assert code == 2
    assert "a server behind a reverse proxy needs a token: 127.0.0.1" in line
    assert "wattune-server token make DEVICE --scope device" in line
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_an_address_that_others_reach_is_served_with_a_proxy_and_a_token(tmp_path):
    folder = tmp_path / "store"
    offered(folder)
    with opened(folder) as store, store.database.session() as session:
        token = tokens.make(session, "lab", "read", time.time())
    with serving(folder, "--host", "0.0.0.0", "--proxy", "127.0.0.1", "--workers", "0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1") + "/v1/models/digits"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"Authorization": f"Bearer {token}"}).status_code == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--database", "mysql://x/y"], "--database:"),
        (["--database", "postgresql+psycopg://x@/y?host=/nowhere"], "the database does not respond:"),
        (["--store", "/proc/nowhere"], "cannot write /proc/nowhere"),
    ],
)
def test_unusable_options_are_a_one_line_error(refused, tmp_path, options, said):
    where = [] if "--store" in options else ["--store", tmp_path / "store"]
    code, line = refused("--port", 0, *where, *options)
    assert code in (1, 2)
    assert said in line


@pytest.mark.slow
def test_killed_sweep_is_started_again_and_waits_when_the_server_ends(tmp_path):
    folder = tmp_path / "store"
    offered(folder, **LONG)
    with serving(folder, "--workers", "1") as server:
        job_id = asked(server, batch_sizes=[8])
        [first] = wait_for(lambda: server.sweeps)
        server.kill(first)
        killed = wait_for(lambda: (found := job(server, job_id))["reason"] and found)
        assert killed["reason"] == "the process of the sweep was killed by SIGKILL"
        [second] = wait_for(lambda: [pid for pid in server.sweeps if pid != first])
        assert server.end() == 0
    with opened(folder) as store, store.database.session(reads_only=True) as session:
        assert queue.status(session, job_id).state == "waiting"
    assert not lives(second)


@pytest.mark.slow
def test_sweeps_exit_if_the_server_is_killed(tmp_path):
    folder = tmp_path / "store"
    offered(folder, **LONG)
    server = Serving(folder, "--workers", "2", log=tmp_path / "log")
    for seeds in (1, 2, 3):
        asked(server, seeds=seeds)
    wait_for(lambda: len(server.rows(JobRow, state="running")) == 2)
    sweeps = wait_for(lambda: len(server.sweeps) == 2 and server.sweeps)
    server.kill()
    server.end()
    wait_for(lambda: not any(lives(pid) for pid in sweeps), 10)


@pytest.mark.slow
def test_empty_store_gets_the_example_without_workers(tmp_path):
    with serving(tmp_path / "store", "--workers", "0") as server:
        wait_for(lambda: [row.name for row in server.rows(ModelRow)] == ["resnet8-digits"])
        wait_for(lambda: server.sweeps == [])


@pytest.mark.slow
def test_database_is_locked_by_one_server(refused, tmp_path, postgresql):
    url = postgresql.new()
    with serving(tmp_path / "one", "--database", url):
        code, line = refused("--port", 0, "--store", tmp_path / "two", "--database", url)
    assert (code, line) == (2, "wattune: another server uses this database; give another --database")


@pytest.mark.slow
def test_servers_without_workers_answer_calls_beside_the_one_that_has_them(refused, tmp_path, postgresql):
    folder, url = tmp_path / "store", postgresql.new()
    alone = ("--workers", "0", "--database", url, "--store", folder, "--port", 0)
    assert refused(*alone)[1].startswith(f"wattune: --store: {folder}; allowed: the store of a server with --workers")
    with opened(folder, url) as store, store.database.session() as session:
        model_catalog.put(session, model(), 0.0)
    with serving(folder, "--workers", "0", "--database", url) as beside:
        with serving(folder, "--workers", "1", "--database", url) as first:
            job_id = asked(beside, seeds=1, batch_sizes=[16])
            wait_for(lambda: job(beside, job_id)["state"] == "done", 120)
            curves = [server.json(f"/v1/jobs/{job_id}/curve") for server in (first, beside)]
            assert curves[0] == curves[1]
            status = {"device": "nano-1", "board": "b", "step": "train", "power_w": 4.25}
            assert httpx.put(f"{beside.url}/v1/devices/nano-1", json=status, timeout=20).status_code == 204
            wait_for(lambda: "4.25 W" in first.get("/").text)
            assert beside.sweeps == []
            first.kill()
        assert job(beside, job_id)["state"] == "done"
