"""The locks of a server: what happens if its store vanishes, or the database forgets who has it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import httpx
import pytest
from sqlalchemy import text
from tests.server.conftest import opened, served
from tests.support.server import api as made
from tests.support.server.postgresql import Cluster, binaries
from tests.support.server.serving import Serving, wait_for

from wattune.errors import InputError, OutputError
from wattune.server import locks
from wattune.server.locks import database_locked, store_locked, watching
from wattune.server.store import Database


@pytest.fixture
def cluster():
    """A cluster that the test may stop."""
    if binaries() is None:
        pytest.skip("no PostgreSQL server is installed")
    found = Cluster()
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("how", [shutil.rmtree, lambda store: store.rename(store.with_name("moved"))])
def test_store_that_vanishes_is_noticed(tmp_path, how):
    store = tmp_path / "store"
    with store_locked(store) as check:
        check()
        how(store)
        with pytest.raises(OutputError, match="removed, moved or replaced"):
            check()
        store.mkdir()
        (store / "lock").touch()
        with pytest.raises(OutputError, match="removed, moved or replaced"):
            check()


def test_failed_check_stops_the_server_with_its_error(monkeypatch):
    import threading

    monkeypatch.setattr(locks, "WATCH_S", 0.01)
    stopped = threading.Event()

    def check():
        raise OutputError("gone")

    with pytest.raises(OutputError, match="gone"), watching([lambda: None, check], stopped.set):
        assert stopped.wait(20)


def test_nothing_is_accepted_for_a_database_file_that_was_removed(tmp_path):
    with opened(tmp_path / "store") as store, served(store) as url, httpx.Client(base_url=url, timeout=20) as client:
        assert client.put("/v1/devices/a", json=made.status("a")).status_code == 204
        shutil.rmtree(tmp_path / "store")
        made.problem(client.post("/v1/trainings?device=a", json=made.training()), 503)
        made.problem(client.get("/readyz"), 503)
        assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_server_ends_when_its_store_is_removed(tmp_path):
    server = Serving(tmp_path / "store", "--workers", "0", log=tmp_path / "log")
    try:
        shutil.rmtree(tmp_path / "store")
        with suppress(httpx.TransportError):
            while True:
                answer = httpx.post(f"{server.url}/v1/trainings?device=a", json=made.training(), timeout=20)
                assert answer.status_code == 503
        assert server.process.wait(30) == 2
    finally:
        server.end()
    assert "was removed, moved or replaced" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_lock_is_taken_again_after_a_restart_of_the_database(cluster):
    url = cluster.new()
    one, other = Database(url), Database(url)
    try:
        with database_locked(one) as check:
            check()
            cluster.stop(signal.SIGINT)
            check()  # it is not back yet
            cluster.start()
            check()
            with other.engine.connect() as connection:
                assert not locks._try_lock(connection)
                cluster.stop(signal.SIGINT)
                cluster.start()
            with other.engine.connect() as connection:
                assert locks._try_lock(connection)
                with pytest.raises(InputError, match="another server has taken over"):
                    check()
                connection.execute(text("SELECT 1"))
    finally:
        one.close()
        other.close()


@pytest.mark.slow
def test_second_server_is_refused_after_a_restart_of_the_database(cluster, tmp_path):
    url = cluster.new()
    server = Serving(tmp_path / "one", "--workers", "0", "--database", url, log=tmp_path / "log")
    try:
        cluster.stop(signal.SIGINT)
        cluster.start()
        wait_for(lambda: "has been taken again" in (tmp_path / "log").read_text())
        command = [sys.executable, "-m", "wattune", "serve", "--port", "0", "--store", str(tmp_path / "two")]
        second = subprocess.run(
            [*command, "--workers", "0", "--database", url], capture_output=True, text=True, timeout=100, check=False
        )
        assert second.returncode == 2
        assert "another server uses this database" in second.stderr
        assert server.get("/readyz").status_code == 200
    finally:
        server.end()
